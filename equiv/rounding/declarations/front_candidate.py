"""Declarations of the front's two forms: one a number of slices, `split1`, `split2`, `split4`, as the batch has it.

Read from the PTX of `IndexFrontMma` for sm_100a and of `IndexFrontHopper` for sm_90a, which differ in the instruction
alone. A row's squares are on one warp, 48 a lane in four chains that start at +0; ptxas contracts nothing there. The
projection is a chain a slice, of `tcgen05.mma` (M = 128, K = 16) or of `wgmma` (two of M = 64, K = 16), the slices
added in ascending order. Key orders and variants are those of `DsaIndex`, whose code both run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Declaration
from equiv.rounding.declarations import dsa
from equiv.rounding.declarations.front import EACH, LANES, MATRIX, RANK, STRIDES, projection
from equiv.rounding.orders import Const, Order, butterfly, chain, leaves, pairwise

if TYPE_CHECKING:
    from collections.abc import Mapping

CHAINS: Final = 4
SPLITS: Final = (1, 2, 4)


def row_order() -> Order:
    """Lane l has columns 256 i + 8 l .. + 7; its e-th goes to chain e mod 4; (c0 + c1) + (c2 + c3); a butterfly."""
    lanes = []
    for lane in range(LANES):
        columns = [first + EACH * lane + j for first in range(0, RANK, LANES * EACH) for j in range(EACH)]
        chains = [chain(leaves(columns[c::CHAINS]), Const(0), fused=True) for c in range(CHAINS)]
        lanes.append(pairwise(chains))
    return Order.of(RANK, butterfly(lanes, STRIDES)[0])


VARIANTS: Final[Mapping[str, str]] = {**dsa.CANDIDATE, "dsa.R2": "div.rn", "dsa.R3": "add", "dsa.R4": "rsqrt.approx"}

DECLARATIONS: Final[tuple[Declaration, ...]] = tuple(
    Declaration(
        "candidate",
        {"nvidia-cutlass-dsl": "4.8.1"},
        arch,
        {"row.squares": row_order(), "projection": projection(instruction, split), **dsa.CUTE_ORDERS},
        VARIANTS,
        form=f"split{split}",
    )
    for arch, instruction in MATRIX.items()
    for split in SPLITS
)
