"""Special functions as PTX spells them: `.approx` forms, divisions by `rcp`, and libdevice's log2.

Each approximation is the raw instruction of `mufu`; the forms without `.ftz` are that between exact scalings, as ptxas
emits them, and the 16-bit forms truncate the float32 result. Functions map bit patterns to bit patterns. Sources: spec
numerics 3.2 (lowering, read again from ptxas output for sm_90a and sm_100a), sweeps over every input on one H200
(tests/gpu/sweep_special.py). That sm_100a has the same unit is an assumption. C twin: csrc/special.h.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, mufu
from equiv.rounding.formats import BF16, F16

if TYPE_CHECKING:
    from collections.abc import Callable

U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]

ONE: Final = 0x3F800000
_SMALLEST_NORMAL: Final = np.uint32(0x00800000)
_TWO_126: Final = np.uint32(0x7E800000)
_TWO_24: Final = np.uint32(0x4B800000)
_QUARTER: Final = np.uint32(0x3E800000)

_CSRC: Final = Path(__file__).parent / "csrc"
SOURCES: Final = (
    _CSRC / "numerics.h",
    _CSRC / "double.h",
    _CSRC / "special.h",
    *(mufu.TABLES / f"{name}.inc" for name in mufu.NAMES),
)
"""What the C twin of this module is made of, for those who cache what they build from it."""


def _magnitude(bits: npt.ArrayLike) -> tuple[U32, U32]:
    x = np.asarray(bits, dtype=np.uint32)
    return x, x & fp.MAGNITUDE


def ex2(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`ex2.approx[.ftz].f32`: without ftz, x below -126 is halved and the result squared."""
    if ftz:
        return mufu.ex2(bits)
    x, a = _magnitude(bits)
    small = ((x & fp.SIGN) != 0) & (a > np.uint32(0x42FC0000)) & (a <= fp.INF)
    y = mufu.ex2(np.where(small, fp.mul(x, np.uint32(0x3F000000)), x))
    return np.where(small, fp.mul(y, y), y)


def rcp(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`rcp.approx[.ftz].f32`: without ftz, very small and very large operands are scaled before and after."""
    if ftz:
        return mufu.rcp(bits)
    x, a = _magnitude(bits)
    scale = np.where(a > _TWO_126, _QUARTER, np.where(a < _SMALLEST_NORMAL, _TWO_24, np.uint32(ONE)))
    return fp.mul(mufu.rcp(fp.mul(x, scale)), scale)


def rsqrt(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`rsqrt.approx[.ftz].f32`: without ftz, subnormals are scaled by 2^24 before and 2^12 after."""
    return _scaled_root(bits, mufu.rsqrt, 0x45800000, ftz=ftz)


def sqrt(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`sqrt.approx[.ftz].f32`: without ftz, subnormals are scaled by 2^24 before and 2^-12 after."""
    return _scaled_root(bits, mufu.sqrt, 0x39800000, ftz=ftz)


def _scaled_root(bits: npt.ArrayLike, raw: Callable[[npt.ArrayLike], U32], after: int, *, ftz: bool) -> U32:
    if ftz:
        return raw(bits)
    x, a = _magnitude(bits)
    small = a < _SMALLEST_NORMAL
    y = raw(np.where(small, fp.mul(x, _TWO_24), x))
    return np.where(small, fp.mul(y, np.uint32(after)), y)


def lg2(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`lg2.approx[.ftz].f32`: without ftz, subnormals are scaled by 2^24 before and lose 24 after."""
    if ftz:
        return mufu.lg2(bits)
    x, a = _magnitude(bits)
    small = a < _SMALLEST_NORMAL
    y = mufu.lg2(np.where(small, fp.mul(x, _TWO_24), x))
    return np.where(small, fp.add(y, np.uint32(0xC1C00000)), y)


def tanh(bits: npt.ArrayLike) -> U32:
    """`tanh.approx.f32`: the raw instruction."""
    return mufu.tanh(bits)


def ex2_bf16(bits: npt.ArrayLike) -> U16:
    """`ex2.approx.ftz.bf16`, and each half of `bf16x2`: the float32 result truncated."""
    return _truncated_bf16(mufu.ex2(conversions.widen(bits, BF16)))


def ex2_f16(bits: npt.ArrayLike) -> U16:
    """`ex2.approx.f16`, and each half of `f16x2`: the float32 result truncated, subnormals kept, Inf from 65536 on."""
    return _truncated_f16(mufu.ex2(conversions.widen(bits, F16)))


def tanh_bf16(bits: npt.ArrayLike) -> U16:
    """`tanh.approx.bf16`, and each half of `bf16x2`: the float32 result truncated."""
    return _truncated_bf16(mufu.tanh(conversions.widen(bits, BF16)))


def tanh_f16(bits: npt.ArrayLike) -> U16:
    """`tanh.approx.f16`, and each half of `f16x2`: the float32 result truncated."""
    return _truncated_f16(mufu.tanh(conversions.widen(bits, F16)))


def _truncated_bf16(bits: U32) -> U16:
    return np.where(fp.is_nan(bits), np.uint32(0x7FFF), bits >> np.uint32(16)).astype(np.uint16)


def _truncated_f16(bits: U32) -> U16:
    """Towards zero, except that what lies beyond the range is Inf."""
    magnitude = (bits & fp.MAGNITUDE).astype(np.int64)
    field = magnitude >> 23
    normal = np.minimum((magnitude - (112 << 23)) >> 13, 0x7C00)
    subnormal = (magnitude & 0x7FFFFF | 0x800000) >> np.clip(126 - field, 14, 25)
    code = np.where(field > 112, normal, subnormal) | (bits >> np.uint32(16) & np.uint32(0x8000))
    return np.where(fp.is_nan(bits), 0x7FFF, code).astype(np.uint16)


def div_full(a: npt.ArrayLike, b: npt.ArrayLike, *, ftz: bool) -> U32:
    """`div.full[.ftz].f32`: both operands scaled where b is extreme, then a * MUFU.RCP(b) with one rounding."""
    x, y = np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32)
    magnitude = y & fp.MAGNITUDE
    tiny = np.uint32(ONE) if ftz else _TWO_24
    scale = np.where(magnitude > _TWO_126, _QUARTER, np.where(magnitude < _SMALLEST_NORMAL, tiny, np.uint32(ONE)))
    return fp.mul(fp.mul(x, scale, ftz=ftz), mufu.rcp(fp.mul(y, scale, ftz=ftz)), ftz=ftz)


def div_approx(a: npt.ArrayLike, b: npt.ArrayLike, *, ftz: bool) -> U32:
    """`div.approx[.ftz].f32`: a * MUFU.RCP(b); without ftz both are scaled by 2^24 where b is subnormal."""
    x, y = np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32)
    if ftz:
        return fp.mul(x, mufu.rcp(y), ftz=True)
    scale = np.where((y & fp.MAGNITUDE) < _SMALLEST_NORMAL, _TWO_24, np.uint32(ONE))
    return fp.mul(fp.mul(x, scale), mufu.rcp(fp.mul(y, scale)))


