"""A pair's rounding ledger and declarations as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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


def markdown(rows: Iterable[Row], declared: Mapping[str, Mapping[str, Declaration | None]]) -> str:
    """The rows as a table; `declared` is party -> where (form, architecture) -> declaration, None if unknown."""
    head = ["id", "value", "from -> to", "mode, ties", "NaN", "kind", *(f"{party} variant" for party in declared)]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        mode = f"{row.mode}, {row.ties}" if row.ties else row.mode
        variants = [_variant(row, found) for found in declared.values()]
        lines.append([row.id, row.value, f"{row.source} -> {row.target}", mode, row.nan, row.kind, *variants])
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') or '-' for cell in line)} |" for line in lines)


def _variant(row: Row, declared: Mapping[str, Declaration | None]) -> str:
    """The one that a party declares, or which one where if they differ; "" if there is nothing to choose."""
    if len(row.names) == 1:
        return ""
    chosen: dict[str, list[str]] = {}
    for where, one in declared.items():
        name = "unknown" if one is None else one.variants.get(row.id, row.names[0])
        chosen.setdefault(name, []).append(where)
    if len(chosen) == 1:
        return next(iter(chosen))
    return ", ".join(f"{name} ({', '.join(places)})" for name, places in chosen.items())


def declaration(declared: Declaration | None) -> str:
    """The orders, level by level, and the variants that a party declares."""
    if declared is None:
        return "  nothing is declared for these versions: verdicts are WITHIN at best"
    lines = []
    for name, order in sorted(declared.orders.items()):
        lines += [f"  order {name}  {order.digest}", textwrap.indent(str(order), "    ")]
    lines += [f"  {row}  {variant}" for row, variant in sorted(declared.variants.items())]
    return "\n".join(lines)
