"""`KdaWide`: one decode step of KDA in one launch, the plain form of `KdaWS` (spec kda 1.10, kernels 2).

Letters: B requests, T tokens, H heads, D = 128 H. A CTA of 256 threads owns an item, one head of one request: it takes
the item's [128, 128] state into registers, prepares the tokens' operands in shared memory, runs the recurrence over
the tokens, and normalises the outputs. Formulas and roundings are stock's; sums are ordered as the methods say.

Who owns what. Preparation: thread c < 128 is channel c of q and of k, thread 128 + c channel c of v and of the decay,
warp w the features 16 w .. + 15 of the F_B projection. Recurrence: thread t has the part of the state that `tile` gives
it, four rows' 16 keys each. Norm: thread 128 h + c is channel c of the tokens t with t % 2 = h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, cute

from equiv.cute.kda.formulas import (
    block_sum,
    decay,
    gated,
    inverse_rms,
    mul_rn,
    row_sum,
    sigmoid,
    sub_rn,
    triton_exp,
    warp_sum,
)
from equiv.cute.kda.tile import (
    LANES,
    QUADS,
    ROW_STEP,
    ROWS,
    THREADS,
    accumulate,
    joined,
    load_tile,
    make_tile,
    quad,
    scale_quad,
    store_tile,
    update_quad,
)
from equiv.cute.kda.wide_prepare import Preparation, check_options, check_state
from equiv.errors import UsageError
from equiv.geometry.kda import DIM

if TYPE_CHECKING:
    from collections.abc import Hashable


class KdaWide(Preparation):
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
        check_state(state)
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
            rS = make_tile()
            load_tile(mState, rS, source, head, tidx)
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
                    store_tile(mState, rS, mSlots[request, t], head, tidx)
            cute.arch.barrier()
            self.norm_and_gate(sO, sPart, mY, mGate, mNormW, eps, request, head, half, channel)
        else:
            for t in cutlass.range(half, T, 2):
                mY[request * T + t, head * DIM + channel] = BFloat16(0.0)
        cute.arch.griddepcontrol_launch_dependents()

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

        Both dots: four accumulators a lane (`accumulate`), `joined`, then `row_sum` over the row's 8 lanes. Lane l
        computes u and o of row l // 2 of the thread's four.
        """
        group, lane = tidx // LANES, tidx % LANES
        mine = group + ROW_STEP * (lane // 2)
        dots = [None] * ROWS
        for c in cutlass.range_constexpr(QUADS):
            factor, key = quad(sDecay, t, lane, c), quad(sK, t, lane, c)
            for r in cutlass.range_constexpr(ROWS):
                scale_quad(rS, r, c, factor)
                dots[r] = accumulate(rS, r, c, key, dots[r])
        dot = row_sum(*(joined(one) for one in dots), lane)
        u = mul_rn(sub_rn(sV[t, mine], dot), sBeta[t])
        if cutlass.const_expr(self.record):  # noqa: SIM102  decided while tracing, the inner one on the device
            if lane % 2 == 0:
                mCorrections[request, head, t, mine] = u
        us = [cute.arch.shuffle_sync(u, offset=(tidx % 32 - lane) + 2 * r) for r in range(ROWS)]
        outs = [None] * ROWS
        for c in cutlass.range_constexpr(QUADS):
            key, query = quad(sK, t, lane, c), quad(sQ, t, lane, c)
            for r in cutlass.range_constexpr(ROWS):
                update_quad(rS, r, c, key, us[r])
                outs[r] = accumulate(rS, r, c, query, outs[r])
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
