"""A journal can be read at any moment, also after a kill, and says what is missing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from equiv import journal
from equiv.errors import RecordError, UsageError
from equiv.journal import Journal
from equiv.records import Status, Verdict
from equiv.wire import Planned

PLAN = [Planned(f"fake::{name}", "emulated:sm_90a", 1, f"equiv run fake::{name}") for name in "abc"]


def verdict(entry: Planned, status: Status = Status.IDENTICAL) -> Verdict:
    return Verdict(entry.case, entry.device, entry.seed, status, "said")


def written(path: Path, count: int = 2) -> Path:
    with Journal(path) as book:
        book.plan(PLAN, {"numpy": "2.4.6"})
        for entry in PLAN[:count]:
            book.verdict(verdict(entry))
    return path


def test_what_is_planned_and_has_no_verdict_is_not_run(tmp_path: Path) -> None:
    run = journal.read(written(tmp_path / "new" / "run.jsonl"))
    assert run.planned == tuple(PLAN)
    assert [found.status for found in run.verdicts] == [Status.IDENTICAL, Status.IDENTICAL, Status.NOT_RUN]
    assert run.verdicts[2].case == "fake::c"
    assert run.verdicts[2].again == "equiv run fake::c"
    assert run.environment == {"numpy": "2.4.6"}
    assert run.torn == ""


def test_a_torn_last_line_is_dropped_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    run = journal.read(path)
    assert [found.status for found in run.verdicts] == [Status.IDENTICAL, Status.NOT_RUN, Status.NOT_RUN]
    length = len(data.split(b"\n")[2]) + 1 - 20
    assert run.torn == f"line 3 is torn after {length} bytes and was dropped"


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-9] + b"\n" + lines[2])
    with pytest.raises(RecordError, match="line 2 is damaged"):
        journal.read(path)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"kind":"plan","schema":"equiv.journal","version":9,"planned":[]}', "version 9, not 'equiv.journal' 1"),
        (b'{"kind":"verdict"}', "line 1: unexpected kind 'verdict'"),
        (b"[]", "line 1 is no journal entry"),
    ],
)  # fmt: skip
def test_what_is_no_journal_is_refused(tmp_path: Path, line: bytes, text: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(RecordError, match=re.escape(text)):
        journal.read(path)


def test_an_empty_journal_has_no_plan(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(RecordError, match=r"no plan in it$"):
        journal.read(tmp_path / "run.jsonl")


def test_a_verdict_that_nobody_planned_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    with Journal(path) as book:
        book.verdict(verdict(Planned("fake::z", "emulated:sm_90a", 1)))
    with pytest.raises(RecordError, match=r"verdicts that nobody planned: fake::z"):
        journal.read(path)


@pytest.mark.parametrize(("first", "counts"), [(Status.MISMATCH, Status.MISMATCH), (Status.NOT_RUN, Status.IDENTICAL)])
def test_of_two_verdicts_on_one_case_the_worse_one_counts_unless_the_first_was_not_reached(
    tmp_path: Path, first: Status, counts: Status
) -> None:
    path = written(tmp_path / "run.jsonl", 0)
    with Journal(path) as book:
        for status in (first, Status.IDENTICAL):
            book.verdict(verdict(PLAN[0], status))
    assert journal.read(path).verdicts[0].status is counts


def test_several_writers_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    plan = [Planned(f"fake::{n}", "emulated:sm_90a", 1) for n in range(80)]
    with Journal(path) as book:
        book.plan(plan, {})

    def write(part: list[Planned]) -> None:
        with Journal(path) as mine:
            for entry in part:
                mine.verdict(verdict(entry))

    threads = [threading.Thread(target=write, args=(plan[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {found.status for found in journal.read(path).verdicts} == {Status.IDENTICAL}


def test_a_line_is_on_the_disk_when_its_writer_is_killed_right_after(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", 0)
    script = (
        "import os, signal, sys, pathlib\n"
        "from equiv.journal import Journal\n"
        "from equiv.records import Status, Verdict\n"
        "book = Journal(pathlib.Path(sys.argv[1]))\n"
        "book.verdict(Verdict('fake::a', 'emulated:sm_90a', 1, Status.IDENTICAL, 'said'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [found.status for found in journal.read(path).verdicts] == [Status.IDENTICAL, Status.NOT_RUN, Status.NOT_RUN]


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    kinds = [json.loads(line)["kind"] for line in written(tmp_path / "run.jsonl").read_text().splitlines()]
    assert kinds == ["plan", "verdict", "verdict"]


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"journal .*file/run.jsonl: cannot be written: "):
        Journal(tmp_path / "file" / "run.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_an_error_that_names_the_journal() -> None:
    with (
        Journal(Path("/dev/full")) as book,
        pytest.raises(RecordError, match=r"/dev/full: cannot be written: No space"),
    ):
        book.plan(PLAN, {})
