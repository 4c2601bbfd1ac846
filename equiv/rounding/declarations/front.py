"""Declarations of the pair `dsa_front`: its stock Triton chain; those of the candidate are in `front_candidate`.

Read from the PTX of `triton_ref.dsa_front` for both architectures, and from the SASS that ptxas makes of it: there the
division of the square sum by 1536 is a product with fl(1/1536), contracted with the addition of eps.

The projection is `wgmma.m64n16k16` on sm_90a and `tcgen05.mma` (M = 128, K = 16) on sm_100a, two of M = 64 and one of
M = 128; in both, 96 instructions in a row over ascending K, the first of them from +0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Declaration, Terms
from equiv.rounding.declarations import dsa
from equiv.rounding.orders import Order, add, butterfly, chain, leaves, matrix_chain, pairwise, split_k
from equiv.rounding.trees import Add, Const, Fma, Leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from equiv.rounding.trees import Node

RANK: Final = 1536
LANES: Final = 32
WARPS: Final = 8
EACH: Final = 8
"""Neighbouring columns of a lane, of which 2048 are covered: those beyond the row count as zeros."""
STRIDES: Final = (16, 8, 4, 2, 1)
MATRIX: Final[Mapping[str, str]] = {
    "sm_90a": "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 sm_90a",
    "sm_100a": "tcgen05.mma.cta_group::1.kind::f16.f32.bf16.bf16 sm_100a",
}
STEP: Final = 16
"""Products of one of these instructions."""


def projection(variant: str, split: int = 1, terms: int = RANK) -> Order:
    """Slices of K, each a chain of matrix instructions from +0, added in ascending order.

    Args:
        variant: the instruction and its architecture, a value of `MATRIX`.
        split: number of slices.
        terms: number of products.
    """
    slices = [matrix_chain(part, STEP, variant) for part in split_k(terms, split)]
    return Order.of(terms, chain(slices))


def _serial(first: int) -> Node:
    """Triton 3.6 on sm_90a: a chain in ascending order, each square but the second fused."""
    return chain(leaves(range(first + 2, first + EACH)), Fma(first, Leaf(first + 1)), fused=True)


def _serial_packed(first: int) -> Node:
    """Triton 3.6 on sm_100a: the same chain in f32x2, of which only the lower half counts: each other square fused."""
    total: Node = Fma(first, Leaf(first + 1))
    for at in range(first + 2, first + EACH, 2):
        total = Add(Leaf(at + 1), Fma(at, total))
    return total


def _pairs(first: int) -> Node:
    """Triton 3.8 on sm_90a: pairs of neighbours, then pairs of pairs."""
    return pairwise(leaves(range(first, first + EACH)), fused=True)


def _pairs_packed(first: int) -> Node:
    """Triton 3.8 on sm_100a: even and odd columns in the two halves of f32x2, each by pairs; then the halves."""
    even, odd = (pairwise(leaves(range(first + half, first + EACH, 2)), fused=True) for half in (0, 1))
    return add(even, odd)


def row_order(of_lane: Callable[[int], Node]) -> Order:
    """1536 squares on eight warps, eight neighbours a lane: a butterfly in each warp, one over the eight.

    The last two warps hold columns beyond the row: zeros.
    """

    def warp(w: int) -> Node:
        firsts: Sequence[int] = range(w * LANES * EACH, (w + 1) * LANES * EACH, EACH)
        if firsts[0] >= RANK:
            return Const(0)
        return butterfly([of_lane(first) for first in firsts], STRIDES)[0]

    return Order.of(RANK, butterfly([warp(w) for w in range(WARPS)], (4, 2, 1))[0])


ROW_ORDERS: Final[Mapping[tuple[str, str], Callable[[int], Node]]] = {
    ("3.6.0", "sm_90a"): _serial,
    ("3.6.0", "sm_100a"): _serial_packed,
    ("3.8.0", "sm_90a"): _pairs,
    ("3.8.0", "sm_100a"): _pairs_packed,
}
"""(Triton version, architecture) -> the order of a lane's eight squares from its first column on."""

ORACLE: Final[Mapping[str, str]] = {**dsa.ORACLE, "dsa.R3": "fma", "dsa.R4": "rsqrt.approx.ftz"}

DECLARATIONS: Final[tuple[Declaration, ...]] = tuple(
    Declaration(
        "oracle",
        {"triton": version},
        arch,
        {"row.squares": row_order(of_lane), "projection": projection(MATRIX[arch]), **dsa.TRITON_ORDERS},
        ORACLE,
    )
    for (version, arch), of_lane in ROW_ORDERS.items()
)

TERMS: Final[Mapping[str, Terms]] = {
    "row.squares": Terms("squares", RANK, ("projected",), where={"normalized": False}),
    "projection": Terms(
        "products",
        RANK,
        ("projected", "w_q"),
        unfollowed="operands of wgmma and tcgen05.mma are not followed; bits that cancelling leaves tell",
    ),
    **dsa.TERMS,
}
"""Term i is column i of the row, and channel i of the key; the bits are those of tests/triton_ref and tests/cute."""
