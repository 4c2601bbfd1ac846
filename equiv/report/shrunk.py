"""What `equiv shrink` found, as text: what became smaller, the smaller case for a case file, and its fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.report.text import difference_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import AxisValue, Case
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
    """The smaller case as an entry of a case file; every axis and regime is stated, whatever the file's defaults."""
    case = found.case
    lines = [
        "[[case]]",
        f"id = {_value(name(case))}",
        f"why = {_value(f'Shrunk from {case.name}: {found.fault}.')}",
        f"seed = {case.seed}",
        f"suites = [{', '.join(map(_value, case.suites or ('nightly',)))}]",
        f"axes = {_table(case.axes)}",
        f"regimes = {_table(case.regimes)}",
    ]
    return "\n".join(lines)


def _table(entries: Mapping[str, AxisValue]) -> str:
    return "{ " + ", ".join(f"{key} = {_value(value)}" for key, value in entries.items()) + " }"


def _value(value: AxisValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
