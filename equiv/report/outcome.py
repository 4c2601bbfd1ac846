"""What a run as a whole comes to: the exit code of `equiv run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.records import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILING = frozenset({Status.MISMATCH, Status.ERROR, Status.NOT_RUN})
"""Statuses that no option forgives."""

PASSING = frozenset({Status.IDENTICAL, Status.REORDERED, Status.WITHIN})

NOTHING_RAN = 3


def is_known_gap(verdict: Verdict) -> bool:
    """Whether this is the MISMATCH that the case is listed for."""
    return verdict.status is Status.MISMATCH and bool(verdict.gap)


def closed_gaps(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Cases that are listed as known gaps, passed and were a MISMATCH nowhere in this run -> their entry in words."""
    still_open = {verdict.case for verdict in verdicts if is_known_gap(verdict)}
    return {
        verdict.case: verdict.gap
        for verdict in verdicts
        if verdict.gap and verdict.status in PASSING and verdict.case not in still_open
    }


def exit_code(verdicts: Sequence[Verdict], *, strict: bool = False, require: bool = False) -> int:
    """0 all good; 1 a failing status, WITHIN if `strict`, UNSUPPORTED if `require`; 3 everything was UNSUPPORTED.

    A MISMATCH of a case that is listed as a known gap is forgiven; a listed case that passes fails (`closed_gaps`).
    """
    if closed_gaps(verdicts):
        return 1
    found = {verdict.status for verdict in verdicts if not is_known_gap(verdict)}
    failing = FAILING | ({Status.WITHIN} if strict else set()) | ({Status.UNSUPPORTED} if require else set())
    if found & failing:
        return 1
    return NOTHING_RAN if found == {Status.UNSUPPORTED} else 0
