"""Float32 add, multiply, divide, fused multiply-add, max and min on bit patterns, as the GPU gives them.

Every result is rounded once from the exact value; a NaN result is 0x7fffffff; `ftz` flushes subnormal operands and
results to zeros of their sign, results being subnormal as if the exponent had no lower end: what only the subnormals'
coarser steps round up to 2^-126 is a zero (measured on one H200, tests/gpu/sweep_special.py). The exact value is kept
as a pair of float64 (nearest and rest), which decides nearest by rounding to odd and the directed modes by the sign of
what is left. Source: PTX ISA, spec numerics 4 (last item) and 5.5. C twin: csrc/numerics.h.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from equiv.rounding.conversions import Mode

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]

NAN: Final = np.uint32(0x7FFFFFFF)
INF: Final = np.uint32(0x7F800000)
SIGN: Final = np.uint32(0x80000000)
MAGNITUDE: Final = np.uint32(0x7FFFFFFF)


def bits_of(values: npt.ArrayLike) -> U32:
    """Bit patterns of numbers rounded to float32 (nearest even)."""
    with np.errstate(all="ignore"):
        return np.asarray(values, dtype=np.float32).view(np.uint32)


def floats(bits: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Float32 values of bit patterns, for numpy's own float32 operations."""
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


def is_nan(bits: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which float32 patterns are NaN."""
    return np.asarray((np.asarray(bits, dtype=np.uint32) & MAGNITUDE) > INF)


def canonical(bits: npt.ArrayLike) -> U32:
    """The same patterns with every NaN replaced by 0x7fffffff."""
    x = np.asarray(bits, dtype=np.uint32)
    return np.where(is_nan(x), NAN, x)


def flush(bits: npt.ArrayLike) -> U32:
    """Subnormals replaced by zeros of their sign."""
    x = np.asarray(bits, dtype=np.uint32)
    return np.where((x & INF) == 0, x & SIGN, x)


def negate(bits: npt.ArrayLike) -> U32:
    """The sign bit flipped, NaNs included."""
    return np.asarray(bits, dtype=np.uint32) ^ SIGN


def _operands(ftz: bool, *operands: npt.ArrayLike) -> list[npt.NDArray[np.float32]]:  # noqa: FBT001
    return [floats(flush(x) if ftz else x) for x in operands]


def _finish(value: npt.NDArray[np.float32], ftz: bool) -> U32:  # noqa: FBT001
    bits = canonical(value.view(np.uint32))
    return flush(bits) if ftz else bits


_NORMAL_FROM: Final = 2.0**-126 - 2.0**-151  # a tie to even: from here on 24 bits round to 2^-126
_LAST_BELOW: Final = 2.0**-126 - 2.0**-150  # of 24 bits


def _flushed(value: npt.NDArray[np.float32], s: F64, e: F64, mode: Mode, ftz: bool) -> U32:  # noqa: FBT001
    """Bits of s + e rounded to `value`, flushed by what s + e would be with 24 bits and an unbounded exponent."""
    bits = canonical(value.view(np.uint32))
    if not ftz:
        return bits
    magnitude, outwards = np.abs(s), np.where(s < 0, -e, e)
    if mode is Mode.RN:
        tiny = (magnitude < _NORMAL_FROM) | ((magnitude == _NORMAL_FROM) & (outwards < 0))
    else:
        away = (s < 0) if mode is Mode.RM else (s > 0) if mode is Mode.RP else np.zeros(s.shape, dtype=bool)
        tiny = away & ((magnitude < _LAST_BELOW) | ((magnitude == _LAST_BELOW) & (outwards <= 0)))
    return np.where(tiny & ~is_nan(bits), bits & SIGN, flush(bits))


def _two_sum(p: F64, c: F64) -> tuple[F64, F64]:
    """Gives p + c as its nearest float64 and the exact rest."""
    s = p + c
    b = s - p
    return s, (p - (s - b)) + (c - b)


def _nearest(s: F64, e: F64) -> npt.NDArray[np.float32]:
    """Nearest float32 of s + e: s is rounded to odd first, so that the second rounding is the only one that counts."""
    bits = s.view(np.int64)
    inexact = (e > 0) | (e < 0)
    towards_zero = (bits < 0) != (e < 0)
    odd = np.where(towards_zero, bits - 1, bits | 1)
    return np.where(inexact & ((bits & 1) == 0), odd, bits).view(np.float64).astype(np.float32)


def _directed(s: F64, e: F64, mode: Mode, cancelled: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Rounds s + e in a directed mode; an exact zero from opposite signs (`cancelled`) is -0 when rounding down."""
    nearest = s.astype(np.float32)
    left = s - nearest.astype(np.float64)
    left = np.where(left == 0, e, left)
    negative = np.signbit(nearest)
    up_allowed = negative if mode is Mode.RZ else np.full(s.shape, mode is Mode.RP)
    down_allowed = ~negative if mode is Mode.RZ else np.full(s.shape, mode is Mode.RM)
    result = np.where((left > 0) & up_allowed, np.nextafter(nearest, np.float32(np.inf)), nearest)
    result = np.where((left < 0) & down_allowed, np.nextafter(nearest, np.float32(-np.inf)), result)
    # nextafter never yields -0 from below; stepping up from the smallest negative keeps the sign on the GPU.
    result = np.where((result == 0) & negative, np.float32(-0.0), result)
    if mode is Mode.RM:
        result = np.where((s == 0) & cancelled, np.float32(-0.0), result)
    return result.astype(np.float32)


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike, *, mode: Mode = Mode.RN, ftz: bool = False) -> U32:
    """Computes a * b + c with one rounding; operands broadcast."""
    fa, fb, fc = _operands(ftz, a, b, c)
    with np.errstate(all="ignore"):
        p, addend = np.broadcast_arrays(fa.astype(np.float64) * fb.astype(np.float64), fc.astype(np.float64))
        s, e = _two_sum(p, addend)
        if mode is Mode.RN:
            return _flushed(_nearest(s, e), s, e, mode, ftz)
        return _flushed(_directed(s, e, mode, np.signbit(p) != np.signbit(addend)), s, e, mode, ftz)


