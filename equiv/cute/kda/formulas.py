"""Device helpers shared by the KDA kernels: stock's element-wise formulas with stock's instructions (spec kda 1.9).

Every helper is a fixed sequence of roundings: products and sums that must be rounded one by one are `.rn`
instructions, which ptxas never contracts. Approximations are the hardware instructions that Triton emits: `ex2.approx`
(subnormals kept), `div.full`, `sqrt.approx.ftz`, `rcp.approx.ftz`.
"""

from __future__ import annotations

import re

import cutlass
from cutlass import Float32, Int32, Uint32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from equiv.cute.host import architecture
from equiv.geometry.kda import DIM

LOG2E = 1.44269502162933349609375
"""log2(e) in float32, 0x3FB8AA3B."""
NORM_EPS = 1e-6
"""Added to the sum of squares of q and of k, 0x358637BD."""


@dsl_user_op
def _instruction(code: str, *operands: Float32, loc=None, ip=None) -> Float32:
    """One PTX instruction from float32 registers `$1`, `$2`, ... to `$0`; the compiler may move or drop it."""
    values = [Float32(one).ir_value(loc=loc, ip=ip) for one in operands]
    constraints = ",".join(["=f", *("f" for _ in values)])
    return Float32(llvm.inline_asm(Float32.mlir_type, values, code, constraints, loc=loc, ip=ip))


# Each passes on where it was called: that line of the kernel, not one here, is what the PTX names.
@dsl_user_op
def mul_rn(a, b, *, loc=None, ip=None) -> Float32:
    """Product, rounded; never part of an fma."""
    return _instruction("mul.rn.f32 $0, $1, $2;", a, b, loc=loc, ip=ip)


@dsl_user_op
def add_rn(a, b, *, loc=None, ip=None) -> Float32:
    """Sum, rounded; never part of an fma."""
    return _instruction("add.rn.f32 $0, $1, $2;", a, b, loc=loc, ip=ip)


@dsl_user_op
def sub_rn(a, b, *, loc=None, ip=None) -> Float32:
    """Difference, rounded; never part of an fma."""
    return _instruction("sub.rn.f32 $0, $1, $2;", a, b, loc=loc, ip=ip)


@dsl_user_op
def fma_rn(a, b, c, *, loc=None, ip=None) -> Float32:
    """The sum a * b + c, rounded once."""
    return _instruction("fma.rn.f32 $0, $1, $2, $3;", a, b, c, loc=loc, ip=ip)


@dsl_user_op
def ex2(x, *, loc=None, ip=None) -> Float32:
    """2^x by `ex2.approx.f32`, subnormals kept."""
    return _instruction("ex2.approx.f32 $0, $1;", x, loc=loc, ip=ip)


@dsl_user_op
def div_full(a, b, *, loc=None, ip=None) -> Float32:
    """Quotient a / b by `div.full.f32`."""
    return _instruction("div.full.f32 $0, $1, $2;", a, b, loc=loc, ip=ip)


@dsl_user_op
def sqrt_approx(x, *, loc=None, ip=None) -> Float32:
    """Square root by `sqrt.approx.ftz.f32`."""
    return _instruction("sqrt.approx.ftz.f32 $0, $1;", x, loc=loc, ip=ip)


@dsl_user_op
def reciprocal(x, *, loc=None, ip=None) -> Float32:
    """Inverse by `rcp.approx.ftz.f32`; times a, rounded, it is `div_full(a, x)` where 2^-126 <= x <= 2^126."""
    return _instruction("rcp.approx.ftz.f32 $0, $1;", x, loc=loc, ip=ip)


def triton_exp(x) -> Float32:
    """e^x as `tl.exp`: x * log2(e) rounded, then `ex2`."""
    return ex2(mul_rn(x, LOG2E))


def one_plus_exp_minus(x) -> Float32:
    """1 + e^-x, the denominator of sigmoid and SiLU: x * -log2(e) rounded, `ex2`, + 1 rounded."""
    return add_rn(ex2(mul_rn(x, -LOG2E)), 1.0)


def sigmoid(x) -> Float32:
    """1 / (1 + e^-x) as `tl.sigmoid`."""
    return div_full(1.0, one_plus_exp_minus(x))


def silu(x) -> Float32:
    """The quotient x / (1 + e^-x), one division."""
    return div_full(x, one_plus_exp_minus(x))


def decay(raw_gate, dt_bias, a, lower_bound) -> Float32:
    """Factor in [e^lower_bound, 1] that a key's state column is multiplied by; `a` is `triton_exp(A_log)` of the head.

    z = raw_gate + dt_bias; g = lower_bound * sigmoid(a * z); e^g, each step rounded (spec kda 1.4, 2).
    """
    return triton_exp(mul_rn(lower_bound, sigmoid(mul_rn(a, add_rn(raw_gate, dt_bias)))))


def inverse_norm(squares) -> Float32:
    """1 / sqrt(sum of squares + 1e-6) for q and k; the factor of a row is this, rounded once by `reciprocal`."""
    return reciprocal(sqrt_approx(add_rn(squares, NORM_EPS)))


