"""What a run as a whole comes to: the exit code of `equiv run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.records import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILING = frozenset({Status.MISMATCH, Status.ERROR, Status.NOT_RUN})
"""Statuses that no option forgives."""

NOTHING_RAN = 3


def exit_code(verdicts: Sequence[Verdict], *, strict: bool = False, require: bool = False) -> int:
    """0 all good; 1 a failing status, WITHIN if `strict`, UNSUPPORTED if `require`; 3 everything was UNSUPPORTED."""
    found = {verdict.status for verdict in verdicts}
    failing = FAILING | ({Status.WITHIN} if strict else set()) | ({Status.UNSUPPORTED} if require else set())
    if found & failing:
        return 1
    return NOTHING_RAN if found == {Status.UNSUPPORTED} else 0
