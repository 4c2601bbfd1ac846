"""`equiv report`: journals in, the newest run's exit code out, a page if asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from equiv import cli
from equiv.journal import Journal
from equiv.records import Status, Verdict
from equiv.wire import Planned

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def journal(path: Path, started: str, status: Status, shard: str = "") -> Path:
    """A journal of one case, as if begun at a given time."""
    verdict = Verdict("fake::good", "emulated:sm_90a", 1, status, "said")
    with Journal(path, fresh=True) as book:
        book.plan([Planned.of(verdict)], {"numpy": "2"}, {"shard": shard} if shard else {})
        book.verdict(verdict)
    plan, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(plan), "started": started}), *rest, ""]))
    return path


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
