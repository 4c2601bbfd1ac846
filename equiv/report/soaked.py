"""What `equiv soak` found, as text: counts, and every case that failed, with the entry that keeps it in a case file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.records import Status
from equiv.report import entry
from equiv.report.outcome import PASSING
from equiv.report.text import case_text, counts, noted, table, unsupported, within
from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.drawn import Cases
    from equiv.records import Case, Verdict


def render(
    verdicts: Sequence[Verdict],
    cases: Mapping[str, Case],
    drawn: Cases,
    environment: Mapping[str, str],
    remarks: Sequence[str] = (),
    *,
    took: float,
) -> str:
    """The whole report; `cases` by name, `took` seconds since the command began, `remarks` lines about the run."""
    parts = [table(verdicts)] if verdicts else []
    for verdict in verdicts:
        if verdict.status not in PASSING | {Status.UNSUPPORTED}:
            parts += [case_text(verdict), entry.toml(cases[verdict.case])]
    for status, blocks in ((Status.UNSUPPORTED, unsupported), (Status.WITHIN, within)):
        parts += blocks([verdict for verdict in verdicts if verdict.status is status])
    parts += [said] if (said := noted(verdicts)) else []
    parts.append("with " + ", ".join(f"{name} {version}" for name, version in environment.items()))
    compilations = len({int(verdict.case.rpartition("-")[2]) // drawn.sharing for verdict in verdicts})
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(drawn.refused.items())) or "none"
    spent = sum(verdict.seconds for verdict in verdicts)
    shared = f"{compilations} set(s) of compiled axes for up to {drawn.sharing} cases each, of about {drawn.most:g} s"
    lines = [
        f"seed {drawn.seed}: {shared} at most; draws that were no case as they were: {refused}",
        f"{took:.0f} s, {1000 * spent / max(1, len(verdicts)):.0f} ms a case and core with compilations",
        *remarks,
    ]
    return visible("\n\n".join([*parts, "\n".join(lines), counts(verdicts)]) + "\n")
