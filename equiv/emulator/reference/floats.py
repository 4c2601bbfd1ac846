"""What float instructions and conversions compute, on arrays of bit patterns (one element a lane), by `equiv.rounding`.

Each function takes an instruction's spellings and gives a function of its sources, uint64 arrays in the order of the
operands that hold patterns of their type; the result is such an array, or a tuple of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.reference.conversions import cvt, cvt_known, narrow, relu, saturated, widen, word
from equiv.emulator.reference.integers import ONES, combined
from equiv.rounding import arithmetic as fp
from equiv.rounding import special
from equiv.rounding.conversions import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Mods = Mapping[str, str]
    Array = npt.NDArray[Any]
    Vector = Callable[..., Any]

HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
_ONE = np.uint32(0x3F800000)
_EXTREMES = {"min": fp.minimum, "max": fp.maximum}


def _one(operation: str, mods: Mods, *sources: Array) -> Array:
    """One float32 operation."""
    mode, ftz = Mode(mods.get("rnd") or "rn"), bool(mods.get("ftz"))
    result: Array
    if operation in {"div", "sqrt", "rcp"}:
        operands = (np.full_like(sources[0], _ONE), *sources) if operation == "rcp" else sources
        result = fp.sqrt(*operands, ftz=ftz) if operation == "sqrt" else fp.div(*operands, ftz=ftz)
    else:
        functions: dict[str, Vector] = {
            "add": fp.add,
            "sub": fp.sub,
            "mul": fp.mul,
            "fma": fp.fma,
            "mad": fp.fma,
        }
        result = functions[operation](*sources, mode=mode, ftz=ftz)
    return saturated(result) if mods.get("sat") else result


def _half(operation: str, mods: Mods, *sources: Array) -> Array:
    """One operation on halves, rounded once: to float32 toward zero, the lost rest in its last bit, then to half."""
    kind, flushed = mods["type"].removesuffix("x2"), bool(mods.get("ftz"))

    def flush(x: Array) -> Array:
        return _flush_half(x) if flushed else x

    flushed_sources = [flush(x) for x in sources]
    wide = [widen(x, kind) for x in flushed_sources]
    if operation in _EXTREMES:
        signed = bool(mods.get("xorsign"))
        plain = {**mods, "xorsign": "", "abs": "", "ftz": ""}
        result = narrow(_extreme(operation, plain, *(x & fp.MAGNITUDE if signed else x for x in wide)), kind)
        if signed:  # the signs are those of the codes, a NaN's included
            a, b = flushed_sources
            result = np.where(result == 0x7FFF, result, result | (a ^ b) & 0x8000)
    else:
        if operation == "mul":
            wide.append((wide[0] ^ wide[1]) & fp.SIGN)  # adding a zero of its sign changes nothing
        elif operation != "fma":
            wide = [wide[0], np.full_like(wide[0], _ONE), fp.negate(wide[1]) if operation == "sub" else wide[1]]
        result = narrow(_to_odd(*wide), kind)
    result = flush(result)
    if mods.get("sat"):
        result = narrow(saturated(widen(result, kind)), kind)
    return relu(result, 0x8000) if mods.get("relu") else result


def _to_odd(a: Array, b: Array, c: Array) -> Array:
    down, up = fp.fma(a, b, c, mode=Mode.RM), fp.fma(a, b, c, mode=Mode.RP)
    zero, nearest = fp.fma(a, b, c, mode=Mode.RZ), fp.fma(a, b, c)
    inexact = (
        (down != up) & ((zero & fp.MAGNITUDE) < fp.INF) & ((nearest & fp.MAGNITUDE | (down ^ up) & fp.MAGNITUDE) != 0)
    )
    return np.where(inexact, zero | np.uint32(1), zero)


def _extreme(operation: str, mods: Mods, *sources: Array) -> Array:
    choose, ftz, nan = _EXTREMES[operation], bool(mods.get("ftz")), bool(mods.get("NaN"))
    flushed = [fp.flush(x) if ftz else x for x in sources]
    if mods.get("xorsign"):
        least = choose(flushed[0] & fp.MAGNITUDE, flushed[1] & fp.MAGNITUDE, nan=nan)
        return np.where(least == fp.NAN, fp.NAN, least | (flushed[0] ^ flushed[1]) & fp.SIGN)
    if mods.get("abs"):
        flushed = [x & fp.MAGNITUDE for x in flushed]
    result = choose(flushed[0], flushed[1], nan=nan)
    return choose(result, flushed[2], nan=nan) if len(flushed) == 3 else result


def _parts(x: Array, bits: int) -> tuple[Array, Array]:
    return word(x & np.uint64((1 << bits) - 1)), word(x >> np.uint64(bits))


def _arithmetic(operation: str) -> Callable[[Mods], Vector]:
    """f32, f32x2, halves and f32 with half operands: the same operation, part by part."""

    def find(mods: Mods) -> Vector:
        one: Vector = _extreme if operation in _EXTREMES else _one
        if mods.get("type") in HALVES:
            one = _half
        if mods.get("type", "").endswith("x2"):
            bits = TYPE_BITS[mods["type"]] // 2

            def packed(*sources: Array) -> Array:
                low, high = (
                    one(operation, mods, *half) for half in zip(*(_parts(x, bits) for x in sources), strict=True)
                )
                both: Array = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(bits)
                return both

            return packed
        if "type" not in mods:  # the last operand is f32, the others are halves
            kind = mods["atype"]
            return lambda *sources: one(operation, mods, *(widen(x, kind) for x in sources[:-1]), word(sources[-1]))
        return lambda *sources: one(operation, mods, *map(word, sources))

    return find


def _sign(operation: str) -> Callable[[Mods], Vector]:
    """The sign bit alone, after which a NaN is canonical."""

    def find(mods: Mods) -> Vector:
        kind = mods["type"]
        half = kind.removesuffix("x2")
        sign = 0x8000_0000 if kind == "f32" else 0x8000

        def one(x: Array) -> Array:
            if mods.get("ftz"):
                x = fp.flush(x) if kind == "f32" else np.where((x & 0x7C00) == 0, x & 0x8000, x)
            changed = word(x ^ np.uint32(sign) if operation == "neg" else x & np.uint32(sign - 1))
            if kind == "f32":
                return fp.canonical(changed)
            return np.where(fp.is_nan(widen(changed, half)), np.uint32(0x7FFF), changed)

        if kind.endswith("x2"):
            return lambda a: one(word(a) & np.uint32(0xFFFF)) | one(word(a) >> np.uint32(16)) << np.uint32(16)
        return lambda a: one(word(a))

    return find


def _numbers(x: Array, kind: str, *, ftz: bool) -> Array:
    """Values of patterns, for comparisons."""
    if kind == "f64":
        return np.asarray(x).astype(np.uint64).view(np.float64)
    if ftz and kind == "f16":
        x = _flush_half(word(x))
    wide = widen(x, kind)
    return fp.floats(fp.flush(wide) if ftz and kind == "f32" else wide)


def _flush_half(x: Array) -> Array:
    return np.where((x & 0x7C00) == 0, x & 0x8000, x)


def _compare(mods: Mods) -> Callable[[Array, Array], Array]:
    kind, relation, ftz = mods["type"].removesuffix("x2"), mods["cmp"], bool(mods.get("ftz"))
    function: dict[str, Vector] = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
        "ge": np.greater_equal,
    }  # fmt: skip

    def lanes(a: Array, b: Array) -> Array:
        u, v = (_numbers(x, kind, ftz=ftz) for x in (a, b))
        unordered = np.isnan(u) | np.isnan(v)
        if relation in {"num", "nan"}:
            return unordered if relation == "nan" else ~unordered
        with np.errstate(invalid="ignore"):
            result: Array = function[relation[:2]](u, v)
        return result | unordered if relation.endswith("u") else result & ~unordered

    return lanes


def _halves_of(x: Array) -> tuple[Array, Array]:
    return word(x) & np.uint32(0xFFFF), word(x) >> np.uint32(16)


def _setp(mods: Mods) -> Vector:
    compare = _compare(mods)
    combine: Vector = np.frompyfunc(combined(mods), 2, 1)

    def lanes(a: Array, b: Array, c: Array | int = 0) -> tuple[Array, Array]:
        if mods["type"].endswith("x2"):  # p is that of the low halves, q that of the high ones
            low, high = (compare(x, y) for x, y in zip(_halves_of(a), _halves_of(b), strict=True))
            return combine(low, c), combine(high, c)
        result = compare(a, b)
        return combine(result, c), combine(~result, c)

    return lanes


def _set(mods: Mods) -> Vector:
    compare = _compare(mods)
    combine: Vector = np.frompyfunc(combined(mods), 2, 1)
    if mods["type"].endswith("x2"):
        half = ONES.get(mods["dtype"].removesuffix("x2"), 0xFFFF)

        def pair(a: Array, b: Array, c: Array | int = 0) -> Array:
            low, high = (compare(x, y) for x, y in zip(_halves_of(a), _halves_of(b), strict=True))
            both: Array = combine(low, c) * half | combine(high, c) * half << 16
            return both

        return pair
    one = ONES.get(mods["dtype"], 0xFFFF_FFFF)
    return lambda a, b, c=0: combine(compare(a, b), c) * one


def _testp(mods: Mods) -> Vector:
    def lanes(a: Array) -> Array:
        x = word(a) & fp.MAGNITUDE
        found: dict[str, Array] = {
            "finite": x < fp.INF,
            "infinite": x == fp.INF,
            "number": x <= fp.INF,
            "notanumber": x > fp.INF,
            "normal": (x < fp.INF) & ((x >= 0x800000) | (x == 0)),
            "subnormal": (x < 0x800000) & (x != 0),
        }
        return found[mods["what"]]

    return lanes


_HALF_FUNCTIONS: dict[tuple[str, str], Vector] = {
    ("ex2", "f16"): special.ex2_f16, ("ex2", "bf16"): special.ex2_bf16, ("tanh", "f16"): special.tanh_f16,
    ("tanh", "bf16"): special.tanh_bf16,
}  # fmt: skip


def _packed(one: Vector, kind: str) -> Vector:
    """A function of a half, or the same on both halves of a register."""
    if not kind.endswith("x2"):
        return lambda a: one(np.asarray(a).astype(np.uint16))

    def both(a: Array) -> Array:
        low, high = (word(one(half.astype(np.uint16))) for half in _halves_of(a))
        return low | high << np.uint32(16)

    return both


def _approximate(operation: str) -> Callable[[Mods], Vector]:
    functions: dict[str, Vector] = {
        "rcp": special.rcp,
        "rsqrt": special.rsqrt,
        "sqrt": special.sqrt,
        "ex2": special.ex2,
        "lg2": special.lg2,
    }

    def find(mods: Mods) -> Vector:
        if mods.get("rnd"):
            return lambda *sources: _one(operation, mods, *map(word, sources))
        if mods["type"] in HALVES:
            return _packed(_HALF_FUNCTIONS[operation, mods["type"].removesuffix("x2")], mods["type"])
        ftz = bool(mods.get("ftz"))
        if operation == "div":
            divide = special.div_full if "full" in mods else special.div_approx
            return lambda a, b: divide(word(a), word(b), ftz=ftz)
        if operation == "tanh":
            return lambda a: special.tanh(word(a))
        return lambda a: functions[operation](word(a), ftz=ftz)

    return find


FLOATS: dict[str, Callable[[Mods], Vector]] = {
    **{name: _arithmetic(name) for name in ("add", "sub", "mul", "fma", "mad", "min", "max")},
    **{name: _approximate(name) for name in ("div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh")},
    "neg": _sign("neg"), "abs": _sign("abs"), "setp": _setp, "set": _set, "testp": _testp, "cvt": cvt,
    "copysign": lambda _: lambda a, b: word(a) & fp.SIGN | word(b) & fp.MAGNITUDE,
}  # fmt: skip
"""Base name -> spellings -> what all lanes compute."""


def is_float(mods: Mods) -> bool:
    """Whether these spellings are a float instruction's: its type, or one end of its conversion, is a float format."""
    kinds = {mods.get("type", ""), mods.get("dtype", "") if "atype" in mods else "", mods.get("atype", "")}
    return any(kind and not (kind[0] in "usb" and kind[1:].removesuffix("x2").isdigit()) for kind in kinds - {"pred"})


def known(base: str, mods: Mods) -> bool:
    """Whether `FLOATS` has the semantics of these spellings; the others must not be run through it."""
    kind, rounding = mods.get("type", ""), mods.get("rnd", "")
    if base == "cvt":
        return cvt_known(mods)
    if base in {"div", "rcp", "sqrt"} and rounding not in {"", "rn"}:
        return False
    if base in {"ex2", "tanh"}:
        return kind == "f32" or kind in HALVES
    if base in {"div", "rcp", "sqrt", "rsqrt", "lg2", "testp", "copysign"}:
        return kind == "f32"
    if base in {"setp", "set"}:
        return kind in HALVES | {"f32", "f64"}
    return kind in HALVES | {"f32", "f32x2"} or (not kind and mods.get("atype") in {"f16", "bf16"})
