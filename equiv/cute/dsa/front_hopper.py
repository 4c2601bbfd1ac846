"""`IndexFrontHopper`: the DSA indexer's front on `wgmma` (sm_90a), with its sums in registers.

Two warpgroups multiply, 64 channels of the head each. Their fragments go through shared memory to the warps that write,
so that the epilogue is the one of `IndexFrontMma`: partial sums straight into their owners' mailboxes; complete sums
into the ring, which nobody needs any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from equiv.cute.dsa.front_epilogue import GROUP, MailboxColumns
from equiv.cute.dsa.front_form import IndexFront
from equiv.cute.dsa.front_load import SWIZZLE
from equiv.cute.dsa.tiling import BLOCK_COLUMNS, WARPS
from equiv.cute.fixed import Fixed
from equiv.cute.shared import push2
from equiv.geometry.dsa import DIM

if TYPE_CHECKING:
    from collections.abc import Mapping

MULTIPLIERS = 8
THREADS = 32 * MULTIPLIERS
MAX_ROWS = 128
PITCH = DIM + 4
"""Float32 values from column to column of the sums; four more than used spread a fragment's columns over the banks."""


class IndexFrontHopper(IndexFront):
    """The front for sm_90a: eight warps multiply, warp w the channels 16 w .. 16 w + 15 of all rows of the tile."""

    warps = WARPS + MULTIPLIERS + 4
    multipliers = MULTIPLIERS
    releases = MULTIPLIERS
    completions = THREADS

    @property
    def registers(self) -> Mapping[str, int]:
        """What the loads of four rows at once take, or else the sums of 256 rows."""
        wide = self.plan.n > MAX_ROWS
        return {"write": 104 if wide else 152, "multiply": 176 if wide else 152, "load": 56}

    @cute.jit
    def multiply(self, cta, thread: Int32):
        """Every block in four steps of 16 columns; the next block's steps are issued before a stage is given back."""
        plan = cta.plan
        tiled = products(plan.n)
        slices = tiled.get_slice(thread)
        rW = tiled.make_fragment_A(slices.partition_A(operand(cta.weights, DIM, plan.stages)))
        rX = tiled.make_fragment_B(slices.partition_B(operand(cta.rows, plan.n, plan.stages)))
        rSum = cute.make_rmem_tensor(tiled.partition_shape_C((DIM, plan.n)), Float32)
        for block in cutlass.range(plan.blocks, unroll=1):
            stage = block % plan.stages
            turn = (block // plan.stages) & 1
            cute.arch.mbarrier_wait(cta.weights_full(stage), turn)
            cute.arch.mbarrier_wait(self.rows_arrived(cta, stage), turn)
            warpgroup.fence()
            for step in cutlass.range_constexpr(cute.size(rW, mode=[2])):
                tiled.set(warpgroup.Field.ACCUMULATE, block + step > 0)
                cute.gemm(tiled, rSum, rW[None, None, step, stage], rX[None, None, step, stage], rSum)
            warpgroup.commit_group()
            if cutlass.const_expr(plan.stages < plan.blocks):
                warpgroup.wait_group(1)
                if block > 0 and thread % 32 == 0:
                    cute.arch.mbarrier_arrive(cta.empty((block - 1) % plan.stages))
        warpgroup.wait_group(0)
        self.hand_over(cta, rSum, thread)

    @cute.jit
    def hand_over(self, cta, rSum, thread: Int32):
        """A fragment's sums to where the epilogue reads them.

        Element i of a thread is channel 16 * warp + lane / 4, 8 more if i & 2, and row 8 (i / 4) + 2 (lane % 4), one
        more if i & 1.
        """
        plan = cta.plan
        lower = thread // 32 * 16 + thread % 32 // 4
        if cutlass.const_expr(plan.split > 1):
            for eight in cutlass.range_constexpr(plan.n // 8):
                row = thread % 4 * 2 + eight * 8
                owner = row // plan.owned
                for half in cutlass.range_constexpr(2):
                    line = cta.part * DIM + lower + half * 8
                    i = eight * 4 + half * 2
                    place = cta.mailbox + (line * plan.mailbox_pitch + row % plan.owned)
                    push2(place, rSum[i], rSum[i + 1], cta.partials_full, owner)
        else:
            # The sums lie where others of these warps may still have operands.
            cute.arch.barrier(barrier_id=2, number_of_threads=THREADS)
            sums = cute.recast_ptr(cta.weights, dtype=Float32)
            for eight in cutlass.range_constexpr(plan.n // 8):
                row = thread % 4 * 2 + eight * 8
                for i in cutlass.range_constexpr(4):
                    sums[(row + i % 2) * PITCH + lower + i // 2 * 8] = rSum[eight * 4 + i]
            cute.arch.mbarrier_arrive(cta.accumulated)

    @cute.jit
    def sums(self, cta, channel: Int32):
        """Where they lie in shared memory."""
        if cutlass.const_expr(self.plan.split > 1):
            cute.arch.mbarrier_wait(cta.partials_full, 0)
            return MailboxColumns(cta, channel)
        cute.arch.mbarrier_wait(cta.accumulated, 0)
        return SharedColumns(cta, channel)


class SharedColumns(Fixed):
    """Complete sums in shared memory, where the ring was."""

    def __init__(self, cta, channel: Int32):
        self.at = cute.recast_ptr(cta.weights, dtype=Float32) + channel

    @cute.jit
    def load4(self, column: Int32):
        """Four columns of this thread's channel."""
        rX = cute.make_rmem_tensor(GROUP, Float32)
        for c in cutlass.range_constexpr(GROUP):
            rX[c] = self.at[(column + c) * PITCH]
        return rX.load()


def products(n: int) -> cute.TiledMma:
    """`wgmma` of 128 channels and n rows, by two warpgroups: both operands in shared memory, sums in float32.

    More than 128 rows take two instructions, as ptxas wants the registers of one to be there when the kernel starts.
    """
    rows = n if n <= MAX_ROWS else n // 2
    operation = warpgroup.MmaF16BF16Op(
        BFloat16, Float32, (DIM // 2, rows, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K
    )
    return cute.make_tiled_mma(operation, (2, 1, 1))


def operand(tiles: cute.Pointer, rows: int, stages: int) -> cute.Tensor:
    """One operand's part of the ring: `[rows, 64, stages]`, swizzled over 128 bytes."""
    swizzled = cute.recast_ptr(tiles, cute.make_swizzle(*SWIZZLE), dtype=BFloat16)
    return cute.make_tensor(
        swizzled, cute.make_layout((rows, BLOCK_COLUMNS, stages), stride=(BLOCK_COLUMNS, 1, rows * BLOCK_COLUMNS))
    )
