"""A pair's rounding ledger and declarations as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Row

WIDTH = 118


def ledger(rows: Iterable[Row]) -> str:
    """Every row with all it says: what is rounded, from and to which format, how, where, why, and the variants."""
    return "\n".join(line for row in rows for line in _row(row))


def _row(row: Row) -> Iterator[str]:
    yield f"{row.id}  {row.value}: {row.source} -> {row.target}, {row.mode} [{row.kind}]"
    facts = {name: getattr(row, name) for name in ("ties", "saturation", "nan", "zero", "oracle", "candidate", "why")}
    if len(row.names) > 1:
        facts["variants"] = ", ".join(row.names)
    for name, said in facts.items():
        if said:
            yield textwrap.fill(said, WIDTH, initial_indent=f"    {name:11}", subsequent_indent=" " * 15)


def declaration(declared: Declaration | None) -> str:
    """The orders, level by level, and the variants that a party declares."""
    if declared is None:
        return "  nothing is declared for these versions: verdicts are WITHIN at best"
    lines = []
    for name, order in sorted(declared.orders.items()):
        lines += [f"  order {name}  {order.digest}", textwrap.indent(str(order), "    ")]
    lines += [f"  {row}  {variant}" for row, variant in sorted(declared.variants.items())]
    return "\n".join(lines)
