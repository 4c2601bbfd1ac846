"""What `equiv budget` found, as text or JSON: each kernel's figures, and how they differ from its budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD = ("pair", "party", "kernel", "arch", "compiler", "variants", "registers", "stack", "spills", "shared", "barriers")
FIGURES = HEAD[6:]


def changes(use: Any, budget: Any) -> list[str]:  # noqa: ANN401  a `budget.Use`; reports know no command
    """`registers 96 -> 128` for each figure that is another."""
    return [
        f"{name} {getattr(budget, name)} -> {getattr(use, name)}"
        for name in FIGURES
        if getattr(use, name) != getattr(budget, name)
    ]


def render(
    found: Sequence[Any],
    known: Mapping[tuple[str, ...], Any],
    failed: Sequence[str],
    gone: Sequence[tuple[str, ...]] = (),
    *,
    updated: bool = False,
) -> str:
    """The table, what changed against the budgets, what could not be compiled or has none, and a line that counts.

    `gone` are keys of budgets whose kernel no case compiled.
    """
    rows = [list(HEAD)] + [[str(getattr(use, name)) for name in HEAD] for use in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:5], widths[:5], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(row[5:], widths[5:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.append("")
    over = without = 0
    for use in found:
        where = f"{use.pair} {use.party} {use.kernel} {use.arch}"
        budget = known.get(use.key)
        if budget is None:
            without += 1
            lines.append(f"without  {where}: no budget for {use.compiler}")
        if budget is not None and (changed := changes(use, budget)):
            more = bool(use.over(budget))
            over += more
            lines.append(f"{'OVER' if more else 'under'}  {where}: {', '.join(changed)}")
    lines += [f"FAILED  {words}" for words in failed]
    lines += [f"gone  {' '.join(key)}: has a budget, and no case compiled it" for key in gone]
    counted = (
        f"{len(found)} kernel(s), {over} over budget, {without} without one for these versions, {len(failed)} failed"
    )
    lines.append(counted + ("; budgets written" if updated else ""))
    return visible("\n".join(lines) + "\n")


def document(
    found: Sequence[Any],
    known: Mapping[tuple[str, ...], Any],
    failed: Sequence[str],
    gone: Sequence[tuple[str, ...]] = (),
    *,
    updated: bool = False,
) -> str:
    """The same as JSON."""
    kernels = []
    for use in found:
        budget = known.get(use.key)
        over = list(use.over(budget)) if budget else []
        kernels.append({**asdict(use), "budget": asdict(budget) if budget else None, "over": over})
    said = {"kernels": kernels, "failed": list(failed), "gone": [list(key) for key in gone], "updated": updated}
    return json.dumps(said, indent=1) + "\n"
