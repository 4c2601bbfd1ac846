"""The front's loads and keys: weights before the grid dependency, then rows and the rest of the weights, then keys.

`load_blocks` is the sm_100a form's, the rest is both forms'.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Int32, cute
from cutlass.cute.nvgpu import cpasync

from equiv.cute.dsa.tiling import BLOCK_COLUMNS
from equiv.cute.shared import acquire_tensor_map, load_box
from equiv.geometry.dsa import DIM, HEADS

SWIZZLE = (3, 4, 3)
"""CuTe's spelling of the 128-byte swizzle: chunks of 16 bytes are permuted by the row's number modulo 8."""


@cute.jit
def load_first_weights(cta, mMap):
    """Fills the ring with weights, which no earlier kernel writes; for the whole warp, before any other wait."""
    with cute.arch.elect_one():
        acquire_tensor_map(mMap.iterator.toint())
        for stage in cutlass.range_constexpr(cta.plan.stages):
            load_weights(cta, mMap, Int32(stage), Int32(stage))


@cute.jit
def load_weights(cta, mMap, block: Int32, stage: Int32):
    """128 channels of the head, the slice's 64-column block `block`; for one thread."""
    barrier = cta.weights_full(stage)
    cute.arch.mbarrier_arrive_and_expect_tx(barrier, cta.plan.weight_bytes)
    column = (cta.part * cta.plan.blocks + block) * BLOCK_COLUMNS
    destination = cta.weights + stage * cta.plan.weight_bytes
    load_box(destination, mMap.iterator.toint(), column, cta.head * DIM, barrier)


@cute.jit
def load_blocks(cta, mMap, rows_atom, tRows):
    """Rows of every block, and the weights that did not fit the first ring, as stages fall empty; whole warp.

    Rows past the batch arrive as zeros.
    """
    plan = cta.plan
    tiles = cute.make_layout((plan.n, BLOCK_COLUMNS, plan.stages), stride=(BLOCK_COLUMNS, 1, plan.n * BLOCK_COLUMNS))
    sRows = cute.make_tensor(cute.recast_ptr(cta.rows, cute.make_swizzle(*SWIZZLE), dtype=BFloat16), tiles)
    gRows = cute.local_tile(tRows, (plan.n, BLOCK_COLUMNS), (cta.tile, None))
    sRows, gRows = cpasync.tma_partition(
        rows_atom, 0, cute.make_layout(1), cute.group_modes(sRows, 0, 2), cute.group_modes(gRows, 0, 2)
    )
    for block in cutlass.range(plan.blocks, unroll=1):
        stage = block % plan.stages
        if block >= plan.stages:
            cute.arch.mbarrier_wait(cta.empty(stage), (block // plan.stages - 1) & 1)
            with cute.arch.elect_one():
                load_weights(cta, mMap, block, stage)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(cta.rows_full(stage), plan.row_bytes)
        at = cta.part * plan.blocks + block
        cute.copy(rows_atom, gRows[None, at], sRows[None, stage], tma_bar_ptr=cta.rows_full(stage))


@cute.jit
def insert_keys(cta, index, mP, mNormW, mNormB, mCache, mSlots, key_eps, lane: Int32):
    """The batch's index keys, dealt to the CTAs of the grid in turn; `index` is a `DsaIndex`."""
    _, _, tiles = cute.arch.grid_dim()
    for token in cutlass.range(cta.number, mP.shape[0], tiles * (HEADS * cta.plan.split), unroll=1):
        index.insert_key(mP, mNormW, mNormB, mCache, mSlots, token, key_eps, lane)
