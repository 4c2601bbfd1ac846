"""What `equiv budget` found, as text or JSON: each kernel's figures, and how they differ from its budget."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD = ("pair", "party", "kernel", "arch", "compiler", "variants", "registers", "stack", "spills", "shared", "barriers")
FIGURES = HEAD[6:]


def short(symbol: str) -> str:
    """A kernel's name: what a person called it, without the types that CuTe DSL puts around it."""
    found = re.match(r"kernel_cutlass_\w+?_\w*?([A-Z]\w*?)_object_at_", symbol)
    return found[1] if found else re.sub(r"^kernel_cutlass_(\w+?)_tensorptr\w*$", r"\1", symbol)


def changes(use: Any, budget: Any) -> list[str]:  # noqa: ANN401  a `budget.Use`; reports know no command
    """`registers 96 -> 128` for each figure that is another."""
    return [
        f"{name} {getattr(budget, name)} -> {getattr(use, name)}"
        for name in FIGURES
        if getattr(use, name) != getattr(budget, name)
    ]


def render(
    found: Sequence[Any], known: Mapping[tuple[str, ...], Any], failed: Sequence[str], *, updated: bool = False
) -> str:
    """The table, what changed against the budgets, what could not be compiled, and a line that counts."""
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
        without += budget is None
        if budget is not None and (changed := changes(use, budget)):
            more = bool(use.over(budget))
            over += more
            lines.append(f"{'OVER' if more else 'under'}  {where}: {', '.join(changed)}")
    lines += [f"FAILED  {words}" for words in failed]
    gone = sorted({key[:4] for key in known} - {use.key[:4] for use in found})
    lines += [f"gone  {' '.join(key)}: has a budget, and no case compiled it" for key in gone]
    counted = (
        f"{len(found)} kernel(s), {over} over budget, {without} without one for these versions, {len(failed)} failed"
    )
    lines.append(counted + ("; budgets written" if updated else ""))
    return visible("\n".join(lines) + "\n")


def document(
    found: Sequence[Any], known: Mapping[tuple[str, ...], Any], failed: Sequence[str], *, updated: bool = False
) -> str:
    """The same as JSON."""
    kernels = []
    for use in found:
        budget = known.get(use.key)
        over = list(use.over(budget)) if budget else []
        kernels.append({**asdict(use), "budget": asdict(budget) if budget else None, "over": over})
    return json.dumps({"kernels": kernels, "failed": list(failed), "updated": updated}, indent=1) + "\n"
