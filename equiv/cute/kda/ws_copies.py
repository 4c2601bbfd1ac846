"""What `KdaWS` moves: state pages and windows by bulk copies; projection rows, windows and F_B by `cp.async`."""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Boolean, Int32, Int64, cute
from cutlass.cute.nvgpu import LoadCacheMode, cpasync

from equiv.cute.kda.ws_layout import GATE_PITCH, PAGE, PARTS, STATE_FULL, barrier_at, page_at
from equiv.geometry.kda import DIM

CHUNK = 16384
"""Bytes of one bulk copy of a state page."""
SEGMENT = 16
"""Lanes that copy 128 BF16 elements, 16 bytes each."""
VECTOR = 8
"""BF16 elements in 16 bytes."""


class Request:
    """What the indices of an item's request say, as `item_slots` reads them.

    Attributes:
        source: slot the state is read from, 0 for an absent request.
        first: slot of the convolution window.
        offset: accepted tokens - 1: the window's column where the taps begin.
    """

    def __init__(self, source: Int32, first: Int32, offset: Int32):
        self.source = source
        self.first = first
        self.offset = offset


def split(operands, item: Int32) -> tuple[Int32, Int32]:
    """Head and request of an item."""
    requests = operands.slots.shape[0]
    return item // requests, item % requests


@cute.jit
def item_slots(shape, mSlots, mAccepted, request: Int32):
    """The slots of a request; it is absent if the first or the one its state is read from is not positive."""
    columns = 1 if shape.record else shape.tokens
    slots = mSlots.iterator + request * columns
    first = slots.load()
    offset = Int32(0)
    source = first
    if cutlass.const_expr(shape.tokens > 1 and not shape.record):
        offset = Int32(mAccepted[request]) - 1
        source = (slots + offset).load()
        if first <= 0:
            source = Int32(0)
    return Request(cutlass.max(source, 0), first, offset)


def view(pointer: cute.Pointer, count: int, align: int = 16) -> cute.Tensor:
    """`count` neighbouring elements at an address that the caller knows to be aligned to `align` bytes."""
    aligned = cute.make_ptr(pointer.value_type, pointer.toint(), pointer.memspace, assumed_align=align)
    return cute.make_tensor(aligned, cute.make_layout(count))


def copy_async(source: cute.Pointer, target: cute.Pointer):
    """16 bytes from global to shared memory by `cp.async.cg`; both addresses are aligned to them."""
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(LoadCacheMode.GLOBAL), BFloat16, num_bits_per_copy=128)
    cute.copy(atom, view(source, VECTOR), view(target, VECTOR))


@cute.jit
def load_page(shared, which: Int32 | int, mState, slot: Int32, head: Int32):
    """One thread fills a page with a state, or completes its phase with no bytes if there is no slot.

    The page's last readers have arrived on STATE_EMPTY; reads before a copy need no proxy fence.
    """
    full = barrier_at(shared, STATE_FULL, which)
    if slot > 0:
        cute.arch.mbarrier_arrive_and_expect_tx(full, PAGE * 4)
        page = mState.iterator + Int64(slot) * mState.stride[0] + head * PAGE
        atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float32)
        count, target = CHUNK // 4, page_at(shared, which)
        for at in cutlass.range_constexpr(0, PAGE, count):
            cute.copy(atom, view(page + at, count), view(target + at, count, 128), mbar_ptr=full)
    else:
        cute.arch.mbarrier_arrive(full)


def fence_async_shared():
    """Orders this thread's accesses to shared memory before bulk copies that are issued after a barrier."""
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def store_bulk(shape, stage: cute.Pointer, mConv, slot: Int32, head: Int32):
    """One thread stores the three parts of an edited dim-first window, [128, window] each, back to where they were."""
    count = DIM * shape.window
    atom = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), BFloat16)
    for part in cutlass.range_constexpr(PARTS):
        target = window_part(shape, mConv, slot, head, part)
        cute.copy(atom, view(stage + part * count, count), view(target, count))
    cute.arch.cp_async_bulk_commit_group()


def wait_bulk_reads():
    """Until the bulk stores of this thread have read their shared memory."""
    cute.arch.cp_async_bulk_wait_group(0, read=True)


def window_part(shape, mConv, slot: Int32, head: Int32, part: int) -> cute.Pointer:
    """Column 0 of a head's first channel of q, k or v."""
    channel = part * shape.dim + head * DIM
    columns = shape.window if shape.dim_first else 1
    return mConv.iterator + Int64(slot) * mConv.stride[0] + channel * columns


@cute.jit
def stage_conv(shape, stage: cute.Pointer, mConv, request: Request, head: Int32, thread: Int32):
    """A group's 128 threads stage an item's window: all columns dim-first, or the three columns the taps begin with."""
    lane = thread % SEGMENT
    if cutlass.const_expr(shape.dim_first):
        vectors = DIM * shape.window // VECTOR
        for part in cutlass.range_constexpr(PARTS):
            source = window_part(shape, mConv, request.first, head, part)
            for start in cutlass.range_constexpr(0, vectors, DIM):
                vector = start + thread
                if Boolean(start + DIM <= vectors) or vector < vectors:
                    copy_async(source + vector * VECTOR, stage + part * DIM * shape.window + vector * VECTOR)
    else:
        segments = PARTS * 3
        for start in cutlass.range_constexpr(0, segments, DIM // SEGMENT):
            segment = start + thread // SEGMENT
            if segment < segments:
                part, column = segment // 3, segment % 3
                source = window_part(shape, mConv, request.first, head, 0)
                source += part * shape.dim + (request.offset + column) * (PARTS * shape.dim) + lane * VECTOR
                copy_async(source, stage + segment * DIM + lane * VECTOR)


@cute.jit
def stage_rows(shape, stage: cute.Pointer, mX, mGate, mFa, row: Int32, head: Int32, thread: Int32):
    """A group's 128 threads stage the T rows from `row` on: for each token q, k, v, output gate, F_A, 128 each."""
    lane = thread % SEGMENT
    for start in cutlass.range_constexpr(0, 5 * shape.tokens, DIM // SEGMENT):
        segment = start + thread // SEGMENT
        if segment < 5 * shape.tokens:
            token, part = segment // 5, segment % 5
            at = Int64(row + token)
            source = (mX.iterator + at * mX.stride[0] + part * shape.dim + head * DIM).toint()
            if part == 3:
                source = (mGate.iterator + at * mGate.stride[0] + head * DIM).toint()
            if part == 4:
                source = (mFa.iterator + at * mFa.stride[0]).toint()
            pointer = cute.make_ptr(BFloat16, source, cute.AddressSpace.gmem, assumed_align=16)
            copy_async(pointer + lane * VECTOR, stage + segment * DIM + lane * VECTOR)


def stage_gate(gates: cute.Pointer, mFb, head: Int32, thread: Int32):
    """A group's 128 threads stage a head's F_B, [128, 128]."""
    row, column = thread // SEGMENT, thread % SEGMENT * VECTOR
    source = mFb.iterator + (head * DIM + row) * DIM + column
    for start in range(0, DIM, DIM // SEGMENT):
        copy_async(source + start * DIM, gates + (start + row) * GATE_PITCH + column)
