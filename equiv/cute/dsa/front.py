"""`IndexFrontMma`: the DSA indexer's front on `tcgen05` (sm_100a), with its sums in tensor memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from equiv.cute.dsa.front_cta import Cta, init_barriers, meet
from equiv.cute.dsa.front_epilogue import MailboxColumns, quantise_fp4, quantise_fp8, send_partials, stage_weights
from equiv.cute.dsa.front_form import IndexFront
from equiv.cute.dsa.front_load import SWIZZLE, insert_keys, load_blocks, load_first_weights
from equiv.cute.dsa.front_norm import factors, normalize, stage_gamma
from equiv.cute.dsa.tiling import BLOCK_COLUMNS, WARPS, CtaPlan, front_tiling
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
from equiv.geometry.dsa import DIM, HEADS
from equiv.geometry.front import RANK

if TYPE_CHECKING:
    from equiv.cute.dsa.tiling import FrontTiling

LOADER = WARPS + 1
"""The loading warp; the one before it multiplies."""
THREADS = 32 * (LOADER + 1)


class IndexFrontMma(IndexFront):
    """The front for sm_100a: one warp multiplies; lane t of tensor memory is channel t, column j is row j."""

    @staticmethod
    def cut(batch: int) -> tuple[FrontTiling, CtaPlan]:
        """As the specification's table has it."""
        tiling = front_tiling(batch)
        return tiling, CtaPlan.of(tiling)

    @cute.jit
    def __call__(
        self,
        mP: cute.Tensor,
        mRows: cute.Tensor,
        mGamma: cute.Tensor,
        mMap: cute.Tensor,
        mNormW: cute.Tensor,
        mNormB: cute.Tensor,
        mCache: cute.Tensor,
        mSlots: cute.Tensor,
        mQOut: cute.Tensor,
        mWOut: cute.Tensor,
        eps: Float32,
        key_eps: Float32,
        stream,
    ):
        """One launch for the whole batch; it may start before its predecessor ends and waits for it where it must."""
        plan = self.plan
        rows = cute.make_tensor(
            mRows.iterator.align(16), cute.make_layout((mP.shape[0], RANK), stride=(self.row_pitch, 1))
        )
        tile = (plan.n, BLOCK_COLUMNS)
        swizzled = cute.make_composed_layout(
            cute.make_swizzle(*SWIZZLE), 0, cute.make_layout(tile, stride=(BLOCK_COLUMNS, 1))
        )
        rows_atom, tRows = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), rows, swizzled, tile)
        self.kernel(
            rows_atom, tRows, mP, rows, mGamma, mMap, mNormW, mNormB, mCache, mSlots, mQOut, mWOut, eps, key_eps
        ).launch(
            grid=(plan.split, HEADS, cute.ceil_div(mP.shape[0], plan.n)),
            block=(THREADS, 1, 1),
            cluster=(plan.split, plan.group, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
        rows_atom: cute.CopyAtom,
        tRows: cute.Tensor,
        mP: cute.Tensor,
        mRows: cute.Tensor,
        mGamma: cute.Tensor,
        mMap: cute.Tensor,
        mNormW: cute.Tensor,
        mNormB: cute.Tensor,
        mCache: cute.Tensor,
        mSlots: cute.Tensor,
        mQOut: cute.Tensor,
        mWOut: cute.Tensor,
        eps: Float32,
        key_eps: Float32,
    ):
        """Three kinds of warps: four normalise and write, the next one multiplies, the last loads."""
        cta = Cta(self.plan, mP.shape[0])
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = thread % 32
        if warp == LOADER:
            with cute.arch.elect_one():
                init_barriers(cta, self.normalized)
            load_first_weights(cta, mMap)
        self.open(cta, warp)
        if warp == LOADER:
            cute.arch.griddepcontrol_wait()
            load_blocks(cta, mMap, rows_atom, tRows)
            insert_keys(cta, self.index, mP, mNormW, mNormB, mCache, mSlots, key_eps, lane)
            cute.arch.griddepcontrol_launch_dependents()
        elif warp == WARPS:
            self.multiply(cta)
        else:
            if cutlass.const_expr(not self.normalized):
                stage_gamma(cta, mGamma, thread)
            cute.arch.griddepcontrol_wait()
            if cutlass.const_expr(not self.normalized):
                factors(cta, mRows, eps, warp, lane)
                normalize(cta, thread)
            stage_weights(cta, self.index.weight, mP, thread)
            sums = self.sums(cta, thread)
            if cutlass.const_expr(self.index.fp4):
                quantise_fp4(cta, sums, mQOut, mWOut, thread)
            else:
                quantise_fp8(cta, sums, mQOut, mWOut, thread)
        self.close(cta, warp)

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
    def multiply(self, cta):
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

    def rows_arrived(self, cta: Cta, stage: Int32) -> cute.Pointer:
        """The barrier that says that a stage's rows can be multiplied."""
        return cta.rows_full(stage) if self.normalized else cta.rows_ready(stage)

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
