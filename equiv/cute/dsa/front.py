"""`IndexFrontMma`: the DSA indexer's front on `tcgen05` in one launch (sm_100a).

Optional RMSNorm of the query latent, the projection to 32 heads of 128 channels, BF16 rounding, query quantisation,
folded head weights, and the index key's insertion. Formulas and layouts: spec dsa 1; structure: spec kernels 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from equiv.cute.dsa.front_cta import BLOCK, LOADER, MULTIPLIER, Cta, init_barriers
from equiv.cute.dsa.front_epilogue import (
    MailboxColumns,
    quantise_fp4,
    quantise_fp8,
    send_partials,
    stage_weights,
)
from equiv.cute.dsa.front_load import SWIZZLE, insert_keys, load_blocks, load_first_weights
from equiv.cute.dsa.front_norm import factors, normalize, stage_gamma
from equiv.cute.dsa.index import DsaIndex
from equiv.cute.dsa.tiling import BLOCK_COLUMNS, CtaPlan, front_tiling
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
from equiv.errors import UsageError
from equiv.geometry.dsa import DIM, HEADS
from equiv.geometry.front import RANK

if TYPE_CHECKING:
    from collections.abc import Hashable


class IndexFrontMma:
    """The front for batches of one size.

    Args:
        batch: rows, 1 to 1024.
        key: column of `projected` where the index key's 128 channels begin; a multiple of 4.
        weight: column of `projected` where the 32 head weights begin.
        mx: store the key's scale as its UE8M0 byte four times instead of as float32 (FP8 pages).
        normalized: `rows_in` holds rows that are normalised already; the norm is left out.
        row_pitch: elements from row to row of `rows_in`, a multiple of 8; 0 means 1536.
        fp4: quantise query and key to MXFP4 (blocks of 32 channels) instead of FP8.
        key_round, key_floor: as `DsaIndex`.

    Operands of the call, in order:
        projected: BF16 [B, width]. rows_in: BF16 [B, >= 1536], strides (row_pitch, 1), aligned to 16 bytes.
        w_qa: BF16 [1536], the norm's gamma. w_map: uint8 [128], tensor map of the BF16 weights [4096, 1536] with boxes
            of 128 rows and 64 columns (`equiv.cute.tensormap`).
        norm_w, norm_b, cache, slots, q_out, w_out: as `DsaIndex`.
        eps: float32 added to a row's mean square. key_eps: float32 added to the key's variance. stream: CUDA stream.

    Raises:
        UsageError: no tiling for `batch`, or another argument is refused; the message names it.
    """

    def __init__(
        self,
        batch: int,
        key: int,
        weight: int,
        mx: bool = False,
        normalized: bool = False,
        row_pitch: int = 0,
        fp4: bool = False,
        key_round: str = "bf16",
        key_floor: float = 1e-4,
    ):
        if row_pitch and (row_pitch < RANK or row_pitch % 8):
            raise UsageError(f"row_pitch must be 0, or a multiple of 8 from {RANK}; got row_pitch={row_pitch}")
        self.tiling = front_tiling(batch)
        self.plan = CtaPlan.of(self.tiling)
        self.batch = batch
        self.weight = weight
        self.normalized = normalized
        self.row_pitch = row_pitch or RANK
        self.fp4 = fp4
        self.index = DsaIndex(key, weight, mx=mx, fp4=fp4, key_round=key_round, key_floor=key_floor)

    @property
    def variant(self) -> tuple[Hashable, ...]:
        """What distinguishes the generated code of two instances: not the batch, but how it is cut."""
        return (self.plan, self.normalized, self.row_pitch, *self.index.variant)

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
            block=(BLOCK, 1, 1),
            cluster=(plan.split, plan.group, 1),
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
        """Six warps: four normalise and write, one multiplies, one loads."""
        plan = self.plan
        cta = Cta(plan, mP.shape[0])
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = thread % 32
        if warp == LOADER:
            with cute.arch.elect_one():
                init_barriers(cta, self.normalized)
            load_first_weights(cta, mMap)
        if warp == MULTIPLIER:
            cute.arch.alloc_tmem(plan.tensor_columns, cta.slot)
            cute.arch.relinquish_tmem_alloc_permit()
            fence_before_sync()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        fence_after_sync()
        accumulator = cta.slot[0]
        if warp == LOADER:
            cute.arch.griddepcontrol_wait()
            load_blocks(cta, mMap, rows_atom, tRows)
            insert_keys(cta, self.index, mP, mNormW, mNormB, mCache, mSlots, key_eps, lane)
            cute.arch.griddepcontrol_launch_dependents()
        elif warp == MULTIPLIER:
            self.multiply(cta, accumulator)
        else:
            if cutlass.const_expr(not self.normalized):
                stage_gamma(cta, mGamma, thread)
            cute.arch.griddepcontrol_wait()
            if cutlass.const_expr(not self.normalized):
                factors(cta, mRows, eps, warp, lane)
                normalize(cta, thread)
            stage_weights(cta, self.weight, mP, thread)
            self.epilogue(cta, accumulator + warp * WARP_LANES, mQOut, mWOut, thread)
            fence_before_sync()
        # Also: no CTA leaves while another may still write into it.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == MULTIPLIER:
            fence_after_sync()
            tensor_memory = cute.make_ptr(Float32, accumulator, cute.AddressSpace.tmem, assumed_align=16)
            cute.arch.dealloc_tmem(tensor_memory, plan.tensor_columns)

    @cute.jit
    def multiply(self, cta, accumulator: Int32):
        """Every block in four steps of 16 columns, in ascending order; the first step overwrites; one thread."""
        plan = cta.plan
        instruction = bf16_instruction(DIM, plan.n)
        with cute.arch.elect_one():
            for block in cutlass.range(plan.blocks, unroll=1):
                stage = block % plan.stages
                turn = (block // plan.stages) & 1
                ready = cta.rows_full(stage) if self.normalized else cta.rows_ready(stage)
                cute.arch.mbarrier_wait(cta.weights_full(stage), turn)
                cute.arch.mbarrier_wait(ready, turn)
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
    def epilogue(self, cta, lanes: Int32, mQOut, mWOut, channel: Int32):
        """From the accumulator's lanes of this warp to the results of the columns that this CTA owns."""
        cute.arch.mbarrier_wait(cta.accumulated, 0)
        fence_after_sync()
        if cutlass.const_expr(self.plan.split > 1):
            send_partials(cta, load_columns(lanes, self.plan.n), channel)
            cute.arch.mbarrier_wait(cta.partials_full, 0)
            sums = MailboxColumns(cta, channel)
        else:
            sums = TensorColumns(lanes)
        if cutlass.const_expr(self.fp4):
            quantise_fp4(cta, sums, mQOut, mWOut, channel)
        else:
            quantise_fp8(cta, sums, mQOut, mWOut, channel)


class TensorColumns(Fixed):
    """Sums that are complete in tensor memory."""

    def __init__(self, lanes: Int32):
        self.lanes = lanes

    @cute.jit
    def load4(self, column: Int32):
        """Four columns of this thread's channel."""
        return load_columns(self.lanes + column, 4).load()
