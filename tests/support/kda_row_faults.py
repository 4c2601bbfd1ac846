"""Seeded faults in the arithmetic of `KdaWide`, one step of a formula each, and the row each must be put down to."""

from __future__ import annotations

from seeded import Fault

WIDE, PREPARE, FORMULAS, TILE, COMMIT = (
    f"kda/{name}.py" for name in ("wide", "wide_prepare", "formulas", "tile", "commit")
)
ONE, THREE = "wide-b1-h12", "wide-b3-t1"
WEIGHT = "rW[i] = mConvW[part, i, dim]"
U = "u = mul_rn(sub_rn(sV[t, mine], dot), sBeta[t])"
TRANSPOSED = """                for e in cutlass.range_constexpr(4):
                    key = KEY_STEP * c + 4 * (thread % LANES) + e
                    inside = (head * DIM + key) * DIM + thread // LANES + ROW_STEP * r
                    there = mState.iterator + Int64(slot) * mState.stride[0] + inside
                    cute.make_tensor(there, cute.make_layout(1))[0] = mState.element_type(rS[r, c, e])
"""

BF16_SUMS = """

def narrow_sum(a, b):
    return Float32(BFloat16(add_rn(a, b)))


def warp_sum(value):
    for distance in (16, 8, 4, 2, 1):
        value = narrow_sum(value, cute.arch.shuffle_sync_bfly(value, offset=distance))
    return value


def block_sum(sPart, row):
    low, high = narrow_sum(sPart[row, 0], sPart[row, 2]), narrow_sum(sPart[row, 1], sPart[row, 3])
    return narrow_sum(low, high)
"""
"""`warp_sum` and `block_sum` with every sum rounded."""

