"""`IndexFrontMma`: the DSA indexer's front on `tcgen05` (sm_100a), with its sums in tensor memory."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import tcgen05

from equiv.cute.dsa.front_cta import meet
from equiv.cute.dsa.front_epilogue import MailboxColumns, send_partials
from equiv.cute.dsa.front_form import IndexFront
from equiv.cute.dsa.tiling import BLOCK_COLUMNS, WARPS
from equiv.cute.fixed import Fixed
from equiv.cute.tensor_core import (
    K_BYTES,
    WARP_LANES,
    bf16_instruction,
    fence_after_sync,
    fence_before_sync,
    load_columns,
    matrix_descriptor,
    multiply_16,
)
from equiv.geometry.dsa import DIM


class IndexFrontMma(IndexFront):
    """The front for sm_100a: one warp multiplies; lane t of tensor memory is channel t, column j is row j."""

    warps = WARPS + 2
    multipliers = 1
    releases = 1
    completions = 1

    @cute.jit
    def open(self, cta, warp: Int32):
        """Allocates tensor memory."""
        if warp == WARPS:
            cute.arch.alloc_tmem(self.plan.tensor_columns, cta.slot)
            cute.arch.relinquish_tmem_alloc_permit()
            fence_before_sync()
        meet()
        fence_after_sync()

    @cute.jit
    def close(self, cta, warp: Int32):
        """Gives tensor memory back."""
        fence_before_sync()
        meet()
        if warp == WARPS:
            fence_after_sync()
            tensor_memory = cute.make_ptr(Float32, cta.slot[0], cute.AddressSpace.tmem, assumed_align=16)
            cute.arch.dealloc_tmem(tensor_memory, self.plan.tensor_columns)

    @cute.jit
    def multiply(self, cta, thread: Int32):  # noqa: ARG002  one warp, of which one thread is enough
        """Every block in four steps of 16 columns, in ascending order; the first step overwrites; one thread."""
        plan = cta.plan
        accumulator = cta.slot[0]
        instruction = bf16_instruction(DIM, plan.n)
        with cute.arch.elect_one():
            for block in cutlass.range(plan.blocks, unroll=1):
                stage = block % plan.stages
                turn = (block // plan.stages) & 1
                cute.arch.mbarrier_wait(cta.weights_full(stage), turn)
                cute.arch.mbarrier_wait(self.rows_arrived(cta, stage), turn)
                fence_after_sync()
                weights = cta.weights.toint() + stage * plan.weight_bytes
                rows = cta.rows.toint() + stage * plan.row_bytes
                for step in cutlass.range_constexpr(BLOCK_COLUMNS * 2 // K_BYTES):
                    multiply_16(
                        accumulator,
                        matrix_descriptor(weights + step * K_BYTES),
                        matrix_descriptor(rows + step * K_BYTES),
                        instruction,
                        block + step > 0,
                    )
                tcgen05.commit(cta.empty(stage))
            tcgen05.commit(cta.accumulated)

    @cute.jit
    def sums(self, cta, channel: Int32):
        """Where they lie in tensor memory, or in the mailboxes after this CTA's slices have gone to their owners."""
        lanes = cta.slot[0] + channel // 32 * WARP_LANES
        cute.arch.mbarrier_wait(cta.accumulated, 0)
        fence_after_sync()
        if cutlass.const_expr(self.plan.split > 1):
            send_partials(cta, load_columns(lanes, self.plan.n), channel)
            cute.arch.mbarrier_wait(cta.partials_full, 0)
            return MailboxColumns(cta, channel)
        return TensorColumns(lanes)


class TensorColumns(Fixed):
    """Sums that are complete in tensor memory."""

    def __init__(self, lanes: Int32):
        self.lanes = lanes

    @cute.jit
    def load4(self, column: Int32):
        """Four columns of this thread's channel."""
        return load_columns(self.lanes + column, 4).load()
