"""What one CTA of the front's Hopper form is: its place in the grid, its shared memory, its barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, Uint8, Uint32, cute

from equiv.cute.dsa.hopper_plan import STAGE_BARRIERS
from equiv.cute.dsa.tiling import ALIGN, BLOCK_COLUMNS
from equiv.cute.fixed import Fixed
from equiv.cute.row_norm import CHUNK
from equiv.cute.shared import shared_vector
from equiv.geometry.dsa import HEADS

if TYPE_CHECKING:
    from equiv.cute.dsa.hopper_plan import HopperPlan

MULTIPLIERS = 8
"""Warps that normalise, multiply and write."""
WORKERS = 32 * MULTIPLIERS
COLUMNS_BARRIER = 1
"""Named barriers 1 and 2: of the 128 threads that share the first half of the owned columns, and of the others."""
WORKERS_BARRIER = 3
"""Named barrier of all workers."""


class HopperCta(Fixed):
    """A CTA of grid (slices, 32 heads, tiles); one is made at the start of a kernel.

    Attributes:
        plan: sizes. batch: rows of the batch.
        part: its slice of the products, also its rank in the cluster; head; tile.
        valid: rows of its tile that lie in the batch, at least 1.
        weights: the ring. rows: all blocks of the slice.
        mailbox: partial sums of the owned columns, [slice][channel][column], in stages of the ring.
        squares: sums of squares of the rows' other slices, [slice][row].
        amax: bits of the largest magnitude, [owned column][warp of 32 channels]; where the sums of squares were.
    """

    def __init__(self, plan: HopperPlan, batch: Int32):
        self.plan = plan
        self.part, self.head, self.tile = cute.arch.block_idx()
        self.batch = batch
        self.valid = cutlass.min(batch - self.tile * plan.n, plan.n)
        memory = cutlass.memory.SmemAllocator()
        self.weights = memory.allocate_array(Uint8, plan.stages * plan.weight_bytes, byte_alignment=ALIGN)
        self.rows = memory.allocate_array(Uint8, plan.blocks * plan.row_bytes, byte_alignment=ALIGN)
        self.squares = memory.allocate_array(Float32, plan.squares_bytes // 4, byte_alignment=16)
        self.amax = cute.recast_ptr(self.squares, dtype=Uint32)
        self.barriers = memory.allocate_array(Int64, plan.barriers)
        self.mailbox = cute.recast_ptr(self.weights + plan.mailbox_stage * plan.weight_bytes, dtype=Float32)

    def weights_full(self, stage: Int32) -> cute.Pointer:
        """The stage's weights have arrived."""
        return self.barriers + stage * STAGE_BARRIERS

    def empty(self, stage: Int32) -> cute.Pointer:
        """The stage has been multiplied."""
        return self.barriers + stage * STAGE_BARRIERS + 1

    @property
    def squares_full(self) -> cute.Pointer:
        """The other slices' sums of squares have arrived."""
        return self.barriers + self.plan.stages * STAGE_BARRIERS

    @property
    def mailbox_free(self) -> cute.Pointer:
        """All CTAs of the cluster have multiplied the weights that lie where their mailboxes are."""
        return self.squares_full + 1

    @property
    def partials_full(self) -> cute.Pointer:
        """The partial sums of all slices have arrived."""
        return self.squares_full + 2

    @property
    def first_row(self) -> Int32:
        """Row of the batch that is row 0 of the tile."""
        return self.tile * self.plan.n

    @property
    def first_owned(self) -> Int32:
        """Row of the batch that is the first owned column."""
        return self.first_row + self.part * self.plan.owned

    @property
    def number(self) -> Int32:
        """Number of the CTA in the grid."""
        return (self.tile * HEADS + self.head) * self.plan.split + self.part

    @cute.jit
    def owned_columns(self) -> Int32:
        """How many of the owned columns are rows of the batch; may be 0."""
        return cutlass.max(cutlass.min(self.valid - self.part * self.plan.owned, self.plan.owned), 0)

    @cute.jit
    def init_barriers(self, normalized: cutlass.Constexpr[bool]):
        """Initialises every barrier and tells those that wait for bytes how many; for one thread.

        The warps that multiply make a stage empty, and in all CTAs of the cluster a mailbox free.
        """
        for s in cutlass.range_constexpr(self.plan.stages):
            cute.arch.mbarrier_init(self.weights_full(s), 1)
            cute.arch.mbarrier_init(self.empty(s), MULTIPLIERS)
        cute.arch.mbarrier_init(self.squares_full, 1)
        cute.arch.mbarrier_init(self.mailbox_free, MULTIPLIERS * self.plan.split)
        cute.arch.mbarrier_init(self.partials_full, 1)
        cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(not normalized):
            cute.arch.mbarrier_arrive_and_expect_tx(self.squares_full, self.valid * ((self.plan.split - 1) * 4))
        others = self.plan.mailbox_bytes // self.plan.split * (self.plan.split - 1)
        cute.arch.mbarrier_arrive_and_expect_tx(self.partials_full, others)

    @cute.jit
    def clear_padding(self, thread: Int32):
        """Zeros where rows past the batch would lie, so that nothing is multiplied that nobody wrote."""
        rZero = cute.make_rmem_tensor(CHUNK, BFloat16)
        rZero.fill(0.0)
        for block in cutlass.range_constexpr(self.plan.blocks):
            first = self.rows.toint() + block * self.plan.row_bytes + self.valid * (BLOCK_COLUMNS * 2)
            chunks = (self.plan.n - self.valid) * (BLOCK_COLUMNS // CHUNK)
            for at in cutlass.range(thread, chunks, WORKERS, unroll=1):
                shared_vector(BFloat16, first + at * (CHUNK * 2), CHUNK).store(rZero.load())
        cute.arch.fence_view_async_shared()


@cute.jit
def meet_workers():
    """Barrier of the warps that normalise, multiply and write."""
    cute.arch.barrier(barrier_id=WORKERS_BARRIER, number_of_threads=WORKERS)
