"""Envelopes: which outputs the declared differences of two parties may lead to, from the case's own data (design 4).

One module a pair. Here is what they share: how deep the declared orders are, and which steps a ledger row may take.
Nothing is tuned. Where a party declares nothing, every order of its reductions and every variant that the ledger knows
is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger, Step


def depth(declarations: Sequence[Declaration | None], reduction: str, terms: int, *, products: bool) -> int:
    """The most roundings a term undergoes in any declared order; with an unknown party, in any order at all."""
    depths = [
        terms - 1 + int(products) if d is None else d.order(reduction).roundings(products=products)
        for d in declarations
    ]
    return max(depths)


def allowed_steps(ledger: Ledger, declarations: Sequence[Declaration | None], row_id: str) -> list[Step]:
    """Functions that the parties use for a ledger row; for an unknown party all its variants."""
    row = ledger[row_id]
    names: dict[str, None] = {}
    for d in declarations:
        names.update(dict.fromkeys(row.names if d is None else [d.variants.get(row_id, row.names[0])]))
    return [row.steps[name] for name in names]
