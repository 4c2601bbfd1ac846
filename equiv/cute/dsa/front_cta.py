"""What one CTA of the front's sm_100a form is: its place in the grid, its shared memory, its barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, Uint8, Uint32, cute

from equiv.cute.dsa.tiling import ALIGN, STAGE_BARRIERS, WARPS
from equiv.cute.fixed import Fixed
from equiv.geometry.dsa import HEADS

if TYPE_CHECKING:
    from equiv.cute.dsa.tiling import CtaPlan


class Cta(Fixed):
    """A CTA of grid (split, 32 heads, tiles); one is made at the start of a kernel.

    Attributes:
        plan: sizes.
        part: its slice of the products; head; tile.
        valid: rows of its tile that lie in the batch, at least 1.
        weights, rows: the ring, all weights before all rows; stage s of each begins s * `plan.weight_bytes`
            (`plan.row_bytes`) later.
        mailbox: partial sums of the owned columns, [split][channel][`plan.mailbox_pitch`].
        gamma: BF16 norm weights of the slice. factors: one a row of the tile.
        folds: of each owned column the head's weight, later the inverse of its scale.
        amax: bits of the largest magnitude, [column][warp].
        slot: where tensor memory's address is kept.
    """

    def __init__(self, plan: CtaPlan, batch: Int32):
        self.plan = plan
        self.part, self.head, self.tile = cute.arch.block_idx()
        self.rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        self.valid = cutlass.min(batch - self.tile * plan.n, plan.n)
        memory = cutlass.memory.SmemAllocator()
        self.weights = memory.allocate_array(Uint8, plan.stages * plan.stage_bytes, byte_alignment=ALIGN)
        self.rows = self.weights + plan.stages * plan.weight_bytes
        if plan.split > 1:
            self.mailbox = memory.allocate_array(Float32, plan.mailbox_bytes // 4, byte_alignment=16)
        self.gamma = memory.allocate_array(BFloat16, plan.gamma_bytes // 2, byte_alignment=16)
        self.amax = memory.allocate_array(Uint32, WARPS * plan.owned, byte_alignment=16)
        self.factors = memory.allocate_array(Float32, plan.n, byte_alignment=16)
        self.folds = memory.allocate_array(Float32, plan.owned, byte_alignment=16)
        self.barriers = memory.allocate_array(Int64, plan.barriers)
        self.slot = memory.allocate_array(Int32, 1)

    def weights_full(self, stage: Int32) -> cute.Pointer:
        """The stage's weights have arrived."""
        return self.barriers + stage * STAGE_BARRIERS

    def rows_full(self, stage: Int32) -> cute.Pointer:
        """The stage's rows have arrived."""
        return self.barriers + stage * STAGE_BARRIERS + 1

    def rows_ready(self, stage: Int32) -> cute.Pointer:
        """The stage's rows are normalised; one arrival a thread."""
        return self.barriers + stage * STAGE_BARRIERS + 2

    def empty(self, stage: Int32) -> cute.Pointer:
        """The stage has been multiplied."""
        return self.barriers + stage * STAGE_BARRIERS + 3

    @property
    def accumulated(self) -> cute.Pointer:
        """All products are in the accumulator."""
        return self.barriers + self.plan.stages * STAGE_BARRIERS

    @property
    def factors_full(self) -> cute.Pointer:
        """The factors of all rows of the tile have arrived."""
        return self.barriers + self.plan.stages * STAGE_BARRIERS + 1

    @property
    def partials_full(self) -> cute.Pointer:
        """The partial sums of all slices have arrived."""
        return self.barriers + self.plan.stages * STAGE_BARRIERS + 2

    @property
    def first_row(self) -> Int32:
        """Row of the batch that is row 0 of the tile."""
        return self.tile * self.plan.n

    @property
    def number(self) -> Int32:
        """Number of the CTA in the grid."""
        return (self.tile * HEADS + self.head) * self.plan.split + self.part


@cute.jit
def init_barriers(cta, normalized: cutlass.Constexpr[bool]):
    """Initialises every barrier and tells those that wait for other CTAs what to expect; for one thread."""
    for s in cutlass.range_constexpr(cta.plan.stages):
        cute.arch.mbarrier_init(cta.weights_full(s), 1)
        cute.arch.mbarrier_init(cta.rows_full(s), 1)
        cute.arch.mbarrier_init(cta.rows_ready(s), 32 * WARPS)
        cute.arch.mbarrier_init(cta.empty(s), 1)
    cute.arch.mbarrier_init(cta.accumulated, 1)
    cute.arch.mbarrier_init(cta.factors_full, 1)
    cute.arch.mbarrier_init(cta.partials_full, 1)
    cute.arch.mbarrier_init_fence()
    if cutlass.const_expr(cta.plan.shares_factors and not normalized):
        cute.arch.mbarrier_arrive_and_expect_tx(cta.factors_full, 4 * cta.valid)
    if cutlass.const_expr(cta.plan.split > 1):
        expected = cta.plan.mailbox_bytes * cta.plan.owned // cta.plan.mailbox_pitch
        cute.arch.mbarrier_arrive_and_expect_tx(cta.partials_full, expected)


@cute.jit
def sync_warps():
    """Barrier of the warps that normalise and write; they alone use it."""
    cute.arch.barrier(barrier_id=1, number_of_threads=32 * WARPS)


@cute.jit
def meet():
    """Barrier of all threads of the cluster."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
