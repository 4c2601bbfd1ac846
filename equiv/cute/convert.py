"""Device helpers that turn float32 values into power-of-two scales and E4M3 / E2M1 codes.

Scales never go through a logarithm here: the exponent comes from the bits, so `pow2_ceil` is exact for normal float32.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Uint16, Uint32, cute
from cutlass.cutlass_dsl import CuTeDSL

E4M3_MAX = 448.0
E2M1_MAX = 6.0
MX_FLOOR = 6.0 * 2.0**-126
"""Smallest block maximum of the MX formats that is kept apart from zero: its scale is 2^-126."""


def has_e2m1() -> bool:
    """Whether the architecture compiled for has `cvt.rn.satfinite.e2m1x2.f32` (from sm_100a); asked while tracing."""
    return bool(CuTeDSL._get_dsl().get_arch_enum().major >= 10)  # noqa: SLF001  the DSL has no public way to ask


@cute.jit
def magnitude(x: Float32) -> Uint32:
    """Bits of |x|: as integers they are ordered like the magnitudes, and every NaN is above infinity."""
    return x.bitcast(Uint32) & 0x7FFFFFFF


@cute.jit
def pow2_ceil(s: Float32) -> Float32:
    """Smallest power of two >= s (normal, <= 2^127): the sum carries into the exponent unless the mantissa is 0."""
    return ((s.bitcast(Uint32) + 0x7FFFFF) & 0x7F800000).bitcast(Float32)


@cute.jit
def reciprocal_pow2(scale: Float32) -> Float32:
    """1 / scale exactly, for a power of two between 2^-126 and 2^126."""
    return ((254 << 23) - scale.bitcast(Uint32)).bitcast(Float32)


@cute.jit
def mxfp4_scale(amax: Uint32) -> tuple[Float32, Uint32]:
    """(1 / scale, UE8M0 byte) of an MXFP4 block whose largest magnitude has the bits `amax`.

    The scale is the smallest 2^e with amax <= 6 * 2^e, e >= -126: e is two below the exponent of amax, or
    one below if its mantissa exceeds 1.5.
    """
    bits = cutlass.max(amax, Float32(MX_FLOOR).bitcast(Uint32))
    byte = (bits >> 23) - 2 + Uint32((bits & 0x7FFFFF) > 0x400000)
    return ((254 - byte) << 23).bitcast(Float32), byte


@cute.jit
def e4m3x4(v0: Float32, v1: Float32, v2: Float32, v3: Float32) -> Uint32:
    """Four E4M3 codes, v0 in the lowest byte: nearest even, saturating at 448, sign of zero kept."""
    low = e4m3x2(v0, v1)
    high = e4m3x2(v2, v3)
    return Uint32(low) | (Uint32(high) << 16)


@cute.jit
def e4m3x2(low: Float32, high: Float32) -> Uint16:
    """Two E4M3 codes; PTX puts its first source into the high byte."""
    return cute.arch.inline_ptx(
        "cvt.rn.satfinite.e4m3x2.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint16], read_only_args=[high, low]
    )


@cute.jit
def e2m1x2(low: Float32, high: Float32) -> Uint32:
    """Two E2M1 codes in one byte, `low` in the low nibble: nearest even, saturating at 6, sign of zero kept."""
    if cutlass.const_expr(has_e2m1()):
        return cute.arch.inline_ptx(
            "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, {$r0}, {$r1}; cvt.u32.u8 {$w0}, pair; }",
            write_only_types=[Uint32],
            read_only_args=[high, low],
        )
    return e2m1(low) | (e2m1(high) << 4)


@cute.jit
def e2m1(x: Float32) -> Uint32:
    """E2M1 code in integers, for architectures without the instruction.

    The thresholds are the midpoints of 0, .5, 1, 1.5, 2, 3, 4, 6. A midpoint belongs to the even code
    beside it, so by turns it counts as reached or not.
    """
    a = magnitude(x)
    code = Uint32(0)
    for midpoint, even_above in E2M1_MIDPOINTS:
        threshold = Float32(midpoint).bitcast(Uint32)
        code += Uint32(a >= threshold if even_above else a > threshold)
    return code | ((x.bitcast(Uint32) >> 28) & 8)


E2M1_MIDPOINTS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
