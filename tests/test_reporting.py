"""`equiv report`: journals in, the newest run's exit code out, a page if asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from equiv import cli
from equiv.journal import Journal
from equiv.records import OutputVerdict, Status, Verdict
from equiv.wire import Planned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def journal(path: Path, started: str, status: Status, shard: str = "") -> Path:
    """A journal of one case, as if begun at a given time."""
    verdict = Verdict("fake::good", "emulated:sm_90a", 1, status, "said")
    return written(path, started, verdict, {"shard": shard} if shard else {})


def written(path: Path, started: str, verdict: Verdict, settings: Mapping[str, str]) -> Path:
    with Journal(path, fresh=True) as book:
        book.plan([Planned.of(verdict)], {"numpy": "2"}, settings)
        book.verdict(verdict)
    plan, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(plan), "started": started}), *rest, ""]))
    return path


def matrix(path: Path, started: str, status: Status, shard: str = "") -> Path:
    """A journal of `equiv determinism` of the same case: the candidate repeated, and on no graph."""
    cells = (OutputVerdict("candidate repeat", status, ""), OutputVerdict("candidate graph", Status.UNSUPPORTED, ""))
    kept = {"command": "determinism", "shard": shard, "cases": "", "repeats": "2", "only": "repeat graph"}
    return written(path, started, Verdict("fake::good", "emulated:sm_90a", 1, status, "said", cells), kept)


def report(*arguments: object) -> int:
    return cli.main(["report", *map(str, arguments)])


def test_the_newest_run_decides_and_its_fall_is_dated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, status in enumerate([Status.IDENTICAL, Status.REORDERED, Status.MISMATCH, Status.MISMATCH]):
        journal(tmp_path / f"{at}.jsonl", f"2026-01-0{at + 1}", status)
    assert report(tmp_path) == 1
    out = capsys.readouterr().out
    assert "MISMATCH fake::good  emulated:sm_90a  first bad 2026-01-03, last good 2026-01-02" in out
    assert out.splitlines()[0].split() == ["run", "begun", *map(str, Status.__members__), "cases", "seconds", "missing"]
    assert report(tmp_path / "0.jsonl", tmp_path / "1.jsonl") == 0


def test_a_missing_shard_fails_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = journal(tmp_path / "1.jsonl", "2026-01-01", Status.IDENTICAL, "1/2")
    assert report(one) == 1
    assert "shard 2/2 of the newest run is missing: it is not whole" in capsys.readouterr().out
    assert report(one, journal(tmp_path / "2.jsonl", "2026-01-01", Status.IDENTICAL, "2/2")) == 0


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = journal(tmp_path / "1.jsonl", "2026-01-01", Status.IDENTICAL)
    assert report(one, "--html", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert report(one, "--html", "/nowhere/page.html") == 2
    assert "/nowhere/page.html: cannot be written" in capsys.readouterr().err


def test_no_journal_and_a_damaged_one_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path) == 2
    assert f"no journal in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "a.jsonl").write_text("not json\n")
    assert report(tmp_path) == 1
    assert "a.jsonl: line 1 is damaged" in capsys.readouterr().err


def test_matrices_are_shown_as_their_own_command_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix(tmp_path / "1.jsonl", "2026-01-01", Status.IDENTICAL)
    assert report(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["case", "device", "party", "repeat", "graph"],
        ["fake::good", "emulated:sm_90a", "candidate", "same", "unsupported"],
    ]
    assert lines[-1] == "1 case(s), 2 cells: 1 same, 0 declared, 0 CHANGED, 1 unsupported, 0 ERROR, 0 NOT_RUN"
    assert report(tmp_path, "--require") == 1
    matrix(tmp_path / "2.jsonl", "2026-01-02", Status.MISMATCH, "1/2")
    assert report(tmp_path) == 1
    said = capsys.readouterr().out
    assert "MISMATCH fake::good  emulated:sm_90a  first bad 2026-01-02, last good 2026-01-01\n" in said
    assert "CHANGED fake::good  emulated:sm_90a  seed 1\n" in said
    assert "shard 2/2 of the newest run is missing: it is not whole\n" in said


def test_runs_and_matrices_of_the_same_cases_are_told_apart_and_the_worse_makes_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "1.jsonl", "2026-01-01T02", Status.IDENTICAL, "1/2")
    journal(tmp_path / "2.jsonl", "2026-01-01T02", Status.IDENTICAL, "2/2")
    matrix(tmp_path / "3.jsonl", "2026-01-01T03", Status.MISMATCH, "1/2")
    matrix(tmp_path / "4.jsonl", "2026-01-01T03", Status.MISMATCH, "2/2")
    assert report(tmp_path, "--html", tmp_path / "page.html") == 1
    runs, matrices = capsys.readouterr().out.split("\nequiv determinism\n\n")
    assert runs.startswith("equiv run\n\n")
    assert "2 case(s): 2 IDENTICAL" in runs
    assert "2 case(s), 4 cells: 0 same, 0 declared, 2 CHANGED" in matrices
    assert "first bad" not in runs + matrices
    assert "<h1>equiv determinism: 2 of 2 case(s) fail</h1>" in (tmp_path / "page.html").read_text()
    matrix(tmp_path / "5.jsonl", "2026-01-02", Status.UNSUPPORTED)
    assert report(tmp_path / "5.jsonl") == 3
    assert report(tmp_path) == 0  # something ran
