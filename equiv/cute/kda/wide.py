"""`KdaWide`: one decode step of KDA in one launch, the plain form of `KdaWS` (spec kda 1.10, kernels 2).

Letters: B requests, T tokens, H heads, D = 128 H. A CTA of 256 threads owns an item, one head of one request: it takes
the item's [128, 128] state into registers, prepares the tokens' operands in shared memory, runs the recurrence over
the tokens, and normalises the outputs. Formulas and roundings are stock's; sums are ordered as the methods say.

Who owns what. Preparation: thread c < 128 is channel c of q and of k, thread 128 + c channel c of v and of the decay,
warp w the features 16 w .. + 15 of the F_B projection. Recurrence: thread (g, l), g = thread // 8, l = thread % 8, owns
value rows g + 32 r (r < 4) and keys 4 (l + 8 c) + e (c < 4, e < 4). Norm: thread 128 h + c is channel c of the
tokens t with t % 2 = h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, Uint32, cute

from equiv.cute.access import load_vector, store_vector
from equiv.cute.kda.formulas import (
    add2,
    block_sum,
    decay,
    fma2,
    fma_rn,
    gated,
    inverse_norm,
    inverse_rms,
    mma_m16n8k16,
    mul2,
    mul_rn,
    row_sum,
    sigmoid,
    silu,
    sub_rn,
    triton_exp,
    warp_sum,
)
from equiv.errors import UsageError
from equiv.geometry.kda import DIM, RANK, TAPS

if TYPE_CHECKING:
    from collections.abc import Hashable

THREADS = 256
LANES = 8
"""Threads that share a state row."""
ROWS = 4
"""State rows a thread owns."""
QUADS = 4
"""Groups of four neighbouring keys that a thread owns of a row."""
TOKEN_LIMIT = 8
CHUNK = 16
"""Columns of F_B that one matrix instruction takes."""
COLUMNS = 8
"""Token columns of one matrix instruction."""


class KdaWide:
    """One KDA step of uniform T tokens a request: convolution, gate projection, recurrence, gated norm.

    Args:
        heads: H. tokens: T, 1 to 8. record: RecoverSSM verify (T > 1): the state is read, not written; the corrected
            values, keys and raw gates are recorded for `RecoverCommit`.
        gate_mode: order of the F_B projection: 0 one chain of matrix instructions over the columns, 1 four chains.
        has_bias: the convolution has a bias.
        conv_dim_first: the convolution window lies [slot, 3 D, window] in memory instead of [slot, window, 3 D].
        window: columns of the convolution state, at least T + 2.
        ctas: 0, one CTA an item; the parameter is there for `KdaWS`'s sake.
        state: "f32" or "bf16", the type of the state pool.

    Operands of the call, in order; [M] = B * T rows, row b * T + t is token t of request b; strides are free but for
    unit ones in the last dimension (of the window: in the one that `conv_dim_first` names):
        0 x: BF16 [M, 3 D], columns q | k | v. 1 conv weight: FP32 [3, 4, D], dense. 2 bias: FP32 [3 D].
        3 conv state: BF16 [slots, 3 D, window]. 4 F_A: BF16 [M, 128]. 5 beta: BF16 [M, H]. 6 A_log: FP32 [H].
        7 dt_bias: FP32 [D]. 8 slots: int32 [B, T] (record: [B, 1]). 9 state: FP32 or BF16 [slots, H, 128, 128] (value
        rows, keys dense; only the slots' stride is free). 10 output: BF16 [M, D]. 11 output gate: BF16 [M, D].
        12 norm weight: FP32 [128]. 13 lower bound, 14 scale, 15 eps: float32. 16 F_B: BF16 [D, 128].
        17 accepted: int32 [B] in 1..T (read if T > 1 and not record). 18 corrections: FP32 [B, H, T, 128].
        19 key/gate: BF16 [B, H, T, 256] (both: record only). stream: CUDA stream.
    Operands that a variant does not read (2, 17, 18, 19) may be any tensor of their type and rank.

    Token t of a request reads its state from slots[b, accepted - 1] (record: slots[b, 0]) and leaves the state after it
    in slots[b, t] if that is positive; the window is always that of slots[b, 0], read at column accepted - 1. A request
    without a positive slot to read from gets +0 in all its T output rows, and nothing else is written for it.

    Raises:
        UsageError: an argument outside the range above.
    """

    def __init__(
        self,
        heads: int,
        tokens: int,
        record: bool = False,
        gate_mode: int = 0,
        has_bias: bool = False,
        conv_dim_first: bool = False,
        window: int = 3,
        ctas: int = 0,
        state: str = "f32",
    ):
        check_options(heads=heads, tokens=tokens, record=record, gate_mode=gate_mode, window=window)
        if ctas:
            raise UsageError(f"ctas must be 0 for KdaWide, which gives every item a CTA; got ctas={ctas}")
        if state not in ("f32", "bf16"):
            raise UsageError(f"state must be 'f32' or 'bf16'; got state={state!r}")
        self.heads = heads
        self.tokens = tokens
        self.record = record
        self.gate_mode = gate_mode
        self.has_bias = has_bias
        self.conv_dim_first = conv_dim_first
        self.window = window
        self.state = state
        self.speculative = tokens > 1 and not record

    @property
    def variant(self) -> tuple[Hashable, ...]:
        """What distinguishes the generated code of two instances."""
        return (
            self.heads,
            self.tokens,
            self.record,
            self.gate_mode,
            self.has_bias,
            self.conv_dim_first,
            self.window,
            self.state,
        )

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,
        mConvW: cute.Tensor,
        mBias: cute.Tensor,
        mConv: cute.Tensor,
        mFA: cute.Tensor,
        mBeta: cute.Tensor,
        mALog: cute.Tensor,
        mDtBias: cute.Tensor,
        mSlots: cute.Tensor,
        mState: cute.Tensor,
        mY: cute.Tensor,
        mGate: cute.Tensor,
        mNormW: cute.Tensor,
        lower_bound: Float32,
        scale: Float32,
        eps: Float32,
        mFB: cute.Tensor,
        mAccepted: cute.Tensor,
        mCorrections: cute.Tensor,
        mKeyGate: cute.Tensor,
        stream,
    ):
        """One launch; being a programmatic dependent one it may start before its predecessor ends."""
        self.kernel(
            mX,
            mConvW,
            mBias,
            mConv,
            mFA,
            mBeta,
            mALog,
            mDtBias,
            mSlots,
            mState,
            mY,
            mGate,
            mNormW,
            lower_bound,
            scale,
            eps,
            mFB,
            mAccepted,
            mCorrections,
            mKeyGate,
        ).launch(
            grid=(self.heads, mSlots.shape[0], 1),
            block=(THREADS, 1, 1),
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=2 if self.tokens == 1 else 1,
        )

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mConvW: cute.Tensor,
        mBias: cute.Tensor,
        mConv: cute.Tensor,
        mFA: cute.Tensor,
        mBeta: cute.Tensor,
        mALog: cute.Tensor,
        mDtBias: cute.Tensor,
        mSlots: cute.Tensor,
        mState: cute.Tensor,
        mY: cute.Tensor,
        mGate: cute.Tensor,
        mNormW: cute.Tensor,
        lower_bound: Float32,
        scale: Float32,
        eps: Float32,
        mFB: cute.Tensor,
        mAccepted: cute.Tensor,
        mCorrections: cute.Tensor,
        mKeyGate: cute.Tensor,
    ):
        """Grid (H, B), 256 threads."""
        T = cutlass.const_expr(self.tokens)
        memory = cutlass.memory.SmemAllocator()
        rows = cute.make_layout((T, DIM), stride=(DIM, 1))
        sQ = memory.allocate_tensor(Float32, rows, 16)
        sK = memory.allocate_tensor(Float32, rows, 16)
        sV = memory.allocate_tensor(Float32, rows, 16)
        sDecay = memory.allocate_tensor(Float32, rows, 16)
        sO = memory.allocate_tensor(BFloat16, rows, 16)
        sRaw = memory.allocate_tensor(BFloat16, rows, 16)
        sBeta = memory.allocate_tensor(Float32, cute.make_layout(T), 16)
        sPart = memory.allocate_tensor(Float32, cute.make_layout((2 * T, 4), stride=(4, 1)), 16)
        tidx, _, _ = cute.arch.thread_idx()
        head, request, _ = cute.arch.block_idx()
        half, channel = tidx // DIM, tidx % DIM
        cute.arch.griddepcontrol_wait()
        offset = Int32(0)
        if cutlass.const_expr(self.speculative):
            offset = mAccepted[request] - 1
        window_slot = mSlots[request, 0]
        source = mSlots[request, offset]
        if (source > 0) & (window_slot > 0):
            rS = cute.make_rmem_tensor(cute.make_layout((ROWS, QUADS, 4), stride=(4 * QUADS, 4, 1)), Float32)
            self.load_state(mState, rS, source, head, tidx)
            self.project_gate(mFA, mFB, sRaw, request, head, tidx)
            if half == 0:
                self.convolve(mX, mConvW, mBias, mConv, sQ, request, head, window_slot, offset, 0, channel)
                self.convolve(mX, mConvW, mBias, mConv, sK, request, head, window_slot, offset, 1, channel)
                self.norm_parts(sQ, sK, sPart, channel)
            else:
                self.convolve(mX, mConvW, mBias, mConv, sV, request, head, window_slot, offset, 2, channel)
            cute.arch.barrier()
            if cutlass.const_expr(self.record):
                self.record_key_gate(mKeyGate, sK, sRaw, request, head, half, channel)
            if half == 0:
                self.normalise(sQ, sK, sPart, scale, channel)
            else:
                a = triton_exp(mALog[head])
                dt_bias = mDtBias[head * DIM + channel]
                for t in cutlass.range(T):
                    sDecay[t, channel] = decay(Float32(sRaw[t, channel]), dt_bias, a, lower_bound)
                if channel < T:
                    sBeta[channel] = sigmoid(Float32(mBeta[request * T + channel, head]))
            cute.arch.barrier()
            for t in cutlass.range(T, unroll=1):
                self.step(rS, sQ, sK, sV, sDecay, sBeta, sO, mCorrections, t, request, head, tidx)
                if cutlass.const_expr(not self.record):
                    self.store_state(mState, rS, mSlots[request, t], head, tidx)
            cute.arch.barrier()
            self.norm_and_gate(sO, sPart, mY, mGate, mNormW, eps, request, head, half, channel)
        else:
            for t in cutlass.range(half, T, 2):
                mY[request * T + t, head * DIM + channel] = BFloat16(0.0)
        cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def state_row(self, mState, slot: Int32, head: Int32, row: Int32, lane: Int32):
        """Address of the first key that a thread owns of a state row; its quads lie 32 keys apart."""
        return mState.iterator + Int64(slot) * mState.stride[0] + ((head * DIM + row) * DIM + 4 * lane)

    @cute.jit
    def load_state(self, mState, rS, slot: Int32, head: Int32, tidx: Int32):
        """This thread's 64 state elements as float32."""
        for r in cutlass.range_constexpr(ROWS):
            row = self.state_row(mState, slot, head, tidx // LANES + 32 * r, tidx % LANES)
            for c in cutlass.range_constexpr(QUADS):
                rS[r, c, None].store(load_vector(row + 32 * c, 4).to(Float32))

    @cute.jit
    def store_state(self, mState, rS, slot: Int32, head: Int32, tidx: Int32):
        """This thread's 64 state elements into a slot, nothing for a slot that is not positive; BF16: nearest even."""
        if slot > 0:
            for r in cutlass.range_constexpr(ROWS):
                row = self.state_row(mState, slot, head, tidx // LANES + 32 * r, tidx % LANES)
                for c in cutlass.range_constexpr(QUADS):
                    store_vector(row + 32 * c, rS[r, c, None].load().to(mState.element_type))

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

    @cute.jit
    def record_key_gate(self, mKeyGate, sK, sRaw, request: Int32, head: Int32, half: Int32, channel: Int32):
        """The keys before their norm and the raw gates of all tokens; each thread records what it scales or decays."""
        for t in cutlass.range(self.tokens):
            if half == 0:
                mKeyGate[request, head, t, channel] = BFloat16(sK[t, channel])
            else:
                mKeyGate[request, head, t, DIM + channel] = sRaw[t, channel]

    @cute.jit
    def step(
        self,
        rS,
        sQ,
        sK,
        sV,
        sDecay,
        sBeta,
        sO,
        mCorrections,
        t: Int32,
        request: Int32,
        head: Int32,
        tidx: Int32,
    ):
        """One token of the recurrence: decay, u = (v - S k) beta, S += u k^T, o = S q rounded to BF16.

        Both dots: accumulator e of a lane is an fma chain over c (the first product rounded), (e0 + e2) + (e1 + e3),
        then `row_sum` over the 8 lanes. Lane l computes u and o of row l // 2 of the thread's four.
        """
        group, lane = tidx // LANES, tidx % LANES
        mine = group + 32 * (lane // 2)
        dots = [None] * ROWS
        for c in cutlass.range_constexpr(QUADS):
            d, k = quad(sDecay, t, lane + LANES * c), quad(sK, t, lane + LANES * c)
            for r in cutlass.range_constexpr(ROWS):
                for e in cutlass.range_constexpr(0, 4, 2):
                    rS[r, c, e], rS[r, c, e + 1] = mul2((rS[r, c, e], rS[r, c, e + 1]), d[e // 2])
                dots[r] = accumulate(rS, r, c, k, dots[r])
        dot = row_sum(*(joined(one) for one in dots), lane)
        u = mul_rn(sub_rn(sV[t, mine], dot), sBeta[t])
        if cutlass.const_expr(self.record):  # noqa: SIM102  decided while tracing, the inner one on the device
            if lane % 2 == 0:
                mCorrections[request, head, t, mine] = u
        us = [cute.arch.shuffle_sync(u, offset=(tidx % 32 - lane) + 2 * r) for r in range(ROWS)]
        outs = [None] * ROWS
        for c in cutlass.range_constexpr(QUADS):
            k, q = quad(sK, t, lane + LANES * c), quad(sQ, t, lane + LANES * c)
            for r in cutlass.range_constexpr(ROWS):
                for e in cutlass.range_constexpr(0, 4, 2):
                    rS[r, c, e], rS[r, c, e + 1] = fma2(k[e // 2], (us[r], us[r]), (rS[r, c, e], rS[r, c, e + 1]))
                outs[r] = accumulate(rS, r, c, q, outs[r])
        out = row_sum(*(joined(one) for one in outs), lane)
        if lane % 2 == 0:
            sO[t, mine] = BFloat16(out)

    @cute.jit
    def norm_and_gate(
        self, sO, sPart, mY, mGate, mNormW, eps: Float32, request: Int32, head: Int32, half: Int32, channel: Int32
    ):
        """Gated RMSNorm of the BF16 outputs, and the output rows; the squares are summed like those of q and k."""
        T = cutlass.const_expr(self.tokens)
        for t in cutlass.range(half, T, 2):
            o = Float32(sO[t, channel])
            part = warp_sum(mul_rn(o, o))
            if channel % 32 == 0:
                sPart[t, channel // 32] = part
        cute.arch.barrier()
        weight = mNormW[channel]
        dim = head * DIM + channel
        for t in cutlass.range(half, T, 2):
            rstd = inverse_rms(block_sum(sPart, t), eps)
            gate = Float32(mGate[request * T + t, dim])
            mY[request * T + t, dim] = BFloat16(gated(Float32(sO[t, channel]), rstd, weight, gate))


def check_options(*, heads: int, tokens: int, record: bool, gate_mode: int, window: int) -> None:
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


@cute.jit
def element(pointer: cute.Pointer):
    """One element of global memory."""
    return load_vector(pointer, 1)[0]


@cute.jit
def words(pointer: cute.Pointer):
    """Four BF16 of global memory, aligned to 8 bytes, as two words."""
    both = load_vector(cute.recast_ptr(pointer, dtype=Uint32), 2)
    return both[0], both[1]


@cute.jit
def quad(sOperand, t: Int32, index: Int32):
    """Keys 4 * index .. + 3 of a token's operand row, as two pairs."""
    four = cute.local_tile(sOperand[t, None], (4,), (index,)).load()
    return (four[0], four[1]), (four[2], four[3])


def accumulate(rS, r: int, c: int, operand, total):
    """One quad's products of row r added to the four accumulators (two pairs); the first quad's start them."""
    pairs = [(rS[r, c, e], rS[r, c, e + 1]) for e in (0, 2)]
    if total is None:
        return [mul2(pair, one) for pair, one in zip(pairs, operand, strict=True)]
    return [fma2(pair, one, before) for pair, one, before in zip(pairs, operand, total, strict=True)]


def joined(total) -> Float32:
    """(e0 + e2) + (e1 + e3) of the four accumulators."""
    low, high = add2(total[0], total[1])
    return low + high
