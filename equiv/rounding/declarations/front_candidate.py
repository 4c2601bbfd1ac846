"""Declarations of `IndexFrontMma`: one a number of slices, `split1`, `split2`, `split4`, which follows from the batch.

Read from its PTX for sm_100a. A row's squares are on one warp, 48 a lane in four chains that start at +0; ptxas
contracts nothing there. The projection is a chain of `tcgen05.mma` (M = 128, K = 16) a slice, the slices added in
ascending order. Key orders and variants are those of `DsaIndex`, whose code it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Declaration
from equiv.rounding.declarations import dsa
from equiv.rounding.orders import Const, Order, butterfly, chain, leaves, matrix_chain, pairwise, split_k

if TYPE_CHECKING:
    from collections.abc import Mapping

RANK: Final = 1536
LANES: Final = 32
EACH: Final = 8
"""Neighbouring columns that a lane loads at once; it does so every 256 columns."""
CHAINS: Final = 4
STRIDES: Final = (16, 8, 4, 2, 1)
STEP: Final = 16
"""Products of one matrix instruction."""
MATRIX: Final = "tcgen05.mma.cta_group::1.kind::f16.f32.bf16.bf16 sm_100a"
SPLITS: Final = (1, 2, 4)


def row_order() -> Order:
    """Lane l has columns 256 i + 8 l .. + 7; its e-th goes to chain e mod 4; (c0 + c1) + (c2 + c3); a butterfly."""
    lanes = []
    for lane in range(LANES):
        columns = [first + EACH * lane + j for first in range(0, RANK, LANES * EACH) for j in range(EACH)]
        chains = [chain(leaves(columns[c::CHAINS]), Const(0), fused=True) for c in range(CHAINS)]
        lanes.append(pairwise(chains))
    return Order.of(RANK, butterfly(lanes, STRIDES)[0])


def projection(split: int, matrix: str = MATRIX) -> Order:
    """Each slice of K a chain of matrix instructions from +0, the slices added in ascending order."""
    return Order.of(RANK, chain([matrix_chain(part, STEP, matrix) for part in split_k(RANK, split)]))


VARIANTS: Final[Mapping[str, str]] = {**dsa.CANDIDATE, "dsa.R2": "div.rn", "dsa.R3": "add", "dsa.R4": "rsqrt.approx"}

DECLARATIONS: Final[tuple[Declaration, ...]] = tuple(
    Declaration(
        "candidate",
        {"nvidia-cutlass-dsl": "4.8.1"},
        "sm_100a",
        {
            "row.squares": row_order(),
            "projection": projection(split),
            "key.sum": dsa.cute_order(fused=False),
            "key.squares": dsa.cute_order(fused=True),
        },
        VARIANTS,
        form=f"split{split}",
    )
    for split in SPLITS
)
