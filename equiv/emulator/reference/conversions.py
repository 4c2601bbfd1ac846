"""What `cvt` computes where a float format is at one end, on arrays of bit patterns; see `floats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.emulator.isa.table import TYPE_BITS
from equiv.rounding import arithmetic as fp
from equiv.rounding.conversions import CONVERSIONS, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Mods = Mapping[str, str]
    Array = npt.NDArray[Any]
    Vector = Callable[..., Any]

INTEGERS = frozenset({"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"})
_TINY = frozenset({"e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2"})
_NARROW = frozenset({"e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "ue8m0"})
_PACKED = frozenset({"f16x2", "bf16x2"})
_ONE = np.uint32(0x3F800000)


def word(x: Array) -> npt.NDArray[np.uint32]:
    """Patterns of at most 32 bits as uint32."""
    return np.asarray(x).astype(np.uint32)


def saturated(x: Array) -> Array:
    """`.sat`: NaN, and everything up to +0, gives +0; everything above one gives one."""
    return np.where(fp.is_nan(x) | ((x & fp.SIGN) != 0), np.uint32(0), np.minimum(x, _ONE))


def relu(x: Array, sign: int) -> Array:
    """Zero where the sign bit is set."""
    return np.where((x & sign) != 0, 0, x)


def _clamped(x: Array, limit: int) -> Array:
    """`.satfinite` of a 16-bit format: magnitudes above its largest finite number, Inf included, become that."""
    return np.where(~fp.is_nan(x) & ((x & fp.MAGNITUDE) > limit), x & fp.SIGN | np.uint32(limit), x)


def widen(x: Array, kind: str) -> Array:
    """The float32 of codes of a narrower format; of float32 itself the same."""
    if kind == "f32":
        return word(x)
    if kind == "bf16":
        return word(x) << np.uint32(16)
    return CONVERSIONS[f"f32.{kind}"](np.asarray(x).astype(np.uint16 if kind == "f16" else np.uint8))


def narrow(x: Array, kind: str, rounding: str = "rn") -> Array:
    """Float32 to one half; `rz` exists for bf16 only."""
    if rounding == "rz":
        return np.where(fp.is_nan(x), np.uint32(0x7FFF), x >> np.uint32(16))
    return CONVERSIONS[f"{kind}.f32.rn"](x).astype(np.uint32)


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
            return np.asarray(lanes(fp.floats(_integral(widen(a, mods["atype"]), rounding, ftz=ftz)).tolist()))

    return converted


def _from_integer(mods: Mods) -> Vector:
    """A 32-bit integer is exact in float64; a 64-bit one is rounded to nearest from its bits."""
    mode, kind, wide = Mode(mods["rnd"]), mods["dtype"], TYPE_BITS[mods["atype"]] == 64

    def one(value: int) -> int:
        return int(fp.bits_of(_nearest_single(value))) if wide else _rounded(float(value), mode, kind)

    lanes = np.frompyfunc(one, 1, 1)

    def converted(a: Array) -> Array:
        bits = word(np.asarray(lanes(a)))
        return saturated(bits) if mods.get("sat") else bits

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
        return int(narrow(np.array([odd], np.uint32), kind)[0])
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
        x = word(a)
        x = fp.flush(x) if mods.get("ftz") else x
        x = saturated(x) if mods.get("sat") else x
        x = _clamped(x, limit[kind]) if mods.get("satfinite") else x
        result = narrow(x, kind, mods["rnd"])
        return relu(result, 0x8000) if mods.get("relu") else result

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
        return lambda a, b: one(word(a)) << width | one(word(b))
    half = source.removesuffix("x2")
    return lambda a: one(widen(a >> np.uint64(16), half)) << width | one(widen(a & np.uint64(0xFFFF), half))


def _from_tiny(mods: Mods) -> Vector:
    kind, target = mods["atype"].removesuffix("x2"), mods["dtype"].removesuffix("x2")
    width = 4 if kind == "e2m1" else 8

    def one(code: Array) -> Array:
        wide = widen(code & np.uint64((1 << width) - 1), kind)
        result = narrow(wide, target)
        return relu(result, 0x8000) if mods.get("relu") else result

    return lambda a: one(a >> np.uint64(width)) << 16 | one(a)


def _tf32(mods: Mods) -> Vector:
    """To nearest with ties away (`rna`, which cuts a NaN's payload too), to even, or towards zero."""
    rounding, cut = mods["rnd"], np.uint32(0xFFFFE000)

    def lanes(a: Array) -> Array:
        x = word(a)
        x = np.where(~fp.is_nan(x) & ((x & fp.SIGN) != 0), np.uint32(0), x) if mods.get("relu") else x
        if rounding == "rna":
            result = np.where((x & fp.INF) == fp.INF, x, x + np.uint32(0x1000)) & cut
        else:
            up = np.uint32(0xFFF) + (x >> np.uint32(13) & np.uint32(1)) if rounding == "rn" else np.uint32(0)
            result = np.where(fp.is_nan(x), fp.NAN, x + up) & cut
        return (
            np.where((result & fp.INF) == fp.INF, result - np.uint32(0x2000), result)
            if mods.get("satfinite")
            else result
        )

    return lanes


def _float_to_float(mods: Mods) -> Vector:
    ftz = bool(mods.get("ftz"))

    def lanes(a: Array) -> Array:
        x = word(a)
        if mods["atype"] == "f16":
            x = np.where((x & 0x7C00) == 0, x & 0x8000, x) if ftz else x
            x = widen(x, "f16")
        elif mods["atype"] == "bf16":
            x = widen(x, "bf16")
            x = fp.flush(fp.canonical(x)) if ftz else x
        else:
            x = fp.flush(x) if ftz else x
            x = fp.canonical(x) if ftz else x
            x = _integral(x, mods["rnd"], ftz=False) if mods.get("rnd") else x
        return saturated(x) if mods.get("sat") else x

    return lanes


def cvt(mods: Mods) -> Vector:
    """The conversion of these spellings; only for what `cvt_known` accepts."""
    target, source = mods["dtype"], mods["atype"]
    if source[0] in "us" and source[1:].isdigit():
        return _from_integer(mods)
    if target[0] in "us" and target[1:].isdigit():
        return _to_integer(mods)
    if target == "tf32":
        return _tf32(mods)
    if target == "f32":
        return _float_to_float(mods)
    if source.removesuffix("x2") in _NARROW:
        return _from_tiny(mods)
    if target.removesuffix("x2") in _NARROW:
        return _to_tiny(mods)
    if source == "f32":
        return _to_half(mods)
    return lambda a: narrow(widen(a, source), target)


def cvt_known(mods: Mods) -> bool:
    """Whether `cvt` has the semantics of these spellings."""
    target, source, rounding = mods["dtype"], mods["atype"], mods.get("rnd", "")
    half = target in {"f16", "bf16"}
    return (
        (target in INTEGERS and source in {"f32", "f16", "bf16"})
        or (target == "f32" and source in INTEGERS and (rounding == "rn" or source not in {"u64", "s64"}))
        or (half and source in INTEGERS - {"u64", "s64"} and rounding == "rn" and not mods.get("sat"))
        or (target == "f32" and source in {"f32", "f16"})
        or (target == "f32" and source == "bf16" and not mods.get("sat"))
        or (target in {"f16", "f16x2", "bf16", "bf16x2"} and source == "f32" and _to_half_known(mods))
        or (half and source in {"f16", "bf16"} and source != target and rounding == "rn" and not mods.get("sat")
            and not mods.get("relu") and not mods.get("satfinite") and not mods.get("ftz"))
        or (target in _TINY | {"ue8m0x2"} and source in _PACKED | {"f32"})
        or (source in _TINY and target in _PACKED)
        or target == "tf32" or (source == "ue8m0x2" and target == "bf16x2")
    )  # fmt: skip


def _to_half_known(mods: Mods) -> bool:
    rounding = mods["rnd"]
    return rounding == "rn" or (rounding == "rz" and mods["dtype"].startswith("bf16"))
