"""What float instructions and conversions compute, on arrays of bit patterns (one element a lane), by `equiv.rounding`.

Each function takes an instruction's spellings and gives a function of its sources, uint64 arrays in the order of the
operands that hold patterns of their type; the result is such an array, or a tuple of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.reference.integers import combined
from equiv.rounding import arithmetic as fp
from equiv.rounding import special
from equiv.rounding.conversions import CONVERSIONS, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Mods = Mapping[str, str]
    Array = npt.NDArray[Any]
    Vector = Callable[..., Any]

HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
_ONE = np.uint32(0x3F800000)
_EXTREMES = {"min": fp.minimum, "max": fp.maximum}


def _word(x: Array) -> npt.NDArray[np.uint32]:
    return np.asarray(x).astype(np.uint32)


def _saturated(x: Array) -> Array:
    """`.sat`: NaN, and everything up to +0, gives +0; everything above one gives one."""
    return np.where(fp.is_nan(x) | ((x & fp.SIGN) != 0), np.uint32(0), np.minimum(x, _ONE))


def _relu(x: Array, sign: int) -> Array:
    return np.where((x & sign) != 0, 0, x)


def _clamped(x: Array, limit: int) -> Array:
    """`.satfinite` of a 16-bit format: magnitudes above its largest finite number, Inf included, become that."""
    return np.where(~fp.is_nan(x) & ((x & fp.MAGNITUDE) > limit), x & fp.SIGN | np.uint32(limit), x)


def _widen(x: Array, kind: str) -> Array:
    if kind == "f32":
        return _word(x)
    if kind == "bf16":
        return _word(x) << np.uint32(16)
    return CONVERSIONS[f"f32.{kind}"](np.asarray(x).astype(np.uint16 if kind == "f16" else np.uint8))


def _narrow(x: Array, kind: str, rounding: str = "rn") -> Array:
    """Float32 to one half; `rz` exists for bf16 only."""
    if rounding == "rz":
        return np.where(fp.is_nan(x), np.uint32(0x7FFF), x >> np.uint32(16))
    return CONVERSIONS[f"{kind}.f32.rn"](x).astype(np.uint32)


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
    return _saturated(result) if mods.get("sat") else result


def _half(operation: str, mods: Mods, *sources: Array) -> Array:
    """One operation on halves, rounded once: to float32 toward zero, the lost rest in its last bit, then to half."""
    kind, flushed = mods["type"].removesuffix("x2"), bool(mods.get("ftz"))

    def flush(x: Array) -> Array:
        return np.where((x & 0x7C00) == 0, x & 0x8000, x) if flushed else x

    wide = [_widen(flush(x), kind) for x in sources]
    if operation in _EXTREMES:
        result = _narrow(_extreme(operation, mods, *wide), kind)
    else:
        if operation == "mul":
            wide.append((wide[0] ^ wide[1]) & fp.SIGN)  # adding a zero of its sign changes nothing
        elif operation != "fma":
            wide = [wide[0], np.full_like(wide[0], _ONE), fp.negate(wide[1]) if operation == "sub" else wide[1]]
        result = _narrow(_to_odd(*wide), kind)
    result = flush(result)
    if mods.get("sat"):
        result = _narrow(_saturated(_widen(result, kind)), kind)
    return _relu(result, 0x8000) if mods.get("relu") else result


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
    return _word(x & np.uint64((1 << bits) - 1)), _word(x >> np.uint64(bits))


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
            return lambda *sources: one(operation, mods, *(_widen(x, kind) for x in sources[:-1]), _word(sources[-1]))
        return lambda *sources: one(operation, mods, *map(_word, sources))

    return find


def _sign(operation: str) -> Callable[[Mods], Vector]:
    def find(mods: Mods) -> Vector:
        kind = mods["type"]
        bits = TYPE_BITS[kind]
        sign = 1 << bits - 1 | (1 << bits // 2 - 1 if kind.endswith("x2") else 0)

        def lanes(a: Array) -> Array:
            wide: npt.NDArray[np.uint64] = np.asarray(fp.flush(_word(a)) if mods.get("ftz") else a).astype(np.uint64)
            kept = wide & np.uint64(~sign & (1 << bits) - 1)
            return wide ^ np.uint64(sign) if operation == "neg" else kept

        return lanes

    return find


def _compare(mods: Mods) -> Callable[[Array, Array], Array]:
    kind, relation, ftz = mods["type"], mods["cmp"], bool(mods.get("ftz"))

    def lanes(a: Array, b: Array) -> Array:
        x, y = _widen(a, kind), _widen(b, kind)
        unordered = fp.is_nan(x) | fp.is_nan(y)
        if relation in {"num", "nan"}:
            return unordered if relation == "nan" else ~unordered
        u, v = (fp.floats(fp.flush(z) if ftz else z) for z in (x, y))
        function = {
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
        }
        with np.errstate(invalid="ignore"):
            result: Array = function[relation[:2]](u, v)
        return result | unordered if relation.endswith("u") else result & ~unordered

    return lanes


def _setp(mods: Mods) -> Vector:
    compare = _compare(mods)
    combine: Vector = np.frompyfunc(combined(mods), 2, 1)

    def lanes(a: Array, b: Array, c: Array | int = 0) -> tuple[Array, Array]:
        result = compare(a, b)
        return combine(result, c), combine(~result, c)

    return lanes


def _set(mods: Mods) -> Vector:
    compare = _compare(mods)
    combine: Vector = np.frompyfunc(combined(mods), 2, 1)
    one = 0x3F800000 if mods["dtype"] == "f32" else 0xFFFF_FFFF
    return lambda a, b, c=0: combine(compare(a, b), c) * one


def _testp(mods: Mods) -> Vector:
    def lanes(a: Array) -> Array:
        x = _word(a) & fp.MAGNITUDE
        found: dict[str, Array] = {
            "finite": x < fp.INF,
            "infinite": x == fp.INF,
            "number": x <= fp.INF,
            "notanumber": x > fp.INF,
            "normal": (x < fp.INF) & (x >= 0x800000),
            "subnormal": (x < 0x800000) & (x != 0),
        }
        return found[mods["what"]]

    return lanes


def _approximate(operation: str) -> Callable[[Mods], Vector]:
    functions: dict[str, Vector] = {
        "rcp": special.rcp,
        "rsqrt": special.rsqrt,
        "sqrt": special.sqrt,
        "ex2": special.ex2,
    }

    def find(mods: Mods) -> Vector:
        if mods.get("rnd"):
            return lambda *sources: _one(operation, mods, *map(_word, sources))
        ftz = bool(mods["ftz"])
        if operation == "div":
            divide = special.div_full if "full" in mods else special.div_approx
            return lambda a, b: divide(_word(a), _word(b), ftz=ftz)
        return lambda a: functions[operation](_word(a), ftz=ftz)

    return find


def _integral(x: Array, rounding: str, *, ftz: bool) -> Array:
    function: Vector = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding]
    with np.errstate(invalid="ignore"):
        result = fp.canonical(function(fp.floats(fp.flush(x) if ftz else x)).view(np.uint32))
    return fp.flush(result) if ftz else result


def _to_integer(mods: Mods) -> Vector:
    bits, signed = TYPE_BITS[mods["dtype"]], mods["dtype"][0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    nan = 1 << 63 if bits == 64 else 0  # the top bit alone in 64 bits, else zero

    def one(value: float) -> int:
        if value != value:  # noqa: PLR0124  NaN
            return nan
        if value in {np.inf, -np.inf}:
            return high if value > 0 else low
        return min(max(int(value), low), high)

    lanes, rounding, ftz = np.frompyfunc(one, 1, 1), mods["rnd"], bool(mods.get("ftz"))

    def converted(a: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(lanes(fp.floats(_integral(_widen(a, mods["atype"]), rounding, ftz=ftz)).tolist()))

    return converted


def _from_integer(mods: Mods) -> Vector:
    """A 32-bit integer is exact in float64; a 64-bit one is rounded to nearest from its bits."""
    mode, kind, wide = Mode(mods["rnd"]), mods["dtype"], TYPE_BITS[mods["atype"]] == 64

    def one(value: int) -> int:
        return int(fp.bits_of(_nearest_single(value))) if wide else _rounded(float(value), mode, kind)

    lanes = np.frompyfunc(one, 1, 1)

    def converted(a: Array) -> Array:
        bits = _word(np.asarray(lanes(a)))
        return _saturated(bits) if mods.get("sat") else bits

    return converted


def _nearest_single(value: int) -> float:
    """A 64-bit integer as the float32 nearest to it, ties to even, held in a float64."""
    size = abs(value)
    drop = max(size.bit_length() - 24, 0)
    kept, rest = size >> drop, size & (1 << drop) - 1
    half = 1 << drop - 1 if drop else 0
    kept += bool(drop and (rest > half or (rest == half and kept & 1)))
    return float(kept << drop) * (-1 if value < 0 else 1)


def _rounded(total: float, mode: Mode, kind: str) -> int:
    """An exact float64 as float32 in a directed mode, or as a half, rounded once by way of round-to-odd."""
    nearest = np.float32(total)
    left = total - float(nearest)
    if kind != "f32":
        toward = nearest if abs(float(nearest)) <= abs(total) else np.nextafter(nearest, np.float32(0))
        odd = int(fp.bits_of(toward)) | int(left != 0)
        return int(_narrow(np.array([odd], np.uint32), kind)[0])
    up = mode is Mode.RP or (mode is Mode.RZ and total < 0)
    down = mode is Mode.RM or (mode is Mode.RZ and total > 0)
    if left > 0 and up:
        nearest = np.nextafter(nearest, np.float32(np.inf))
    if left < 0 and down:
        nearest = np.nextafter(nearest, np.float32(-np.inf))
    return int(fp.bits_of(nearest))


def _to_half(mods: Mods) -> Vector:
    kind, limit = mods["dtype"].removesuffix("x2"), {"f16": 0x477FE000, "bf16": 0x7F7F0000}

    def one(a: Array) -> Array:
        x = _word(a)
        x = fp.flush(x) if mods.get("ftz") else x
        x = _saturated(x) if mods.get("sat") else x
        x = _clamped(x, limit[kind]) if mods.get("satfinite") else x
        result = _narrow(x, kind, mods["rnd"])
        return _relu(result, 0x8000) if mods.get("relu") else result

    return one if kind == mods["dtype"] else lambda a, b: one(a) << 16 | one(b)


def _to_tiny(mods: Mods) -> Vector:
    """Two values into a register of codes, from two float32 or from packed halves."""
    kind, source = mods["dtype"].removesuffix("x2"), mods["atype"]
    scale, width = kind == "ue8m0", 4 if kind == "e2m1" else 8
    name = f"{kind}.f32.{mods['rnd']}" + (".satfinite" if mods["satfinite"] else "")

    def one(x: Array) -> Array:
        x = np.where(~fp.is_nan(x) & ((x & fp.SIGN) != 0), np.uint32(0), x) if mods.get("relu") else x
        return CONVERSIONS[name](x & fp.MAGNITUDE if scale else x).astype(np.uint32)

    if source == "f32":
        return lambda a, b: one(_word(a)) << width | one(_word(b))
    half = source.removesuffix("x2")
    return lambda a: one(_widen(a >> np.uint64(16), half)) << width | one(_widen(a & np.uint64(0xFFFF), half))


def _from_tiny(mods: Mods) -> Vector:
    kind, target = mods["atype"].removesuffix("x2"), mods["dtype"].removesuffix("x2")
    width = 4 if kind == "e2m1" else 8

    def one(code: Array) -> Array:
        wide = _widen(code & np.uint64((1 << width) - 1), kind)
        result = _narrow(wide, target)
        return _relu(result, 0x8000) if mods.get("relu") else result

    return lambda a: one(a >> np.uint64(width)) << 16 | one(a)


def _tf32(_: Mods) -> Vector:
    return lambda a: np.where(
        (_word(a) & fp.INF) == fp.INF, _word(a), _word(a) + np.uint32(0x1000) & np.uint32(0xFFFFE000)
    )


def _float_to_float(mods: Mods) -> Vector:
    ftz = bool(mods.get("ftz"))

    def lanes(a: Array) -> Array:
        x = _word(a)
        if mods["atype"] == "f16":
            x = np.where((x & 0x7C00) == 0, x & 0x8000, x) if ftz else x
            x = _widen(x, "f16")
        elif mods["atype"] == "bf16":
            x = _widen(x, "bf16")
        else:
            x = fp.flush(x) if ftz else x
            x = _integral(x, mods["rnd"], ftz=False) if mods.get("rnd") else x
        return _saturated(x) if mods.get("sat") else x

    return lanes


def _cvt(mods: Mods) -> Vector:
    target, source = mods["dtype"], mods["atype"]
    if source[0] in "us" and source[1:].isdigit():
        return _from_integer(mods)
    if target[0] in "us" and target[1:].isdigit():
        return _to_integer(mods)
    if target == "tf32":
        return _tf32(mods)
    if target == "f32":
        return _float_to_float(mods)
    if source.removesuffix("x2") in {"e4m3", "e5m2", "e2m1", "ue8m0"}:
        return _from_tiny(mods)
    if target.removesuffix("x2") in {"e4m3", "e5m2", "e2m1", "ue8m0"}:
        return _to_tiny(mods)
    if source == "f32":
        return _to_half(mods)
    return lambda a: _narrow(_widen(a, source), target)


FLOATS: dict[str, Callable[[Mods], Vector]] = {
    **{name: _arithmetic(name) for name in ("add", "sub", "mul", "fma", "mad", "min", "max")},
    **{name: _approximate(name) for name in ("div", "rcp", "sqrt", "rsqrt", "ex2")},
    "neg": _sign("neg"), "abs": _sign("abs"), "setp": _setp, "set": _set, "testp": _testp, "cvt": _cvt,
    "copysign": lambda _: lambda a, b: _word(a) & fp.SIGN | _word(b) & fp.MAGNITUDE,
}  # fmt: skip
"""Base name -> spellings -> what all lanes compute."""


def is_float(mods: Mods) -> bool:
    """Whether these spellings are a float instruction's: its type, or one end of its conversion, is a float format."""
    kinds = {mods.get("type", ""), mods.get("dtype", "") if "atype" in mods else "", mods.get("atype", "")}
    return any(
        kind and not (kind[0] in "usb" and kind[1:].removesuffix("x2").isdigit()) for kind in kinds if kind != "pred"
    )
