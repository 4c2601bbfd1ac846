"""The epilogue of the front's sm_100a form: partial sums to their owners, BF16 rounding, codes, scales, folded weights.

The last functions are both forms'. Thread t of 128 is channel t of the head. Where the sums lie is behind an
accumulator with one method, `load4(column)`: the sums of owned columns column .. + 3 of this thread's channel, the
slices added in ascending order.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, Uint8, Uint32, cute

from equiv.cute.access import store
from equiv.cute.convert import E4M3_MAX, e2m1x2, e4m3x2, magnitude, mxfp4_scale, pow2_ceil, reciprocal_pow2
from equiv.cute.dsa.front_cta import sync_warps
from equiv.cute.dsa.index import QUERY_FLOOR, WEIGHT_SCALE
from equiv.cute.dsa.tiling import WARPS
from equiv.cute.fixed import Fixed
from equiv.cute.shared import push4, shared_vector
from equiv.cute.warp import warp_max
from equiv.geometry.dsa import BLOCK, DIM, HEADS

GROUP = 4
"""Columns that are read at once."""
THREADS = 32 * WARPS


class MailboxColumns(Fixed):
    """Sums of an accumulator whose slices have arrived in this CTA's mailboxes."""

    def __init__(self, cta, channel: Int32):
        self.plan = cta.plan
        self.at = cta.mailbox.toint() + channel * (cta.plan.mailbox_pitch * 4)

    @cute.jit
    def load4(self, column: Int32):
        """((p0 + p1) + p2) + p3 of four columns."""
        rX = shared_vector(Float32, self.at + column * 4, GROUP).load()
        for part in cutlass.range_constexpr(1, self.plan.split):
            place = self.at + (part * DIM * self.plan.mailbox_pitch + column) * 4
            rX = rX + shared_vector(Float32, place, GROUP).load()
        return rX


@cute.jit
def send_partials(cta, rX, channel: Int32):
    """This thread's sums of all columns of the tile to the CTAs that own them, its own among them."""
    plan = cta.plan
    place = cta.mailbox + (cta.part * DIM + channel) * plan.mailbox_pitch
    for owner in cutlass.range_constexpr(plan.split):
        for column in cutlass.range_constexpr(0, plan.owned, GROUP):
            push4(place + column, rX, owner * plan.owned + column, cta.partials_full, Int32(owner))


@cute.jit
def owned_columns(cta) -> Int32:
    """How many of the columns that this CTA owns are rows of the batch; may be 0."""
    return cutlass.max(cutlass.min(cta.valid - cta.part * cta.plan.owned, cta.plan.owned), 0)


@cute.jit
def stage_weights(cta, weight: cutlass.Constexpr[int], mP, thread: Int32):
    """Brings the head weights of the owned columns into shared memory."""
    first = cta.first_row + cta.part * cta.plan.owned
    for column in cutlass.range(thread, owned_columns(cta), THREADS, unroll=1):
        cta.folds[column] = Float32(mP[first + column, weight + cta.head])


@cute.jit
def quantise_fp8(cta, accumulator, mQOut, mWOut, channel: Int32):
    """Codes and folded weights of the owned columns: one E4M3 scale for a column's 128 channels."""
    count = owned_columns(cta)
    first = cta.first_row + cta.part * cta.plan.owned
    warp = channel // 32
    for group in cutlass.range(0, count, GROUP, unroll=1):
        rX = accumulator.load4(group)
        for c in cutlass.range_constexpr(GROUP):
            amax = warp_max(magnitude(reduced(rX[c])))
            if channel % 32 == c:
                cta.amax[(group + c) * WARPS + warp] = amax
    sync_warps()
    for column in cutlass.range(channel, count, THREADS, unroll=1):
        scale = column_scale(cta, column)
        mWOut[first + column, cta.head] = folded(cta.folds[column] * scale)
        cta.folds[column] = reciprocal_pow2(scale)
    sync_warps()
    for group in cutlass.range(0, count, GROUP, unroll=1):
        rX = accumulator.load4(group)
        for c in cutlass.range_constexpr(GROUP):
            value = reduced(rX[c])
            if group + c < count:
                code = e4m3x2(value * cta.folds[group + c], Float32(0.0))
                place = mQOut.iterator + Int64(first + group + c) * mQOut.stride[0] + (cta.head * DIM + channel)
                store(place, Uint8(code))


@cute.jit
def quantise_fp4(cta, accumulator, mQOut, mWOut, channel: Int32):
    """Code pairs, block scales and weights of the owned columns: a block is the 32 channels of a warp."""
    count = owned_columns(cta)
    first = cta.first_row + cta.part * cta.plan.owned
    for group in cutlass.range(0, count, GROUP, unroll=1):
        rX = accumulator.load4(group)
        for c in cutlass.range_constexpr(GROUP):
            value = reduced(rX[c])
            inverse, byte = mxfp4_scale(warp_max(magnitude(value)))
            own = value * inverse
            pair = e2m1x2(own, cute.arch.shuffle_sync_bfly(own, offset=1))
            if group + c < count:
                row = mQOut.iterator + Int64(first + group + c) * mQOut.stride[0]
                store_fp4(row, cta.head, channel, pair, byte)
    sync_warps()
    for column in cutlass.range(channel, count, THREADS, unroll=1):
        mWOut[first + column, cta.head] = folded(cta.folds[column])


@cute.jit
def reduced(total: Float32) -> Float32:
    """The projection's value: one rounding to BF16."""
    return Float32(BFloat16(total))


@cute.jit
def column_scale(cta, column: Int32) -> Float32:
    """The E4M3 scale of an owned column, from the largest magnitude of each of its warps of channels."""
    rM = shared_vector(Float32, cta.amax.toint() + column * (4 * WARPS), WARPS).load()
    amax = Float32(QUERY_FLOOR)
    for w in cutlass.range_constexpr(WARPS):
        amax = cute.arch.fmax(amax, rM[w])
    return pow2_ceil(amax / Float32(E4M3_MAX))


@cute.jit
def store_fp4(row: cute.Pointer, head: Int32, channel: Int32, pair: Uint32, byte: Uint32):
    """A channel's part of `row` of the query: of two channels the first writes their codes, of 32 their scale."""
    if channel % 2 == 0:
        store(row + (head * (DIM // 2) + channel // 2), Uint8(pair))
    if channel % BLOCK == 0:
        store(row + (HEADS * DIM // 2 + head * (DIM // BLOCK)) + channel // BLOCK, Uint8(byte))


@cute.jit
def folded(weight: Float32) -> BFloat16:
    """A head weight times 2^-6."""
    return BFloat16(weight * Float32(WEIGHT_SCALE))