def inverse_rms(squares, eps) -> Float32:
    """1 / sqrt(mean of 128 squares + eps); the mean is exact (a power of two), so one rounded sum remains."""
    return reciprocal(sqrt_approx(fma_rn(squares, 1.0 / DIM, eps)))


def gated(o, rstd, weight, gate) -> Float32:
    """The gated RMSNorm of one element: ((o * rstd) * weight) * sigmoid(gate), each product rounded."""
    return mul_rn(mul_rn(mul_rn(o, rstd), weight), sigmoid(gate))


def has_f32x2() -> bool:
    """Whether the architecture compiled for has packed float32 arithmetic (from sm_100); asked while tracing."""
    return int(re.sub(r"\D", "", architecture())) >= 100


Pair = tuple[Float32, Float32]


@dsl_user_op
def fma2(a: Pair, b: Pair, c: Pair, *, loc=None, ip=None) -> Pair:
    """Both lanes' a * b + c, rounded once each: one f32x2 instruction where there is one, else two."""
    if has_f32x2():
        return cute.arch.fma_packed_f32x2(a, b, c, rnd="rn", loc=loc, ip=ip)
    return fma_rn(a[0], b[0], c[0], loc=loc, ip=ip), fma_rn(a[1], b[1], c[1], loc=loc, ip=ip)


@dsl_user_op
def mul2(a: Pair, b: Pair, *, loc=None, ip=None) -> Pair:
    """Both lanes' products, rounded: one f32x2 instruction where there is one, else two."""
    if has_f32x2():
        return cute.arch.mul_packed_f32x2(a, b, rnd="rn", loc=loc, ip=ip)
    return mul_rn(a[0], b[0], loc=loc, ip=ip), mul_rn(a[1], b[1], loc=loc, ip=ip)


@dsl_user_op
def add2(a: Pair, b: Pair, *, loc=None, ip=None) -> Pair:
    """Both lanes' sums, rounded: one f32x2 instruction where there is one, else two."""
    if has_f32x2():
        return cute.arch.add_packed_f32x2(a, b, rnd="rn", loc=loc, ip=ip)
    return add_rn(a[0], b[0], loc=loc, ip=ip), add_rn(a[1], b[1], loc=loc, ip=ip)


def mma_m16n8k16(a, b, c):
    """D = A B + C of a warp, A [16, 16] and B [16, 8] BF16, C and D [16, 8] FP32, in the registers of `mma.sync`.

    `a`: four words, `b`: two words (two BF16 each, the lower k in the low half), `c`: four floats; returns four floats.
    Lane l, g = l // 4, q = l % 4: a0 = A[g, 2q + {0,1}], a1 = A[g + 8, same], a2 = A[g, 8 + 2q + {0,1}], a3 = A[g + 8,
    same]; b0 = B[2q + {0,1}, g], b1 = B[8 + 2q + {0,1}, g]; c = [g, 2q], [g, 2q + 1], [g + 8, 2q], [g + 8, 2q + 1].
    """
    return cute.arch.inline_ptx(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, "
        "{{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};",
        write_only_types=[Float32] * 4,
        read_only_args=[*(Uint32(word) for word in (*a, *b)), *(Float32(one) for one in c)],
    )


@cute.jit
def warp_sum(value: Float32) -> Float32:
    """Sum over the 32 lanes, in every lane: a butterfly over distances 16, 8, 4, 2, 1, sums not contracted."""
    for step in cutlass.range_constexpr(5):
        value = add_rn(value, cute.arch.shuffle_sync_bfly(value, offset=16 >> step))
    return value


@cute.jit
def block_sum(sPart, row: Int32) -> Float32:
    """Sum of four warps' `warp_sum` values that stand in row `row` of `sPart` [rows, 4]: (w0 + w2) + (w1 + w3)."""
    return add_rn(add_rn(sPart[row, 0], sPart[row, 2]), add_rn(sPart[row, 1], sPart[row, 3]))


@cute.jit
def row_sum(r0: Float32, r1: Float32, r2: Float32, r3: Float32, lane: Int32) -> Float32:
    """Sums of four rows over 8 neighbouring lanes; lane l of the 8 gets row l // 2, `lane` is l.

    Each row is a butterfly over distances 4, 2, 1; at the first two a lane keeps half of its rows, and four shuffles do
    what twelve would.
    """
    upper = (lane & 4) != 0
    low = exchange(cutlass.select_(upper, r2, r0), cutlass.select_(upper, r0, r2), 4)
    high = exchange(cutlass.select_(upper, r3, r1), cutlass.select_(upper, r1, r3), 4)
    odd = (lane & 2) != 0
    one = exchange(cutlass.select_(odd, high, low), cutlass.select_(odd, low, high), 2)
    return exchange(one, one, 1)


def exchange(kept, given, distance: int) -> Float32:
    """`kept` plus what the lane at this xor distance gives."""
    return add_rn(kept, cute.arch.shuffle_sync_bfly(given, offset=distance))
