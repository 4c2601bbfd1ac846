"""Declarations of the front's two forms: one a number of slices, `split1`, `split2`, `split4`, as the batch has it.

Read from the PTX of `IndexFrontMma` for sm_100a and of `IndexFrontHopper` for sm_90a, which always has slices. A row's
squares are on one warp, 48 a lane in four chains that start with a plain product (on sm_90a with one fused onto +0,
which has the same bits); on sm_90a each slice of them is on half a warp, and the slices are added in ascending order.
ptxas contracts nothing there. The projection is a chain a slice, of `tcgen05.mma` (M = 128, K = 16) or of `wgmma` (two
of M = 64, K = 16), the slices added in ascending order. Key orders and variants are those of `DsaIndex`, whose code
both run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.errors import UsageError
from equiv.rounding.declaration import Declaration
from equiv.rounding.declarations import dsa
from equiv.rounding.declarations.front import EACH, LANES, MATRIX, RANK, STRIDES, projection
from equiv.rounding.orders import Const, Order, butterfly, chain, leaves, pairwise, split_k

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.rounding.trees import Node

CHAINS: Final = 4
SPLITS: Final[Mapping[str, tuple[int, ...]]] = {"sm_90a": (2, 4), "sm_100a": (1, 2, 4)}
"""Architecture -> numbers of slices that its form has."""


def row_order(arch: str = "sm_100a", split: int = 1) -> Order:
    """The order of a row's squares on one of the architectures of `MATRIX`; only sm_90a has slices of them.

    Raises:
        UsageError: another architecture.
    """
    if arch not in SPLITS:
        raise UsageError(f"arch must be {' or '.join(SPLITS)}; got arch={arch!r}")
    if arch == "sm_100a":
        return Order.of(RANK, _squares(range(RANK), LANES, None))
    return Order.of(RANK, chain([_squares(part, LANES // 2, Const(0)) for part in split_k(RANK, split)]))


def _squares(columns: Sequence[int], lanes: int, start: Node | None) -> Node:
    """Lane l has chunks l, l + lanes, ..; its e-th column goes to chain e mod 4; (c0 + c1) + (c2 + c3); a butterfly."""
    sums = []
    for lane in range(lanes):
        firsts = range(lane * EACH, len(columns), lanes * EACH)
        own = [columns[first + j] for first in firsts for j in range(EACH)]
        sums.append(pairwise([chain(leaves(own[c::CHAINS]), start, fused=True) for c in range(CHAINS)]))
    return butterfly(sums, [stride for stride in STRIDES if stride < lanes])[0]


VARIANTS: Final[Mapping[str, str]] = {**dsa.CANDIDATE, "dsa.R2": "div.rn", "dsa.R3": "add", "dsa.R4": "rsqrt.approx"}

DECLARATIONS: Final[tuple[Declaration, ...]] = tuple(
    Declaration(
        "candidate",
        {"nvidia-cutlass-dsl": "4.8.1"},
        arch,
        {"row.squares": row_order(arch, split), "projection": projection(instruction, split), **dsa.CUTE_ORDERS},
        VARIANTS,
        form=f"split{split}",
    )
    for arch, instruction in MATRIX.items()
    for split in SPLITS[arch]
)
