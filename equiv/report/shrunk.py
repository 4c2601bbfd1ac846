"""What `equiv shrink` found, as text: what became smaller, the smaller case for a case file, and its fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from equiv.report import entry
from equiv.report.text import difference_lines

if TYPE_CHECKING:
    from equiv.records import Case
    from equiv.shrink import Shrunk

SUFFIX = "-shrunk"
LONGEST = 80
"""Characters of a case's id."""


def render(found: Shrunk, device: str) -> str:
    """The steps, the case, what is left of the inputs, the fault in the smaller case."""
    spent = f"{found.attempts} attempts in {found.seconds:.0f} s"
    more = ", which was all the time given: more of it may lead further" if found.over else ""
    lines = [f"{found.case.name}  {device}: {found.fault}; {spent}{more}"]
    lines += [f"  {step}" for step in found.steps] or ["  nothing could be made smaller"]
    lines += ["", toml(found), ""]
    if found.changed:
        lines.append("with these inputs instead of those that the case generates:")
        lines += [f"  {words}" for words in found.changed]
    if found.difference is not None:
        lines += [f"  {found.difference.output}", *difference_lines(found.difference)]
    lines += [f"  {line}" for line in found.detail.splitlines()]
    return "\n".join(lines)


def name(case: Case) -> str:
    """What the smaller case is called."""
    return f"{case.id[: LONGEST - len(SUFFIX)]}{SUFFIX}"


def toml(found: Shrunk) -> str:
    """The smaller case as an entry of a case file."""
    why = f"Shrunk from {found.case.name}: {found.fault}."
    return entry.toml(replace(found.case, id=name(found.case), why=why))
