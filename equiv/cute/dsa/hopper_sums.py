"""The sums of the front's Hopper form: `wgmma` on a CTA's slice, and the exchange of partial sums in a cluster.

Every CTA sends its fragments into the mailboxes of the CTAs that own the columns, and these add the slices in order.
A mailbox lies where weights were; that they have been multiplied is told to all CTAs of the cluster on the way.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from equiv.cute.dsa.front_load import SWIZZLE
from equiv.cute.dsa.hopper_cta import meet_workers
from equiv.cute.dsa.tiling import BLOCK_COLUMNS
from equiv.cute.shared import push4, shared_vector
from equiv.geometry.dsa import DIM

GROUP = 4
"""Columns that are sent at once."""
SPREAD = {2: 4, 4: 2}
"""Groups of a channel -> neighbouring channels that have the same permutation; eight of them are read at once."""


@cute.jit
def multiply(cta, rows, thread: Int32):
    """All products of the slice in steps of 16 columns in ascending order; this thread's fragment of the sums.

    `rows` (`hopper_rows.Rows`) are stored as they are needed, so that the ring, where it is short, turns early.
    """
    plan = cta.plan
    tiled = products(plan.n)
    slices = tiled.get_slice(thread)
    rW = tiled.make_fragment_A(slices.partition_A(operand(cta.weights, DIM, plan.stages)))
    rX = tiled.make_fragment_B(slices.partition_B(operand(cta.rows, plan.n, plan.blocks)))
    rSum = cute.make_rmem_tensor(tiled.partition_shape_C((DIM, plan.n)), Float32)
    for block in cutlass.range_constexpr(plan.blocks):
        stage = block % plan.stages
        if cutlass.const_expr(block % plan.together == 0):
            rows.store(block // 2, plan.together // 2)
            meet_workers()
        cute.arch.mbarrier_wait(cta.weights_full(stage), block // plan.stages & 1)
        warpgroup.fence()
        for step in cutlass.range_constexpr(cute.size(rW, mode=[2])):
            tiled.set(warpgroup.Field.ACCUMULATE, block + step > 0)
            cute.gemm(tiled, rSum, rW[None, None, step, stage], rX[None, None, step, block], rSum)
        warpgroup.commit_group()
        if cutlass.const_expr(0 < block <= plan.blocks - plan.stages):
            warpgroup.wait_group(1)
            if thread % 32 == 0:
                cute.arch.mbarrier_arrive(cta.empty((block - 1) % plan.stages))
        if cutlass.const_expr(block == plan.last_boxed + 1):
            warpgroup.wait_group(1)
            if thread % 32 < plan.split:
                cute.arch.mbarrier_arrive(cta.mailbox_free, thread % 32)
    warpgroup.wait_group(0)
    return rSum


@cute.jit
def send_partials(cta, rSum, thread: Int32):
    """A fragment's sums of all columns to the CTAs that own them, its own among them.

    Element i of a thread is channel 16 * warp + lane / 4, 8 more if i & 2, and row 8 (i / 4) + 2 (lane % 4), one more
    if i & 1. Two neighbouring lanes swap halves, so that the even one has four rows of the lower channel, the odd one
    of the other.
    """
    cute.arch.mbarrier_wait(cta.mailbox_free, 0)
    eights = cta.plan.n // 8
    # Each CTA begins with the columns of the next one, so that not all send to the same one at a time.
    first = (cta.part + 1) * eights // cta.plan.split
    for eight in cutlass.range_constexpr(eights):
        if eight >= first:
            send_eight(cta, rSum, eight, thread)
    for eight in cutlass.range_constexpr(eights):
        if eight < first:
            send_eight(cta, rSum, eight, thread)


@cute.jit
def send_eight(cta, rSum, eight: cutlass.Constexpr[int], thread: Int32):
    """Eight rows of a fragment."""
    odd = thread % 2
    rFour = cute.make_rmem_tensor(GROUP, Float32)
    for i in cutlass.range_constexpr(2):
        low, high = rSum[eight * 4 + i], rSum[eight * 4 + 2 + i]
        away, rFour[i], rFour[2 + i] = high, low, high
        if odd == 1:
            away = low
        back = cute.arch.shuffle_sync_bfly(away, offset=1)
        if odd == 1:
            rFour[i] = back
        else:
            rFour[2 + i] = back
    row = thread % 4 // 2 * 4 + eight * 8
    channel = thread // 32 * 16 + thread % 32 // 4 + odd * 8
    place = box(cta, cta.part, channel, row % cta.plan.owned // GROUP)
    owner = row // cta.plan.owned
    if owner == cta.part:
        shared_vector(Float32, place.toint(), GROUP).store(rFour.load())
    else:
        push4(place, rFour, 0, cta.partials_full, owner)


@cute.jit
def collect(cta, channel: Int32, first: Int32, count: cutlass.Constexpr[int]):
    """Sums of owned columns first .. first + count - 1 of a channel, slices in order: ((p0 + p1) + p2) + p3."""
    cute.arch.mbarrier_wait(cta.partials_full, 0)
    width = GROUP if count % GROUP == 0 else 2
    rX = cute.make_rmem_tensor(count, Float32)
    for at in cutlass.range_constexpr(0, count, width):
        column = first + at
        boxes = [box(cta, part, channel, column // GROUP).toint() for part in range(cta.plan.split)]
        parts = [shared_vector(Float32, one + column % GROUP * 4, width).load() for one in boxes]
        rSum = parts[0]
        for part in cutlass.range_constexpr(1, cta.plan.split):
            rSum = rSum + parts[part]
        for c in cutlass.range_constexpr(width):
            rX[at + c] = rSum[c]
    return rX


def box(cta, part: Int32, channel: Int32, group: Int32) -> cute.Pointer:
    """Where four columns of a slice's channel lie in the mailbox; groups are permuted to spread them over the banks."""
    groups = cta.plan.owned // GROUP
    if groups in SPREAD:
        group = group ^ (channel // SPREAD[groups] % groups)
    return cta.mailbox + ((part * DIM + channel) * groups + group) * GROUP


def products(n: int) -> cute.TiledMma:
    """`wgmma` of 128 channels and n rows, by two warpgroups: both operands in shared memory, sums in float32."""
    operation = warpgroup.MmaF16BF16Op(
        BFloat16, Float32, (DIM // 2, n, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K
    )
    return cute.make_tiled_mma(operation, (2, 1, 1))


def operand(tiles: cute.Pointer, rows: int, stages: int) -> cute.Tensor:
    """One operand's tiles: `[rows, 64, stages]`, swizzled over 128 bytes."""
    swizzled = cute.recast_ptr(tiles, cute.make_swizzle(*SWIZZLE), dtype=BFloat16)
    return cute.make_tensor(
        swizzled, cute.make_layout((rows, BLOCK_COLUMNS, stages), stride=(BLOCK_COLUMNS, 1, rows * BLOCK_COLUMNS))
    )
