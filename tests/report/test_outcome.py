"""The exit code table of design.md, row by row."""

from __future__ import annotations

import pytest

from equiv.records import Status, Verdict
from equiv.report.outcome import exit_code

ROWS: list[tuple[set[Status], int, int, int]] = [
    # statuses of the run, exit code, with --strict, with --require
    ({Status.IDENTICAL}, 0, 0, 0),
    ({Status.REORDERED}, 0, 0, 0),
    ({Status.WITHIN}, 0, 1, 0),
    ({Status.IDENTICAL, Status.WITHIN}, 0, 1, 0),
    ({Status.MISMATCH}, 1, 1, 1),
    ({Status.ERROR}, 1, 1, 1),
    ({Status.NOT_RUN}, 1, 1, 1),
    ({Status.IDENTICAL, Status.UNSUPPORTED}, 0, 0, 1),
    ({Status.UNSUPPORTED}, 3, 3, 1),
    ({Status.UNSUPPORTED, Status.NOT_RUN}, 1, 1, 1),
]


@pytest.mark.parametrize(("statuses", "plain", "strict", "require"), ROWS)
def test_the_exit_code_follows_the_worst_status_and_the_options(
    statuses: set[Status], plain: int, strict: int, require: int
) -> None:
    verdicts = [Verdict("fake::a", "emulated:sm_90a", 1, status, "") for status in statuses]
    found = (exit_code(verdicts), exit_code(verdicts, strict=True), exit_code(verdicts, require=True))
    assert found == (plain, strict, require)
