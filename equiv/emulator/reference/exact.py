"""Float64, and every rounding of the narrower formats, one exact number at a time by `equiv.rounding.double`.

Each function takes an instruction's spellings and gives a function of one lane's sources: bit patterns, and Python
integers where the source is an integer.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.emulator.isa.table import TYPE_BITS
from equiv.rounding import arithmetic as fp
from equiv.rounding import double
from equiv.rounding.conversions import Mode
from equiv.rounding.formats import F32, Format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Mods = Mapping[str, str]
    Lane = Callable[..., Any]

INTEGERS = frozenset({"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"})
_INTEGRAL: dict[str, Callable[[Fraction], int]] = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
_LARGEST = {"f16": 0x7BFF, "bf16": 0x7F7F}
_FAR = 64
_NORMAL = Fraction(1, 1 << 126 - _FAR)
"""Binades that keep a small quotient away from the subnormals, and where those then end."""


def _mode(mods: Mods) -> Mode:
    return Mode(mods.get("rnd") or "rn")


def saturated(code: int, fmt: Format) -> int:
    """`.sat`: NaN, and what has a sign, gives 0; everything above one gives one."""
    if double.is_nan(code, fmt) or code & fmt.sign_mask:
        return 0
    return min(code, fmt.bias << fmt.fraction)


def _flushed(code: int, fmt: Format) -> int:
    return code if code & fmt.magnitude_mask >> fmt.fraction << fmt.fraction else code & fmt.sign_mask


def _f64(name: str) -> Callable[[Mods], Lane]:
    """One operation on float64."""
    rounded: dict[str, Callable[..., int]] = {
        "add": double.add, "sub": double.sub, "mul": double.mul, "fma": double.fma, "mad": double.fma,
        "div": double.div, "rcp": double.rcp, "sqrt": double.sqrt,
    }  # fmt: skip
    plain: dict[str, Callable[..., int]] = {
        "min": double.minimum, "max": double.maximum, "neg": double.negate, "abs": double.magnitude,
        "copysign": lambda a, b: a & 1 << 63 | b & (1 << 63) - 1,
    }  # fmt: skip

    def find(mods: Mods) -> Lane:
        if name in plain:
            return plain[name]
        return lambda *sources: rounded[name](*sources, _mode(mods))

    return find


def _testp(mods: Mods) -> Lane:
    infinity, least = 0x7FF << 52, 1 << 52
    tests: dict[str, Callable[[int], bool]] = {
        "finite": lambda x: x < infinity,
        "infinite": lambda x: x == infinity,
        "number": lambda x: x <= infinity,
        "notanumber": lambda x: x > infinity,
        "normal": lambda x: least <= x < infinity or x == 0,
        "subnormal": lambda x: 0 < x < least,
    }
    return lambda a: int(tests[mods["what"]](a & (1 << 63) - 1))


def _root(x: Fraction) -> Fraction:
    """A number that every rounding of float32 takes where it takes the square root."""
    scaled = x * (1 << 400)
    root = math.isqrt(math.floor(scaled))
    return Fraction(2 * root + (root * root != scaled), 1 << 201)


def _quotient(name: str) -> Callable[[Mods], Lane]:
    """`div`, `rcp` and `sqrt` of float32 in the directed roundings."""

    def find(mods: Mods) -> Lane:
        mode, ftz = _mode(mods), bool(mods["ftz"])

        def lane(*sources: int) -> int:
            codes = [_flushed(one, F32) if ftz else one for one in sources]
            numbers = [double.value(one, F32) for one in codes]
            exact = None
            if name == "sqrt" and isinstance(numbers[0], Fraction) and not codes[0] & F32.sign_mask:
                exact = _root(numbers[0])
            elif name == "rcp" and isinstance(numbers[0], Fraction):
                exact = 1 / numbers[0]
            elif name == "div" and isinstance(numbers[0], Fraction) and isinstance(numbers[1], Fraction):
                exact = numbers[0] / numbers[1]
            if exact is None:  # zeros, infinities and NaN are the same in every rounding
                words = [np.uint32(one) for one in codes]
                one = np.uint32(0x3F800000)
                return int(fp.sqrt(*words) if name == "sqrt" else fp.div(*([one, *words] if name == "rcp" else words)))
            code = double.encode(exact, F32, mode)
            if not ftz:
                return code
            wide = double.value(double.encode(exact * (1 << _FAR), F32, mode), F32)
            tiny = name == "div" and abs(exact) < 1 and -_NORMAL < wide < _NORMAL
            return code & F32.sign_mask if tiny else _flushed(code, F32)

        return lane

    return find


def _cvt(mods: Mods) -> Lane:
    target, source = mods["dtype"], mods["atype"]
    mode = _mode(mods) if mods.get("rnd") not in _INTEGRAL else Mode.RN
    sat = bool(mods.get("sat"))
    if source in INTEGERS:
        fmt = double.FORMATS[target]

        def from_integer(a: int) -> int:
            code = double.encode(Fraction(a) if a else 0.0, fmt, mode)
            return saturated(code, fmt) if sat else code

        return from_integer
    if target in INTEGERS:
        bits, signed, rounding = TYPE_BITS[target], target[0] == "s", mods["rnd"]
        return lambda a: double.to_integer(a, bits, signed=signed, rounding=rounding)
    return _between(mods, double.FORMATS[source], double.FORMATS[target], mode)


def _between(mods: Mods, source: Format, target: Format, mode: Mode) -> Lane:
    """From one float format to another, or to an integral number of the same."""
    integral = _INTEGRAL.get(mods.get("rnd", ""))
    limit = double.value(_LARGEST.get(target.name, 1), target)
    assert isinstance(limit, Fraction)

    def convert(a: int) -> int:
        if integral is not None or source is target:
            return _integral(a, source, integral)
        if target is double.F64:
            return double.widen(_flushed(int(fp.canonical(np.uint32(a))), F32) if mods.get("ftz") else a, source)
        if source is double.F64:
            return double.narrow(a, target, mode)
        exact = double.value(a, source)
        if mods.get("satfinite") and exact == exact:  # noqa: PLR0124  no NaN
            exact = min(max(exact, -limit), limit)
        return double.encode(exact, target, mode)

    def lane(a: int) -> int:
        code = convert(a)
        if mods.get("ftz") and target is F32 and source is double.F64:
            code = _flushed(code, F32)
        if mods.get("sat"):
            code = saturated(code, target)
        return 0 if mods.get("relu") and code & target.sign_mask else code

    return lane


def _integral(code: int, fmt: Format, function: Callable[[Fraction], int] | None) -> int:
    if double.is_nan(code, fmt):
        return (
            double.quiet(code) if fmt is double.F64 and function is not None else code if fmt is double.F64 else fmt.nan
        )
    exact = double.value(code, fmt)
    if function is None or isinstance(exact, float):
        return code
    number = function(exact)
    return double.encode(Fraction(number) if number else math.copysign(0.0, -1 if exact < 0 else 1), fmt)


def _pair(lane: Callable[[int], int]) -> Lane:
    return lambda a, b: lane(a) << 16 | lane(b)


def _cvt_any(mods: Mods) -> Lane:
    if mods["dtype"] in {"f16x2", "bf16x2"}:
        return _pair(_cvt({**mods, "dtype": mods["dtype"].removesuffix("x2")}))
    return _cvt(mods)


EXACT: dict[str, Callable[[Mods], Lane]] = {
    **{name: _f64(name) for name in ("add", "sub", "mul", "fma", "mad", "min", "max", "neg", "abs", "copysign")},
    "testp": _testp, "cvt": _cvt_any,
}  # fmt: skip
"""Base name -> spellings -> what one lane computes; `div`, `rcp` and `sqrt` are in `find`."""


def find(base: str, mods: Mods) -> Lane | None:
    """What computes these spellings exactly, or None if this module has no semantics for them."""
    kind = mods.get("type", "")
    if base in {"div", "rcp", "sqrt"} and mods.get("rnd"):
        return _f64(base)(mods) if kind == "f64" else _quotient(base)(mods) if kind == "f32" else None
    if base == "cvt":
        names = double.FORMATS.keys() | INTEGERS
        target = mods["dtype"].removesuffix("x2")
        return EXACT[base](mods) if target in names and mods["atype"] in names else None
    return EXACT[base](mods) if kind == "f64" and base in EXACT else None