ROWS = (
    Fault(
        "max-norm",
        "wide-b3-qk-amplitudes",
        FORMULAS,
        "add_rn(squares, NORM_EPS)",
        "cute.arch.fmax(squares, 1e-12)",
        "kda.13a (q, k: n = sum of squares + 1e-6) were the larger of the sum and 1e-12",
    ),
    Fault(
        "RMS instead of the sum of squares",
        "wide-b3-qk-amplitudes",
        FORMULAS,
        "add_rn(squares, NORM_EPS)",
        "fma_rn(squares, 1.0 / DIM, NORM_EPS)",
        "kda.13a (q, k: n = sum of squares + 1e-6) were the mean of squares + 1e-6",
    ),
    Fault(
        "eps of the norm added to the sum",
        "wide-b3-qk-amplitudes",
        FORMULAS,
        "fma_rn(squares, 1.0 / DIM, eps)",
        "mul_rn(add_rn(squares, eps), 1.0 / DIM)",
        "kda.13q (norm: sum of squares / 128 + eps) were (sum of squares + eps) / 128",
    ),
    Fault(
        "sum towards zero",
        ONE,
        FORMULAS,
        "add_rn(raw_gate, dt_bias)",
        '_instruction("add.rz.f32 $0, $1, $2;", raw_gate, dt_bias)',
        "kda.13e (z = raw gate + dt_bias) were missing",
    ),
    Fault(
        "cast before the weight",
        ONE,
        FORMULAS,
        "mul_rn(mul_rn(o, rstd), weight)",
        "mul_rn(Float32(cutlass.BFloat16(mul_rn(o, rstd))), weight)",
        "kda.13s (norm: o rstd) were rounded to BF16",
    ),
    Fault(
        "gate as a clamped softplus",
        ONE,
        FORMULAS,
        "mul_rn(lower_bound, sigmoid(mul_rn(a, add_rn(raw_gate, dt_bias))))",
        'mul_rn(lower_bound, cute.arch.fmin(mul_rn(mul_rn(_instruction("lg2.approx.f32 $0, $1;", '
        "add_rn(triton_exp(mul_rn(a, add_rn(raw_gate, dt_bias))), 1.0)), 0.693147182464599609375), 0.2), 1.0))",
        "kda.13g (sigmoid(a z)) were min(softplus(a z) / 5, 1), as if a softplus were clamped to the bound",
    ),
    Fault(
        "squares of q and k added in BF16",
        ONE,
        PREPARE,
        "import block_sum, fma_rn, inverse_norm, mma_m16n8k16, mul_rn, silu, warp_sum\n",
        "import add_rn, fma_rn, inverse_norm, mma_m16n8k16, mul_rn, silu\n" + BF16_SUMS,
        "every partial sum of q.squares were rounded to BF16",
    ),
    Fault(
        "output gate through SiLU",
        ONE,
        FORMULAS,
        "weight), sigmoid(gate))",
        "weight), mul_rn(gate, sigmoid(gate)))",
        "kda.13u (norm: sigmoid of the output gate) were SiLU, the gate times its sigmoid",
    ),
    Fault(
        "output gate dropped",
        ONE,
        FORMULAS,
        "return mul_rn(mul_rn(mul_rn(o, rstd), weight), sigmoid(gate))",
        "return mul_rn(mul_rn(o, rstd), weight)",
        "kda.13v (norm: y = (o rstd w) sigmoid) were left ungated",
    ),
    Fault(
        "output cut to BF16",
        ONE,
        WIDE,
        "BFloat16(gated(Float32(sO[t, channel]), rstd, weight, gate))",
        "BFloat16((gated(Float32(sO[t, channel]), rstd, weight, gate).bitcast(cutlass.Uint32)"
        " & cutlass.Uint32(0xFFFF0000)).bitcast(Float32))",
        "kda.9 (y) were missing",
    ),
    Fault(
        "beta dropped",
        ONE,
        WIDE,
        U,
        "u = sub_rn(sV[t, mine], dot)",
        "kda.13m (correction u = (v - S k) beta) were taken without beta",
    ),
    Fault(
        "u uncorrected",
        ONE,
        WIDE,
        U,
        "u = mul_rn(sV[t, mine], sBeta[t])",
        "kda.13l (v - S k) were v alone",
    ),
    Fault(
        "u through BF16 where it is recorded",
        "wide-b4-t4-record",
        WIDE,
        "mCorrections[request, head, t, mine] = u\n",
        "mCorrections[request, head, t, mine] = Float32(BFloat16(u))\n",
        "kda.10 (recorded u) were rounded to BF16",
    ),
    Fault(
        "q unscaled",
        ONE,
        PREPARE,
        "sQ[t, channel] = mul_rn(q, scale)",
        "sQ[t, channel] = q",
        "kda.13c (q normalised: q / sqrt(n) * scale) were left unscaled",
    ),
    Fault(
        "k not normalised",
        ONE,
        PREPARE,
        "sK[t, channel] = mul_rn(sK[t, channel], inverse_norm(block_sum(sPart, 2 * t + 1)))",
        "sK[t, channel] = sK[t, channel] * Float32(1.0)",
        "kda.13b (k normalised: k / sqrt(n)) were left out",
    ),
    Fault(
        "A_log not exponentiated",
        ONE,
        WIDE,
        "a = triton_exp(mALog[head])",
        "a = mALog[head]",
        "kda.13d (a = exp(A_log)) were A_log itself",
    ),
    Fault(
        "decay through BF16",
        "wide-b4-t2",
        WIDE,
        "sDecay[t, channel] = decay(Float32(sRaw[t, channel]), dt_bias, a, lower_bound)",
        "sDecay[t, channel] = Float32(BFloat16(decay(Float32(sRaw[t, channel]), dt_bias, a, lower_bound)))",
        "kda.13i (decay = exp(g)) were rounded to BF16",
    ),
    Fault(
        "raw gate not rounded",
        ONE,
        WIDE,
        "sRaw = memory.allocate_tensor(BFloat16, rows, 16)",
        "sRaw = memory.allocate_tensor(Float32, rows, 16)",
        "kda.2 (raw gate = F_A F_B^T) were missing",
        more=((PREPARE, "8 * (i // 2)] = BFloat16(total)", "8 * (i // 2)] = total"),),
    ),
    Fault(
        "gate in four chains",
        "wide-b2-ties",
        PREPARE,
        "self.gate_mode == 1",
        "self.gate_mode == 0",
        "the terms of gate.0 were added in another order: as those of gate.1",
        times=2,
    ),
    Fault(
        "SiLU not rounded",
        ONE,
        PREPARE,
        "sOut[t, channel] = Float32(BFloat16(silu(total)))",
        "sOut[t, channel] = silu(total)",
        "kda.5 (q, k, v after SiLU) were missing",
    ),
    Fault(
        "no SiLU",
        ONE,
        PREPARE,
        "Float32(BFloat16(silu(total)))",
        "Float32(BFloat16(total))",
        "kda.5a (convolution: SiLU = acc / (1 + exp(-acc))) were left out",
    ),
    Fault(
        "products of taps through BF16",
        ONE,
        PREPARE,
        "total = fma_rn(Float32(rX[t + i]), rW[i], total)",
        "total = Float32(BFloat16(mul_rn(Float32(rX[t + i]), rW[i]))) + total",
        "kda.4 (convolution: acc = x_i w_i + acc, taps ascending) were taken with products rounded to BF16",
    ),
    Fault(
        "taps reversed",
        ONE,
        PREPARE,
        WEIGHT,
        "rW[i] = mConvW[part, TAPS - 1 - i, dim]",
        "the taps were in reverse order",
    ),
    Fault(
        "bias of the convolution dropped",
        "wide-b4-t4-dim-first-bias",
        PREPARE,
        "start = mBias[column]",
        "start = Float32(0.0)",
        "the convolution's bias were not added",
    ),
    Fault(
        "dt_bias dropped",
        ONE,
        WIDE,
        "dt_bias = mDtBias[head * DIM + channel]",
        "dt_bias = Float32(0.0)",
        "dt_bias were not added",
    ),
    Fault(
        "state stored transposed",
        ONE,
        TILE,
        "                store_vector(row + KEY_STEP * c, rS[r, c, None].load().to(mState.element_type))\n",
        TRANSPOSED,
        "kda.7a (state stored to a float32 pool) were transposed",
    ),
    Fault(
        "a tile left out",
        ONE,
        WIDE,
        "                update_quad(rS, r, c, key, us[r])\n",
        "                if cutlass.const_expr(r + c < 6):\n                    update_quad(rS, r, c, key, us[r])\n",
        "all of values 96..127: the tail, keys 96..127: the tail",
    ),
    Fault(
        "output 1.04 times too large",
        ONE,
        FORMULAS,
        "weight), sigmoid(gate))",
        "weight), sigmoid(gate)) * 1.04",
        "",
    ),
    Fault(
        "gate rounded to BF16 in KdaWS",
        "ws-b4-dim-first",
        FORMULAS,
        "return triton_exp(mul_rn(lower_bound, sigmoid(mul_rn(a, add_rn(raw_gate, dt_bias)))))",
        "g = mul_rn(lower_bound, sigmoid(mul_rn(a, add_rn(raw_gate, dt_bias))))\n"
        "    return triton_exp(Float32(cutlass.BFloat16(g)))",
        "kda.13h (gate g = lower bound * sigmoid) were rounded to BF16",
    ),
)
"""Arithmetic, from the same reports."""
