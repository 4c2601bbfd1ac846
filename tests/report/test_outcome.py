"""The exit code table of design.md, row by row."""

from __future__ import annotations

import pytest

from equiv.records import Status, Verdict
from equiv.report.outcome import closed_gaps, exit_code

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


def listed(status: Status, case: str = "fake::a", gap: str = "slow (until 2030-01-31)") -> Verdict:
    return Verdict(case, "emulated:sm_90a", 1, status, "", gap=gap)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([listed(Status.MISMATCH)], 0),
        ([listed(Status.MISMATCH), listed(Status.MISMATCH, "fake::b", "")], 1),
        ([listed(Status.ERROR)], 1),
        ([listed(Status.NOT_RUN)], 1),
        ([listed(Status.UNSUPPORTED)], 3),
        ([listed(Status.IDENTICAL)], 1),
        ([listed(Status.REORDERED)], 1),
        ([listed(Status.WITHIN)], 1),
        ([listed(Status.IDENTICAL), listed(Status.MISMATCH)], 0),
        ([listed(Status.IDENTICAL), listed(Status.MISMATCH, "fake::b")], 1),
    ],
)
def test_a_known_gap_forgives_its_mismatch_and_nothing_else_and_must_not_pass(
    verdicts: list[Verdict], code: int
) -> None:
    assert exit_code(verdicts) == code


def test_a_gap_is_closed_when_its_case_passes_everywhere() -> None:
    passes, fails = listed(Status.IDENTICAL), listed(Status.MISMATCH)
    assert closed_gaps([passes]) == {"fake::a": "slow (until 2030-01-31)"}
    assert closed_gaps([passes, fails]) == closed_gaps([listed(Status.ERROR)]) == {}
