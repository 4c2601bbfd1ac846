"""`IndexFrontHopper`: the DSA indexer's front on `wgmma` (sm_90a), with its sums in registers.

Cut for latency: the next launch may begin early, and its CTAs bring weights in while those of this one work. A cluster
shares a head's products for one tile of rows. Each CTA normalises its slice of the rows, two warpgroups multiply it, 64
channels each, and the partial sums go to the CTAs that own the rows, which add and quantise them.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, cute

from equiv.cute.dsa.front_form import IndexFront
from equiv.cute.dsa.front_load import insert_keys, load_first_weights, load_weights
from equiv.cute.dsa.hopper_cta import MULTIPLIERS, HopperCta, meet_workers
from equiv.cute.dsa.hopper_epilogue import head_weight, lane_column, quantise_fp4, quantise_fp8
from equiv.cute.dsa.hopper_plan import HopperPlan, hopper_tiling
from equiv.cute.dsa.hopper_rows import Rows, load_slice, make_factors
from equiv.cute.dsa.hopper_sums import collect, multiply, send_partials
from equiv.cute.dsa.tiling import FrontTiling  # noqa: TC001  needed by annotations
from equiv.geometry.dsa import DIM, HEADS
from equiv.geometry.front import RANK

LOADER = MULTIPLIERS
KEYS = MULTIPLIERS + 1
THREADS = 32 * (MULTIPLIERS + 2)
TOGETHER = 2
"""CTAs that share a multiprocessor."""


class IndexFrontHopper(IndexFront):
    """The front for sm_90a: eight warps multiply, warp w the channels 16 w .. 16 w + 15 of all rows of the tile."""

    @staticmethod
    def cut(batch: int) -> tuple[FrontTiling, HopperPlan]:
        """Four slices of the products for one tile, two for more."""
        tiling = hopper_tiling(batch)
        return tiling, HopperPlan(tiling.n, tiling.split)

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
        rows = cute.make_tensor(
            mRows.iterator.align(16), cute.make_layout((mP.shape[0], RANK), stride=(self.row_pitch, 1))
        )
        self.kernel(mP, rows, mGamma, mMap, mNormW, mNormB, mCache, mSlots, mQOut, mWOut, eps, key_eps).launch(
            grid=(self.plan.split, HEADS, cute.ceil_div(mP.shape[0], self.plan.n)),
            block=(THREADS, 1, 1),
            cluster=(self.plan.split, 1, 1),
            min_blocks_per_mp=TOGETHER,
            stream=stream,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
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
    ):
        """Eight warps take the rows all the way to their codes, one loads weights, one inserts keys.

        A cluster meets once: its barriers are there before anybody sends. Whatever others send to a CTA it waits for,
        so that none leaves too early.
        """
        cta = HopperCta(self.plan, mP.shape[0])
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = thread % 32
        # Until the next launch waits for this one to end, it reads weights and nothing else.
        if cutlass.const_expr(not self.plan.late):
            cute.arch.griddepcontrol_launch_dependents()
        if warp == LOADER:
            with cute.arch.elect_one():
                cta.init_barriers(self.normalized)
        cute.arch.cluster_arrive()
        if warp == LOADER:
            load_first_weights(cta, mMap)
            cute.arch.cluster_wait()
            load_rest(cta, mMap)
        elif warp == KEYS:
            cute.arch.griddepcontrol_wait()
            insert_keys(cta, self.index, mP, mNormW, mNormB, mCache, mSlots, key_eps, lane)
            cute.arch.cluster_wait()
        else:
            cta.clear_padding(thread)
            cute.arch.griddepcontrol_wait()
            rows = Rows(cta, mRows, thread)
            columns = self.plan.owned // 2
            first = thread // DIM * columns
            weight = head_weight(cta, self.index.weight, mP, first + lane_column(columns, lane))
            if cutlass.const_expr(self.normalized):
                cute.arch.cluster_wait()
            else:
                rows.gamma = load_slice(cta, mGamma.iterator, thread)
                rows.factors = make_factors(cta, rows.places, rows.words, eps, thread)
            if cutlass.const_expr(self.plan.late):
                cute.arch.griddepcontrol_launch_dependents()
            rSum = multiply(cta, rows, thread)
            send_partials(cta, rSum, thread)
            meet_workers()
            rX = collect(cta, thread % DIM, first, columns)
            if cutlass.const_expr(self.index.fp4):
                quantise_fp4(cta, rX, mQOut, mWOut, weight, first, thread)
            else:
                quantise_fp8(cta, rX, mQOut, mWOut, weight, first, thread)


@cute.jit
def load_rest(cta, mMap):
    """The weights that did not fit the ring, as stages fall empty; for the whole warp."""
    stages = cta.plan.stages
    for block in cutlass.range_constexpr(stages, cta.plan.blocks):
        stage = block % stages
        cute.arch.mbarrier_wait(cta.empty(stage), block // stages - 1 & 1)
        with cute.arch.elect_one():
            load_weights(cta, mMap, Int32(block), Int32(stage))
