"""What one implementation says about itself: the order of each reduction, and its variant of each ledger row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equiv.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.rounding.orders import Order


@dataclass(frozen=True, slots=True)
class Declaration:
    """One party, compiled by one toolchain for one architecture.

    Attributes:
        party: `oracle`, `candidate`, or the name of a third kernel.
        toolchain: distribution -> version, `{"triton": "3.8.0"}`.
        arch: `sm_90a` or `sm_100a`.
        orders: name of a reduction (the model lists the names it reads) -> its order.
        variants: ledger row id -> name of the variant used; rows not named use their first variant.
    """

    party: str
    toolchain: Mapping[str, str]
    arch: str
    orders: Mapping[str, Order]
    variants: Mapping[str, str]

    def order(self, reduction: str) -> Order:
        """The declared order of a reduction.

        Raises:
            RecordError: it is not declared; the declared ones are listed.
        """
        if reduction not in self.orders:
            known = ", ".join(sorted(self.orders)) or "none"
            raise RecordError(
                f"declaration of {self.party} on {self.arch}: no order for {reduction!r}; declared: {known}"
            )
        return self.orders[reduction]


def differences(left: Declaration, right: Declaration) -> tuple[str, ...]:
    """What two declarations say differently, one sentence each; orders that give the same bits are equal."""
    found = []
    for name in sorted({*left.orders, *right.orders}):
        a, b = left.orders.get(name), right.orders.get(name)
        if a is None or b is None:
            found.append(f"order {name}: declared by {(left if b is None else right).party} only")
        elif a.digest != b.digest:
            found.append(f"order {name}: {left.party} {_short(a)}, {right.party} {_short(b)}")
    for row in sorted({*left.variants, *right.variants}):
        x, y = left.variants.get(row, "default"), right.variants.get(row, "default")
        if x != y:
            found.append(f"{row}: {left.party} {x}, {right.party} {y}")
    return tuple(found)


def _short(order: Any) -> str:  # noqa: ANN401
    return f"{max(order.levels)} levels, {len(order.roots)} root(s), {order.digest}"