def add(a: npt.ArrayLike, b: npt.ArrayLike, *, mode: Mode = Mode.RN, ftz: bool = False) -> U32:
    """Computes a + b; operands broadcast."""
    fa, fb = _operands(ftz, a, b)
    with np.errstate(all="ignore"):
        if mode is Mode.RN:
            return _finish(np.asarray(fa + fb), ftz)
        p, addend = np.broadcast_arrays(fa.astype(np.float64), fb.astype(np.float64))
        s, e = _two_sum(p, addend)
        return _finish(_directed(s, e, mode, np.signbit(p) != np.signbit(addend)), ftz)


def sub(a: npt.ArrayLike, b: npt.ArrayLike, *, mode: Mode = Mode.RN, ftz: bool = False) -> U32:
    """Computes a - b; operands broadcast."""
    return add(a, negate(b), mode=mode, ftz=ftz)


def mul(a: npt.ArrayLike, b: npt.ArrayLike, *, mode: Mode = Mode.RN, ftz: bool = False) -> U32:
    """Computes a * b; operands broadcast."""
    fa, fb = _operands(ftz, a, b)
    with np.errstate(all="ignore"):
        s = np.asarray(fa.astype(np.float64) * fb.astype(np.float64))
        e = np.zeros_like(s)
        if mode is Mode.RN:
            return _flushed(np.asarray(fa * fb), s, e, mode, ftz)
        return _flushed(_directed(s, e, mode, np.zeros(s.shape, dtype=bool)), s, e, mode, ftz)


def div(a: npt.ArrayLike, b: npt.ArrayLike, *, ftz: bool = False) -> U32:
    """Computes a / b, `div.rn`; operands broadcast."""
    fa, fb = _operands(ftz, a, b)
    with np.errstate(all="ignore"):
        bits = _finish(np.asarray(fa / fb), ftz)
        tiny = np.abs(fa.astype(np.float64)) < _NORMAL_FROM * np.abs(fb.astype(np.float64))
        return np.where(tiny, bits & SIGN, bits) if ftz else bits


def sqrt(a: npt.ArrayLike, *, ftz: bool = False) -> U32:
    """The square root, `sqrt.rn`."""
    (fa,) = _operands(ftz, a)
    with np.errstate(all="ignore"):
        return _finish(np.asarray(np.sqrt(fa)), ftz)


def order(bits: npt.ArrayLike) -> U32:
    """Keys whose unsigned order is the order of the values, -0 below +0; meant for patterns that are not NaN."""
    x = np.asarray(bits, dtype=np.uint32)
    return np.where((x & SIGN) != 0, ~x, x | SIGN)


def maximum(a: npt.ArrayLike, b: npt.ArrayLike, *, nan: bool = False, ftz: bool = False) -> U32:
    """`max.f32`: a NaN loses against a number, +0 is above -0; with `nan` (`max.NaN.f32`) a NaN wins."""
    return _select(a, b, nan=nan, ftz=ftz, larger=True)


def minimum(a: npt.ArrayLike, b: npt.ArrayLike, *, nan: bool = False, ftz: bool = False) -> U32:
    """`min.f32`: a NaN loses against a number, -0 is below +0; with `nan` (`min.NaN.f32`) a NaN wins."""
    return _select(a, b, nan=nan, ftz=ftz, larger=False)


def _select(a: npt.ArrayLike, b: npt.ArrayLike, *, nan: bool, ftz: bool, larger: bool) -> U32:
    x, y = np.broadcast_arrays(np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32))
    if ftz:
        x, y = flush(x), flush(y)
    first = order(x) > order(y) if larger else order(x) < order(y)
    chosen = np.where(first, x, y)
    nan_x, nan_y = is_nan(x), is_nan(y)
    chosen = np.where(nan_x, canonical(y), np.where(nan_y, x, chosen))
    return np.where(nan_x | nan_y, NAN, chosen) if nan else chosen


def min_xorsign_abs(a: npt.ArrayLike, b: npt.ArrayLike, *, ftz: bool = False) -> U32:
    """`min.xorsign.abs.f32`: the smaller magnitude with the product of both signs; two NaNs give 0x7fffffff."""
    x, y = np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32)
    least = minimum(x & MAGNITUDE, y & MAGNITUDE, ftz=ftz)
    return np.where(least == NAN, NAN, least | ((x ^ y) & SIGN))


def ceil(a: npt.ArrayLike, *, ftz: bool = False) -> U32:
    """`cvt.rpi.f32.f32`: up to an integer, still float32; what lies above -1 and below 0 gives -0."""
    (fa,) = _operands(ftz, a)
    with np.errstate(all="ignore"):
        return _finish(np.asarray(np.ceil(fa)), ftz)
