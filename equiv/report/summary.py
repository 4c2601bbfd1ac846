"""A run in a few lines of markdown: what a pull request's page shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.records import SEVERITY, Status, Verdict
from equiv.report import text
from equiv.report.outcome import closed_gaps, is_known_gap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHOWN = 10
"""Cases that are shown whole."""


def render(verdicts: Sequence[Verdict], environment: Mapping[str, str], remarks: Sequence[str] = ()) -> str:
    """The table of statuses, then every case that is not as it must be, the worst ones whole; ends in a newline."""
    head = "equiv: every case is as declared" if not _bad(verdicts) else f"equiv: {len(_bad(verdicts))} case(s) are not"
    parts = [f"### {head}", _table(verdicts)]
    parts += [
        f"<details><summary>{_escaped(f'{verdict.status} {verdict.case} on {verdict.device}')}</summary>\n\n"
        f"{_fenced(text.case_text(verdict))}\n\n</details>"
        for verdict in _bad(verdicts)[:SHOWN]
    ]
    if len(_bad(verdicts)) > SHOWN:
        parts.append(f"{len(_bad(verdicts)) - SHOWN} more are in the journal.")
    lines = [*text.closed(verdicts), *remarks]
    parts += [f"- {_escaped(line)}" for line in lines]
    parts.append(", ".join(f"{name} {_escaped(version)}" for name, version in environment.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _bad(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The cases that fail a run, worst first, and those that are listed as gaps and pass."""
    closed = closed_gaps(verdicts)
    good = {Status.IDENTICAL, Status.REORDERED, Status.WITHIN, Status.UNSUPPORTED}
    found = [
        verdict
        for verdict in verdicts
        if (verdict.status not in good and not is_known_gap(verdict)) or verdict.case in closed
    ]
    return sorted(found, key=lambda verdict: (-SEVERITY.index(verdict.status), verdict.case, verdict.device))


def _table(verdicts: Sequence[Verdict]) -> str:
    used = [status for status in SEVERITY if any(verdict.status is status for verdict in verdicts)]
    rows = [["pair", "device", *used], ["---"] * (2 + len(used))]
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.case.partition("::")[0], verdict.device), []).append(verdict)
    for (pair, device), members in sorted(groups.items()):
        counts = [sum(verdict.status is status for verdict in members) for status in used]
        rows.append([_escaped(pair), _escaped(device), *map(str, counts)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _escaped(said: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("\n", " ")):
        said = said.replace(character, entity)
    return said


def _fenced(said: str) -> str:
    """A code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in said.replace("\n", " ").split() if set(run) == {"`"}), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{said}\n{fence}"
