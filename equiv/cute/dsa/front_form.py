"""The DSA indexer's front in one launch, but for the tensor core: what `IndexFrontMma` and `IndexFrontHopper` share.

Optional RMSNorm of the query latent, the projection to 32 heads of 128 channels, BF16 rounding, query quantisation,
folded head weights, and the index key's insertion. Formulas and layouts: spec dsa 1; structure: spec kernels 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync

from equiv.cute.dsa.front_cta import Cta, init_barriers, meet
from equiv.cute.dsa.front_epilogue import quantise_fp4, quantise_fp8, stage_weights
from equiv.cute.dsa.front_load import SWIZZLE, insert_keys, load_blocks, load_first_weights
from equiv.cute.dsa.front_norm import factors, normalize, stage_gamma
from equiv.cute.dsa.index import DsaIndex
from equiv.cute.dsa.tiling import BLOCK_COLUMNS, WARPS, CtaPlan, front_tiling
from equiv.errors import UsageError
from equiv.geometry.dsa import HEADS
from equiv.geometry.front import RANK

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

REGISTERS = 1 << 16
"""Of a multiprocessor."""


class IndexFront(ABC):
    """The front for batches of one size.

    A form says how a CTA multiplies: which warps do it, how often they arrive where others wait for them, and what the
    methods behind the kernel do.

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

    Attributes:
        warps: number of a CTA's warps.
        multipliers: number of those that multiply.
        releases: arrivals that make a stage of the ring empty.
        completions: arrivals that complete the sums.
    """

    warps: ClassVar[int]
    multipliers: ClassVar[int]
    releases: ClassVar[int]
    completions: ClassVar[int]

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
        self.normalized = normalized
        self.row_pitch = row_pitch or RANK
        self.index = DsaIndex(key, weight, mx=mx, fp4=fp4, key_round=key_round, key_floor=key_floor)

    @property
    def variant(self) -> tuple[Hashable, ...]:
        """What distinguishes the generated code of two instances: not the batch, but how it is cut."""
        return (self.plan, self.normalized, self.row_pitch, *self.index.variant)

    @property
    def loader(self) -> int:
        """The loading warp; those behind it only fill its warpgroup."""
        return WARPS + self.multipliers

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
            block=(32 * self.warps, 1, 1),
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
        """Three kinds of warps: four normalise and write, those after them multiply, the last loads."""
        cta = Cta(self.plan, mP.shape[0])
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = thread % 32
        if warp == self.loader:
            with cute.arch.elect_one():
                init_barriers(cta, self.normalized, self.releases, self.completions)
            load_first_weights(cta, mMap)
        self.open(cta, warp)
        if warp >= self.loader:
            self.take_registers("load")
            if warp == self.loader:
                cute.arch.griddepcontrol_wait()
                load_blocks(cta, mMap, rows_atom, tRows)
                insert_keys(cta, self.index, mP, mNormW, mNormB, mCache, mSlots, key_eps, lane)
                cute.arch.griddepcontrol_launch_dependents()
        elif warp >= WARPS:
            self.take_registers("multiply")
            self.multiply(cta, thread - 32 * WARPS)
        else:
            self.take_registers("write")
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

    @property
    def registers(self) -> Mapping[str, int]:
        """Of a thread by its warpgroup's role, `write`, `multiply` or `load`, where they trade them; else nothing."""
        return {}

    def take_registers(self, role: str) -> None:
        """As many registers as the role needs; for whole warpgroups."""
        if role in self.registers:
            wanted, even = self.registers[role], REGISTERS // (32 * self.warps)
            trade = cute.arch.setmaxregister_increase if wanted > even else cute.arch.setmaxregister_decrease
            trade(wanted)

    def rows_arrived(self, cta: Any, stage: Int32) -> cute.Pointer:
        """The barrier that says that a stage's rows can be multiplied."""
        return cta.rows_full(stage) if self.normalized else cta.rows_ready(stage)

    @cute.jit
    def open(self, cta, warp: Int32):  # noqa: ARG002  for forms that have something to prepare
        """Meets the cluster's other CTAs, of which all barriers are then initialised; for all threads."""
        meet()

    @cute.jit
    def close(self, cta, warp: Int32):  # noqa: ARG002  for forms that have something to give back
        """Meets the cluster's other CTAs: none leaves while another may still write into it; for all threads."""
        meet()

    @abstractmethod
    def multiply(self, cta: Any, thread: Int32) -> None:
        """All products of the CTA's slice, in steps of 16 columns in ascending order; thread 0 is the first of them."""

    @abstractmethod
    def sums(self, cta: Any, channel: Int32) -> Any:
        """Waits for the sums of this thread's channel; gives an accumulator as `front_epilogue` has it."""
