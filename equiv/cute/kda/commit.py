"""`RecoverCommit`: a record's accepted tokens folded into the state, and the window compacted (spec kda 1.7).

The fold is the recurrence once more with the recorded corrections u: token by token `S = fma(k, u, rn(S decay))`, with
keys and decays recomputed from the record by the step's own formulas and orders. So the state after a commit of n
tokens has the bits that the sequential step leaves after n tokens. (Stock folds backwards: the same in exact
arithmetic.)

A CTA of 256 threads owns an item, one head of one request. Thread c < 128 is channel c of the keys, of the windows of q
and k, and of u; thread 128 + c channel c of the decays and of the window of v; the state is shared out as `tile` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute

from equiv.cute.kda.formulas import block_sum, decay, inverse_norm, mul_rn, triton_exp, warp_sum
from equiv.cute.kda.tile import (
    LANES,
    QUADS,
    ROW_STEP,
    ROWS,
    THREADS,
    load_tile,
    make_tile,
    quad,
    scale_quad,
    store_tile,
    update_quad,
)
from equiv.cute.kda.wide_prepare import check_options, check_state, element
from equiv.geometry.kda import DIM, TAPS

if TYPE_CHECKING:
    from collections.abc import Hashable


class RecoverCommit:
    """Commits the first counts[b] tokens of request b's record to one slot, and fewer of them to a second one.

    Args:
        heads: H. tokens: T of the record, 2 to 8. conv_dim_first: the window lies [slot, 3 D, window] in memory.
        state: "f32" or "bf16", the type of the state pool.

    Operands of the call, in order (B requests, D = 128 H; dense but for the strides of the two pools):
        conv state: BF16 [slots, 3 D, window]. state: FP32 or BF16 [slots, H, 128, 128]. corrections: FP32
        [B, H, T, 128]. key/gate: BF16 [B, H, T, 256]. A_log: FP32 [H]. dt_bias: FP32 [D]. slots: int32 [B, 1], the
        source. counts, final, boundary, boundary counts: int32 [B]. lower bound: float32. stream: CUDA stream.

    With n = counts[b]: columns n - 1, n, n + 1 of the source's window become columns 0, 1, 2 of slot final[b], and the
    source's state with n tokens folded becomes final[b]'s; likewise m = boundary_counts[b] <= n tokens and boundary[b]
    if both are positive. final[b] may be the source. Nothing happens for a request whose source, final slot or count is
    not positive. Records of absent requests, and of tokens from n on, are not read.

    Raises:
        UsageError: an argument outside the range above.
    """

    def __init__(self, heads: int, tokens: int, conv_dim_first: bool = False, state: str = "f32"):
        check_options(heads=heads, tokens=tokens, record=True)
        check_state(state)
        self.heads = heads
        self.tokens = tokens
        self.conv_dim_first = conv_dim_first
        self.state = state

    @property
    def variant(self) -> tuple[Hashable, ...]:
        """What distinguishes the generated code of two instances."""
        return (self.heads, self.tokens, self.conv_dim_first, self.state)

    @cute.jit
    def __call__(
        self,
        mConv: cute.Tensor,
        mState: cute.Tensor,
        mCorrections: cute.Tensor,
        mKeyGate: cute.Tensor,
        mALog: cute.Tensor,
        mDtBias: cute.Tensor,
        mSlots: cute.Tensor,
        mCounts: cute.Tensor,
        mFinal: cute.Tensor,
        mBoundary: cute.Tensor,
        mBoundaryCounts: cute.Tensor,
        lower_bound: Float32,
        stream,
    ):
        """One launch; being a programmatic dependent one it may start before its predecessor ends."""
        self.kernel(
            mConv,
            mState,
            mCorrections,
            mKeyGate,
            mALog,
            mDtBias,
            mSlots,
            mCounts,
            mFinal,
            mBoundary,
            mBoundaryCounts,
            lower_bound,
        ).launch(
            grid=(self.heads, mSlots.shape[0], 1),
            block=(THREADS, 1, 1),
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=2,
        )

    @cute.kernel
    def kernel(
        self,
        mConv: cute.Tensor,
        mState: cute.Tensor,
        mCorrections: cute.Tensor,
        mKeyGate: cute.Tensor,
        mALog: cute.Tensor,
        mDtBias: cute.Tensor,
        mSlots: cute.Tensor,
        mCounts: cute.Tensor,
        mFinal: cute.Tensor,
        mBoundary: cute.Tensor,
        mBoundaryCounts: cute.Tensor,
        lower_bound: Float32,
    ):
        """Grid (H, B), 256 threads."""
        T = cutlass.const_expr(self.tokens)
        memory = cutlass.memory.SmemAllocator()
        rows = cute.make_layout((T, DIM), stride=(DIM, 1))
        sK = memory.allocate_tensor(Float32, rows, 16)
        sU = memory.allocate_tensor(Float32, rows, 16)
        sDecay = memory.allocate_tensor(Float32, rows, 16)
        sPart = memory.allocate_tensor(Float32, cute.make_layout((T, 4), stride=(4, 1)), 16)
        tidx, _, _ = cute.arch.thread_idx()
        head, request, _ = cute.arch.block_idx()
        half, channel = tidx // DIM, tidx % DIM
        cute.arch.griddepcontrol_wait()
        source, final, count = mSlots[request, 0], mFinal[request], mCounts[request]
        if (source > 0) & (final > 0) & (count > 0):
            second, second_count = mBoundary[request], mBoundaryCounts[request]
            if second_count <= 0:
                second = Int32(0)
            rS = make_tile()
            load_tile(mState, rS, source, head, tidx)
            if half == 0:
                for part in cutlass.range_constexpr(2):
                    compact(mConv, head, channel, part, source, final, count, second, second_count)
                for t in cutlass.range(count):
                    key = Float32(mKeyGate[request, head, t, channel])
                    sK[t, channel] = key
                    sU[t, channel] = mCorrections[request, head, t, channel]
                    squares = warp_sum(mul_rn(key, key))
                    if channel % 32 == 0:
                        sPart[t, channel // 32] = squares
            else:
                compact(mConv, head, channel, 2, source, final, count, second, second_count)
                a, dt_bias = triton_exp(mALog[head]), mDtBias[head * DIM + channel]
                for t in cutlass.range(count):
                    raw = Float32(mKeyGate[request, head, t, DIM + channel])
                    sDecay[t, channel] = decay(raw, dt_bias, a, lower_bound)
            cute.arch.barrier()
            if half == 0:
                for t in cutlass.range(count):
                    sK[t, channel] = mul_rn(sK[t, channel], inverse_norm(block_sum(sPart, t)))
            cute.arch.barrier()
            for t in cutlass.range(count):
                fold(rS, sK, sU, sDecay, t, tidx)
                if t + 1 == second_count:
                    store_tile(mState, rS, second, head, tidx)
            store_tile(mState, rS, final, head, tidx)
        cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def fold(rS, sK, sU, sDecay, t: Int32, tidx: Int32):
    """One token: S = fma(k, u, rn(S decay)) of every element."""
    group, lane = tidx // LANES, tidx % LANES
    us = [sU[t, group + ROW_STEP * r] for r in range(ROWS)]
    for c in cutlass.range_constexpr(QUADS):
        factor, key = quad(sDecay, t, lane, c), quad(sK, t, lane, c)
        for r in cutlass.range_constexpr(ROWS):
            scale_quad(rS, r, c, factor)
            update_quad(rS, r, c, key, us[r])


@cute.jit
def compact(
    mConv,
    head: Int32,
    channel: Int32,
    part: cutlass.Constexpr,
    source: Int32,
    final: Int32,
    count: Int32,
    second: Int32,
    second_count: Int32,
):
    """Three window columns of one channel of q, k or v (part 0, 1, 2) to each destination, all read before."""
    column = Int64(part * (mConv.shape[1] // 3) + head * DIM + channel) * mConv.stride[1]
    rMost = cute.make_rmem_tensor(TAPS - 1, BFloat16)
    rSome = cute.make_rmem_tensor(TAPS - 1, BFloat16)
    for i in cutlass.range_constexpr(TAPS - 1):
        rMost[i] = element(window_at(mConv, source, column, count - 1 + i))
        rSome[i] = rMost[i]
        if second > 0:
            rSome[i] = element(window_at(mConv, source, column, second_count - 1 + i))
    for i in cutlass.range_constexpr(TAPS - 1):
        cute.make_tensor(window_at(mConv, final, column, i), cute.make_layout(1))[0] = rMost[i]
        if second > 0:
            cute.make_tensor(window_at(mConv, second, column, i), cute.make_layout(1))[0] = rSome[i]


@cute.jit
def window_at(mConv, slot: Int32, column: Int64, index: Int32):
    """Address of window column `index` of a slot; `column` is the channel's distance from the slot's first."""
    return mConv.iterator + Int64(slot) * mConv.stride[0] + column + index * mConv.stride[2]
