"""The epilogue of the front's Hopper form: a thread holds the sums of one channel and some columns in registers.

Threads 0 .. 127 have the first half of the owned columns, the others the second; thread t has channel t mod 128.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, Uint32, cute

from equiv.cute.access import store
from equiv.cute.convert import e2m1x2, e4m3x4, magnitude, mxfp4_scale, reciprocal_pow2
from equiv.cute.dsa.front_epilogue import column_scale, folded, reduced, store_fp4
from equiv.cute.dsa.hopper_cta import COLUMNS_BARRIER
from equiv.cute.dsa.tiling import WARPS
from equiv.cute.row_norm import row_of
from equiv.cute.warp import warp_max, warp_maxima
from equiv.geometry.dsa import DIM

GROUP = 4
"""Channels whose codes are written at once."""
THREADS = 32 * WARPS
"""Those that share columns."""


@cute.jit
def quantise_fp8(cta, rX, mQOut, mWOut, weight: BFloat16, first: Int32, thread: Int32):
    """Codes and folded weights of owned columns `first` and following: one E4M3 scale for a column's 128 channels.

    `weight` is the head weight of the lane's column, `lane_column`.
    """
    count = cute.size(rX)
    channel, lane, warp = thread % THREADS, thread % 32, thread % THREADS // 32
    rValue = cute.make_rmem_tensor(count, Float32)
    for c in cutlass.range_constexpr(count):
        rValue[c] = reduced(rX[c])
    lanes = lanes_of(count)
    padded = [magnitude(rValue[c]) if c < count else Uint32(0) for c in range(32 // lanes)]
    amax = warp_maxima(padded, lane)
    own = first + lane_column(count, lane)
    leads = lane % lanes == 0 and lane < count * lanes
    if leads:
        cta.amax[own * WARPS + warp] = amax
    cute.arch.barrier(barrier_id=COLUMNS_BARRIER + thread // THREADS, number_of_threads=THREADS)
    scale = column_scale(cta, own)
    inverse = reciprocal_pow2(scale)
    valid = cta.owned_columns()
    for group in cutlass.range_constexpr(0, count, GROUP):
        # Columns that are not there are of no lane that writes.
        columns = [min(group + c, count - 1) for c in range(GROUP)]
        codes = transposed(e4m3x4(*[rValue[c] * cute.arch.shuffle_sync(inverse, c * lanes) for c in columns]), lane)
        column = group + lane % GROUP
        if column < count and first + column < valid:
            place = row_of(mQOut, cta.first_owned + first + column) + (cta.head * DIM + channel // GROUP * GROUP)
            store(place, codes)
    if warp == 0 and leads and own < valid:
        mWOut[cta.first_owned + own, cta.head] = folded(Float32(weight) * scale)


@cute.jit
def quantise_fp4(cta, rX, mQOut, mWOut, weight: BFloat16, first: Int32, thread: Int32):
    """The same for code pairs and block scales: a block is the 32 channels of a warp."""
    count = cute.size(rX)
    channel, lane, warp = thread % THREADS, thread % 32, thread % THREADS // 32
    valid = cta.owned_columns()
    for c in cutlass.range_constexpr(count):
        value = reduced(rX[c])
        inverse, byte = mxfp4_scale(warp_max(magnitude(value)))
        own = value * inverse
        pair = e2m1x2(own, cute.arch.shuffle_sync_bfly(own, offset=1))
        if first + c < valid:
            store_fp4(row_of(mQOut, cta.first_owned + first + c), cta.head, channel, pair, byte)
    lanes = lanes_of(count)
    column = first + lane_column(count, lane)
    if warp == 0 and lane % lanes == 0 and lane < count * lanes and column < valid:
        mWOut[cta.first_owned + column, cta.head] = folded(Float32(weight))


@cute.jit
def transposed(word: Uint32, lane: Int32) -> Uint32:
    """Four lanes have a word of four bytes each; lane i of them gets byte i of all, the first lane's lowest."""
    other = cute.arch.shuffle_sync_bfly(word, offset=1)
    half = bytes_of(word, other, 0x6240)
    if lane % 2 == 1:
        half = bytes_of(word, other, 0x3715)
    other = cute.arch.shuffle_sync_bfly(half, offset=2)
    whole = bytes_of(half, other, 0x5410)
    if lane // 2 % 2 == 1:
        whole = bytes_of(half, other, 0x3276)
    return whole


def bytes_of(low: Uint32, high: Uint32, which: int) -> Uint32:
    """Four of eight bytes, each chosen by four bits of `which`."""
    return cute.arch.inline_ptx(
        f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {which:#x};", write_only_types=[Uint32], read_only_args=[low, high]
    )


def lanes_of(count: int) -> int:
    """How many neighbouring lanes care for one of a warp's columns."""
    return 32 >> (count - 1).bit_length()


def lane_column(count: int, lane: Int32) -> Int32:
    """The column that a lane cares for; lanes left over have the last one."""
    return cutlass.min(lane // lanes_of(count), count - 1)


@cute.jit
def head_weight(cta, weight: cutlass.Constexpr[int], mP, column: Int32) -> BFloat16:
    """The head's weight of an owned column; of the batch's last row if the column is past it."""
    row = cutlass.min(cta.first_owned + column, cta.batch - 1)
    return mP[row, weight + cta.head]