_LOG2_COEFFICIENTS: Final = (
    0x3DC6B27F,
    0xBE2C7F30,
    0x3E2FCF2A,
    0xBE374E43,
    0x3E520BF4,
    0xBE763C8B,
    0x3E93BF99,
    0xBEB8AA49,
    0x3EF6384A,
    0xBF38AA3B,
)


def log2_libdevice(bits: npt.ArrayLike) -> U32:
    """Libdevice's log2f, as Triton 3.8.0 emits it for `tl.log2` on sm_90a and sm_100a alike.

    A polynomial in ftz fmas about a mantissa in about [2/3, 4/3), not `lg2.approx`; every step is transcribed from our
    own compiler output, in its order. Zero gives -Inf, negative numbers and NaN give NaN, Inf gives Inf.
    """
    x = np.atleast_1d(np.asarray(bits, dtype=np.uint32))
    with np.errstate(all="ignore"):
        small = fp.floats(x) < fp.floats(np.uint32(_SMALLEST_NORMAL))
    scaled = np.where(small, fp.mul(x, np.uint32(0x4B000000)), x)
    bias = np.where(small, np.uint32(0xC1B80000), np.uint32(0))
    exponent = (scaled - np.uint32(1060439283)) & np.uint32(0xFF800000)
    mantissa = scaled - exponent
    base = fp.fma(fp.bits_of(exponent.view(np.int32)), np.uint32(0x34000000), bias, ftz=True)
    d = fp.add(mantissa, np.uint32(0xBF800000))
    poly: U32 = np.full(x.shape, _LOG2_COEFFICIENTS[0], dtype=np.uint32)
    for coefficient in _LOG2_COEFFICIENTS[1:]:
        poly = fp.fma(poly, d, np.uint32(coefficient), ftz=True)
    tail = fp.mul(d, fp.mul(d, poly))
    result = fp.add(base, fp.fma(d, np.uint32(0x3FB8AA3B), tail, ftz=True))
    result = np.where(scaled >= fp.INF, fp.fma(scaled, fp.INF, fp.INF, ftz=True), result)
    result = np.where((scaled & fp.MAGNITUDE) == 0, np.uint32(0xFF800000), result)
    return result.reshape(np.shape(bits))
