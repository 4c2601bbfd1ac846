"""Declarations of the pair `kda`: the stock Triton chain, `KdaWide` and `KdaWS`.

Candidates' orders are those of spec kda 2.2 until each kernel's own PTX is read.
"""

from __future__ import annotations

from typing import Final

from equiv.rounding.declaration import Declaration
from equiv.rounding.declarations import kda_oracle
from equiv.rounding.declarations.kda_orders import ARCHITECTURES, DIM, four_warps, gates, one_a_lane
from equiv.rounding.orders import Order, butterfly, chain, leaves


def persistent() -> Order:
    """KdaWS's dots: lane l of 8 has keys 4 (l + 8 c) + e; a chain of fmas over c for each e, (e0 + e2) + (e1 + e3)."""
    lanes = []
    for lane in range(8):
        parts = [chain(leaves(4 * (lane + 8 * c) + e for c in range(4)), fused=True) for e in range(4)]
        lanes.append(four_warps(parts))
    return Order.of(DIM, butterfly(lanes, (4, 2, 1))[0])


def _candidate(form: str, arch: str) -> Declaration:
    orders = {
        "q.squares": one_a_lane(fused=False),
        "dot": persistent(),
        "out": persistent(),
        "norm.squares": one_a_lane(fused=False),
        "commit.squares": one_a_lane(fused=False),
    }
    variants = {"kda.13b": "rcp", "kda.13c": "rcp", "kda.13r": "rcp"}
    return Declaration("candidate", {"nvidia-cutlass-dsl": "4.8.1"}, arch, {**gates(arch), **orders}, variants, form)


CANDIDATE_FORMS: Final = ("wide", "ws", "wide-commit", "ws-commit")

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    *kda_oracle.DECLARATIONS,
    *(_candidate(form, arch) for form in CANDIDATE_FORMS for arch in ARCHITECTURES),
)
