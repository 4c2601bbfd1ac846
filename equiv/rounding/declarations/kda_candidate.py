"""Declarations of the pair `kda`'s candidates: `KdaWide`, `KdaWS`, and either with `RecoverCommit` after it.

Read from their PTX for both architectures, which differ in form alone: sm_100a has packed operations where sm_90a has
two. Products that an addition follows are `.rn`, so ptxas contracts none of them; what is fused is written as
`fma.rn`. The kernels share their order of every sum.

F_B projection: a lane passes its columns 4 i .. 4 i + 3 of a chunk of 16 as k = 2 i, 2 i + 1, 2 i + 8, 2 i + 9. The
unit sums all 16 products at once, whatever their k, so `gates` lists the columns ascending, like the oracle's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Declaration
from equiv.rounding.declarations.kda_orders import ARCHITECTURES, DIM, four_warps, gates, one_a_lane
from equiv.rounding.orders import Node, Order, butterfly, chain, leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMS: Final = ("wide", "ws", "wide-commit", "ws-commit")


def row_order() -> Order:
    """A state row on 8 lanes, lane l with keys 4 (l + 8 c) + e: an FMA chain over c for each e, then over e and lanes.

    A chain begins with a rounded product; (e0 + e2) + (e1 + e3), then lane distances 4, 2, 1.
    """

    def lane(index: int) -> Node:
        return four_warps([chain(leaves(4 * (index + 8 * c) + e for c in range(4)), fused=True) for e in range(4)])

    return Order.of(DIM, butterfly([lane(index) for index in range(8)], (4, 2, 1))[0])


STEP: Final[Mapping[str, str]] = {
    "kda.4": "fma",
    "kda.5a": "div.full",
    "kda.13b": "rcp",
    "kda.13c": "rcp",
    "kda.13d": "ex2.approx",
    "kda.13g": "div.full",
    "kda.13i": "ex2.approx",
    "kda.13j": "div.full",
    "kda.13n": "fma",
    "kda.13q": "fma",
    "kda.13r": "rcp",
    "kda.13u": "div.full",
}
COMMIT: Final[Mapping[str, str]] = {"kda.13o": "rcp", "kda.13p": "forward"}
"""The commit is the recurrence with recorded corrections, its keys normalised as the step does."""


def _declared(form: str, arch: str) -> Declaration:
    squares = dict.fromkeys(("q.squares", "norm.squares", "commit.squares"), one_a_lane(fused=False))
    orders = {**gates(arch), **squares, "dot": row_order(), "out": row_order()}
    variants = {**STEP, **COMMIT} if form.endswith("commit") else STEP
    return Declaration("candidate", {"nvidia-cutlass-dsl": "4.8.1"}, arch, orders, variants, form)


DECLARATIONS: Final[tuple[Declaration, ...]] = tuple(_declared(form, arch) for form in FORMS for arch in ARCHITECTURES)
