"""The report for programs."""

from __future__ import annotations

import json

from equiv import wire
from equiv.records import Status, Verdict
from equiv.report import document


def test_the_document_has_a_version_all_counts_and_whole_verdicts() -> None:
    verdict = Verdict("fake::a", "emulated:sm_90a", 7, Status.WITHIN, "said")
    data = json.loads(document.render([verdict], {"numpy": "2.4"}, ["interrupted"]))
    assert (data["schema"], data["version"]) == ("equiv.report", 1)
    assert data["counts"] == {
        "IDENTICAL": 0, "REORDERED": 0, "WITHIN": 1, "UNSUPPORTED": 0, "NOT_RUN": 0, "MISMATCH": 0, "ERROR": 0,
    }  # fmt: skip
    assert [wire.verdict(entry) for entry in data["verdicts"]] == [verdict]
    assert data["environment"] == {"numpy": "2.4"}
    assert data["remarks"] == ["interrupted"]
