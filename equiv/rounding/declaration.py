"""What one implementation says about itself: the order of each reduction, and its variant of each ledger row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from equiv.errors import RecordError
from equiv.rounding.phrases import phrases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import AxisValue
    from equiv.rounding.ledger import Ledger
    from equiv.rounding.orders import Order


@dataclass(frozen=True, slots=True)
class Declaration:
    """One party, compiled by one toolchain for one architecture.

    Attributes:
        party: `oracle`, `candidate`, or the name of a third kernel.
        toolchain: distribution -> version, `{"triton": "3.8.0"}`.
        arch: `sm_90a` or `sm_100a`.
        form: which of the party's kernels this is about, where it has several for different cases (`packed`).
        orders: name of a reduction (the model lists the names it reads) -> its order.
        variants: ledger row id -> name of the variant used; rows not named use their first variant.
    """

    party: str
    toolchain: Mapping[str, str]
    arch: str
    orders: Mapping[str, Order]
    variants: Mapping[str, str]
    form: str = ""

    def order(self, reduction: str) -> Order:
        """The declared order of a reduction.

        Raises:
            RecordError: it is not declared; the declared ones are listed.
        """
        if reduction not in self.orders:
            known = ", ".join(sorted(self.orders)) or "none"
            who = f"{self.party} ({self.form})" if self.form else self.party
            raise RecordError(f"declaration of {who} on {self.arch}: no order for {reduction!r}; declared: {known}")
        return self.orders[reduction]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a declared order's reduction is known among those of a traced launch.

    Attributes:
        form: `values`, `squares` (each term a value times itself) or `products`.
        count: number of terms; term i of the order is the one whose element comes i-th by address.
        buffers: tensors of the pair that the terms read and that differ from term to term, sorted.
        besides: tensors of the pair that they may read too, or from copies that a party makes of them.
        where: axis -> value that a case must have for its kernels to add this.
        unfollowed: why no trace shows it, "" where traces do.
    """

    form: str
    count: int
    buffers: tuple[str, ...]
    besides: tuple[str, ...] = ()
    where: Mapping[str, AxisValue] = field(default_factory=dict)
    unfollowed: str = ""

    def __str__(self) -> str:
        return f"a sum of {self.count} {self.form} of {' and '.join(self.buffers)}"


def differences(left: Declaration, right: Declaration, ledger: Ledger | None = None) -> tuple[str, ...]:
    """What two declarations say differently, one line each; orders that give the same bits are equal.

    Args:
        left: one party's.
        right: the other's.
        ledger: the rows that the variants belong to: says what each row computes and what its default is.
    """
    found = []
    for name in sorted({*left.orders, *right.orders}):
        a, b = left.orders.get(name), right.orders.get(name)
        if a is None or b is None:
            found.append(f"order {name}: declared by {(left if b is None else right).party} only")
        elif a.digest != b.digest:
            said, other = phrases(a, b)
            found.append(f"order {name}: {left.party} {said}; {right.party} {other}")
    for row in sorted({*left.variants, *right.variants}):
        default, what = ("default", "") if ledger is None else (ledger[row].names[0], f" ({ledger[row].value})")
        x, y = left.variants.get(row, default), right.variants.get(row, default)
        if x != y:
            found.append(f"{row}{what}: {left.party} {x}, {right.party} {y}")
    return tuple(found)
