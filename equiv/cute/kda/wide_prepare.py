"""Stages of `KdaWide` that come before the recurrence: gate projection, convolution with SiLU, norms of q and k.

Letters and threads: see `wide`. Results go to shared memory, a row of 128 channels a token.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, Uint32, cute

from equiv.cute.access import load_vector
from equiv.cute.kda.formulas import block_sum, fma_rn, inverse_norm, mma_m16n8k16, mul_rn, silu, warp_sum
from equiv.errors import UsageError
from equiv.geometry.kda import DIM, RANK, TAPS

TOKEN_LIMIT = 8
CHUNK = 16
"""Columns of F_B that one matrix instruction takes."""
COLUMNS = 8
"""Token columns of one matrix instruction."""


class Preparation:
    """The stages as methods of a kernel object that says which variant they are part of."""

    heads: int
    tokens: int
    gate_mode: int
    has_bias: bool

    @cute.jit
    def project_gate(self, mFA, mFB, sRaw, request: Int32, head: Int32, tidx: Int32):
        """Raw gates F_A F_B^T of the head's 128 features and all tokens, rounded to BF16 (spec kda 1.2).

        A warp's F_B rows are the matrix A, the tokens' F_A rows the columns of B (column n is token n % T). In each
        chunk of 16 columns lane quarter q supplies columns 4 q .. + 3 to both operands, the first two as the
        instruction's k = 2 q, 2 q + 1, the others as 8 + 2 q, 9 + 2 q. Mode 0: chunks 0..7 in one chain; mode 1: chain
        j is chunks 2 j, 2 j + 1, then ((j0 + j1) + j2) + j3.
        """
        T = cutlass.const_expr(self.tokens)
        warp, lane = tidx // 32, tidx % 32
        row, quarter = lane // 4, lane % 4
        feature = head * DIM + 16 * warp + row
        low = mFB.iterator + Int64(feature) * mFB.stride[0] + 4 * quarter
        high = low + 8 * mFB.stride[0]
        column = mFA.iterator + Int64(request * T + row % T) * mFA.stride[0] + 4 * quarter
        zero = (Float32(0.0),) * 4
        chains = [zero, zero, zero, zero]
        for chunk in cutlass.range_constexpr(RANK // CHUNK):
            a0, a2 = words(low + CHUNK * chunk)
            a1, a3 = words(high + CHUNK * chunk)
            chain = chunk // 2 if self.gate_mode == 1 else 0
            chains[chain] = mma_m16n8k16((a0, a1, a2, a3), words(column + CHUNK * chunk), chains[chain])
        for i in cutlass.range_constexpr(4):
            total = chains[0][i]
            if cutlass.const_expr(self.gate_mode == 1):
                total = ((total + chains[1][i]) + chains[2][i]) + chains[3][i]
            token = 2 * quarter + i % 2
            if token < T:
                sRaw[token, 16 * warp + row + 8 * (i // 2)] = BFloat16(total)

    @cute.jit
    def convolve(
        self,
        mX,
        mConvW,
        mBias,
        mConv,
        sOut,
        request: Int32,
        head: Int32,
        slot: Int32,
        offset: Int32,
        part: cutlass.Constexpr,
        channel: Int32,
    ):
        """Convolution and SiLU of one channel of q, k or v (part 0, 1, 2) for all tokens, and its window written back.

        A chain of four fma from the bias (or +0) in ascending taps; SiLU; BF16. The window's first T + 2 columns become
        the two before the first token and the tokens' inputs.
        """
        T = cutlass.const_expr(self.tokens)
        dim = head * DIM + channel
        column = part * (self.heads * DIM) + dim
        state = mConv.iterator + Int64(slot) * mConv.stride[0] + Int64(column) * mConv.stride[1]
        rX = cute.make_rmem_tensor(T + TAPS - 1, BFloat16)
        for i in cutlass.range_constexpr(TAPS - 1):
            rX[i] = element(state + (offset + i) * mConv.stride[2])
        for t in cutlass.range_constexpr(T):
            rX[TAPS - 1 + t] = element(mX.iterator + Int64(request * T + t) * mX.stride[0] + column)
        rW = cute.make_rmem_tensor(TAPS, Float32)
        for i in cutlass.range_constexpr(TAPS):
            rW[i] = mConvW[part, i, dim]
        start = Float32(0.0)
        if cutlass.const_expr(self.has_bias):
            start = mBias[column]
        for t in cutlass.range_constexpr(T):
            total = start
            for i in cutlass.range_constexpr(TAPS):
                total = fma_rn(Float32(rX[t + i]), rW[i], total)
            sOut[t, channel] = Float32(BFloat16(silu(total)))
        for i in cutlass.range_constexpr(T + TAPS - 2):
            cute.make_tensor(state + i * mConv.stride[2], cute.make_layout(1))[0] = rX[1 + i]

    @cute.jit
    def norm_parts(self, sQ, sK, sPart, channel: Int32):
        """Each warp's part of the tokens' sums of squares: `warp_sum` of rounded squares, one channel a lane."""
        for t in cutlass.range(self.tokens):
            q, k = sQ[t, channel], sK[t, channel]
            q_part, k_part = warp_sum(mul_rn(q, q)), warp_sum(mul_rn(k, k))
            if channel % 32 == 0:
                sPart[2 * t, channel // 32] = q_part
                sPart[2 * t + 1, channel // 32] = k_part

    @cute.jit
    def normalise(self, sQ, sK, sPart, scale: Float32, channel: Int32):
        """Scales q by 1 / |q| and `scale`, k by 1 / |k|; the four warps' parts are added as `block_sum` says."""
        for t in cutlass.range(self.tokens):
            q = mul_rn(sQ[t, channel], inverse_norm(block_sum(sPart, 2 * t)))
            sQ[t, channel] = mul_rn(q, scale)
            sK[t, channel] = mul_rn(sK[t, channel], inverse_norm(block_sum(sPart, 2 * t + 1)))


def check_options(*, heads: int, tokens: int, record: bool = False, gate_mode: int = 0, window: int = 10) -> None:
    """Raises `UsageError` for constructor arguments that no KDA kernel takes."""
    if heads < 1:
        raise UsageError(f"heads must be at least 1; got heads={heads}")
    if not 1 <= tokens <= TOKEN_LIMIT:
        raise UsageError(f"tokens must be 1 to {TOKEN_LIMIT}; got tokens={tokens}")
    if record and tokens == 1:
        raise UsageError("record needs more than one token a request; got tokens=1")
    if gate_mode not in (0, 1):
        raise UsageError(f"gate_mode must be 0 (one chain) or 1 (four chains); got gate_mode={gate_mode}")
    if window < tokens + TAPS - 2:
        raise UsageError(f"window must hold tokens + 2 = {tokens + 2} columns; got window={window}")


def check_state(state: str) -> None:
    """Raises `UsageError` for a state type that is neither "f32" nor "bf16"."""
    if state not in ("f32", "bf16"):
        raise UsageError(f"state must be 'f32' or 'bf16'; got state={state!r}")


@cute.jit
def element(pointer: cute.Pointer):
    """One element of global memory."""
    return load_vector(pointer, 1)[0]


@cute.jit
def words(pointer: cute.Pointer):
    """Four BF16 of global memory, aligned to 8 bytes, as two words."""
    both = load_vector(cute.recast_ptr(pointer, dtype=Uint32), 2)
    return both[0], both[1]
