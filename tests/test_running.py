"""`equiv run` over several machines and after an accident: shards cover the plan once, a resumed run ends it."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import equiv_fake
import pytest

from equiv import cli, journal, running
from equiv.records import Status
from equiv.workers import run_plan

if TYPE_CHECKING:
    from collections.abc import Generator

    from equiv.records import Verdict
    from equiv.workers import Task

CASES = Path(__file__).parent / "support" / "cases"


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every device is the host device; the working directory is empty."""
    monkeypatch.setattr(sys.modules["equiv.device"], "device", equiv_fake.HostDevice)
    monkeypatch.setattr(running, "run_plan", functools.partial(run_plan, run=equiv_fake.run_on_host))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, in_process: bool = True) -> int:
    return cli.main(["run", *(["--in-process"] if in_process else []), *arguments])


def run_cases(*arguments: str, in_process: bool = True) -> int:
    return run("--cases", str(CASES), *arguments, in_process=in_process)


def planned(path: Path) -> list[str]:
    return [verdict.case for verdict in journal.read(path).verdicts]


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run is interrupted when `count` verdicts are in its journal."""

    def few(tasks: list[Task], *_: object) -> Generator[Verdict, None, None]:
        for task in tasks[:count]:
            yield equiv_fake.run_on_host(task)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_verdicts", few)


def test_shards_cover_the_plan_once_and_say_which_part_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    selected = [
        "--cases",
        str(CASES),
        "fake::good",
        "fake::overruns",
        "fake::writes_input",
        "fake_reordered",
        "fake_unknown",
    ]
    run(*selected, "--journal", "whole.jsonl")
    whole = planned(tmp_path / "whole.jsonl")
    parts = []
    for at in (1, 2, 3):
        run(*selected, "--shard", f"{at}/3", "--journal", f"{at}.jsonl")
        parts.append(planned(tmp_path / f"{at}.jsonl"))
        assert f"shard {at}/3 of the plan" in capsys.readouterr().out
    assert sorted(case for part in parts for case in part) == sorted(whole)
    assert all(parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert json.loads((tmp_path / "2.jsonl").read_text().splitlines()[0])["settings"]["shard"] == "2/3"


@pytest.mark.parametrize("which", ["0/2", "3/2", "1", "1/0", "-1/2", "1/2/3", "a/b", "2/99999"])
def test_a_shard_that_cannot_be_meant_or_is_empty_is_a_usage_error(
    which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cases("fake::good", f"--shard={which}") == 2
    assert f"--shard {which}: " in capsys.readouterr().err


def test_a_run_that_was_interrupted_is_resumed_and_its_journal_ends_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "j.jsonl"
    selected = ["fake::good", "fake::overruns", "fake::wrong", "--device", "emulated:sm_90a", "--seed", "77"]
    with monkeypatch.context() as patched:
        interrupted_after(2, patched)
        assert run_cases(*selected, "--journal", str(book)) == 1
    with book.open("ab") as torn:
        torn.write(b'{"kind":"verdict","verd')
    before = {(one.case, one.seed): one.status for one in journal.read(book).verdicts}
    assert sum(status is Status.NOT_RUN for status in before.values()) == 4
    assert run("--resume", str(book)) == 1  # fake::wrong is a mismatch
    after = {(one.case, one.seed): one.status for one in journal.read(book).verdicts}
    assert list(after) == list(before)
    assert Status.NOT_RUN not in after.values()
    assert after["fake::wrong", 77] is Status.MISMATCH
    assert len(book.read_bytes().splitlines()) == 1 + 6
    capsys.readouterr()
    assert run("--resume", str(book)) == 1
    assert "6 case(s): " in capsys.readouterr().out


def test_a_resumed_run_takes_nothing_else_to_run_and_no_other_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "j.jsonl"
    run_cases("fake::good", "--journal", str(book))
    assert run("--resume", str(book), "fake::wrong", "--device", "cuda:0") == 2
    assert "the journal says what to run; leave out selectors, device" in capsys.readouterr().err
    monkeypatch.setattr("equiv.report.environment.versions", lambda: {"numpy": "0.1"})
    assert run("--resume", str(book)) == 2
    assert "numpy " in (said := capsys.readouterr().err)
    assert "then, 0.1 now" in said


def test_a_resumed_task_is_the_planned_one_but_for_the_verdict_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CASES, tmp_path / "listed")
    (tmp_path / "listed" / "known_gaps.toml").write_text(
        '[[gap]]\nid = "fake::wrong"\nreason = "soon"\nuntil = 2099-01-31\n'
    )
    given = []

    def nothing(tasks: list[Task], *_: object) -> Generator[Verdict, None, None]:
        given.append(tasks)
        yield from ()

    monkeypatch.setattr(running, "_verdicts", nothing)
    selected = ["fake::good", "fake::wrong", "--device", "emulated:sm_90a", "--seed", "77"]
    run("--cases", "listed", *selected, "--check", "race", "--journal", "j.jsonl")
    run("--resume", "j.jsonl")
    begun, resumed = given
    assert {task.gap for task in begun} == {"", "soon (until 2099-01-31)"}
    assert resumed == begun


def test_a_run_that_recorded_launches_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "j.jsonl"
    run_cases("fake::good", "--journal", str(book), "--record", str(tmp_path / "records"))
    assert run("--resume", str(book)) == 2
    assert "that run recorded launches" in capsys.readouterr().err


def test_a_crash_in_a_worker_costs_one_case(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_cases("fake::segfaults", "fake::good", "fake_reordered", "-j", "2", "--json", in_process=False)
    found = {entry["case"]: entry for entry in json.loads(capsys.readouterr().out)["verdicts"]}
    assert code == 1
    assert {name: entry["status"] for name, entry in found.items()} == {
        "fake::segfaults": "ERROR", "fake::good": "IDENTICAL", "fake_reordered::carries": "REORDERED",
    }  # fmt: skip
    assert found["fake::segfaults"]["summary"].startswith(
        "the worker died: signal SIGSEGV; the end of its output:\nabout to read"
    )


def test_an_interrupted_run_reports_what_it_did_not_reach(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(tasks: list[Task], jobs: int, timeout: float) -> Generator[Verdict, None, None]:
        yield tasks[0].stopped(Status.IDENTICAL, "done")
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_plan", interrupted)
    assert run_cases("fake::good", "fake::wrong", in_process=False) == 1
    out = capsys.readouterr().out
    assert "interrupted: the cases that were not reached are NOT_RUN" in out
    assert "NOT_RUN fake::wrong  emulated:sm_100a  seed 2\n  planned and not reached" in out
    assert "1 IDENTICAL, 0 REORDERED, 0 WITHIN, 0 UNSUPPORTED, 1 NOT_RUN," in out


SCRIPT = """
import functools, sys
import equiv_fake
from equiv import cli, running
from equiv.workers import run_plan
if __name__ == "__main__":
    running.run_plan = functools.partial(run_plan, run=equiv_fake.answer)
    sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_that_hangs_and_the_report_is_written(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    book = tmp_path / "j.jsonl"
    command = [
        sys.executable,
        "main.py",
        "run",
        "fake::good",
        "fake::hangs",
        "-j",
        "1",
        "--cases",
        str(CASES),
        "--journal",
        str(book),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for _ in range(300):
        if book.exists() and len(book.read_bytes().splitlines()) == 2:
            break
        time.sleep(0.1)
    try:
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "2 case(s): 1 IDENTICAL, 0 REORDERED, 0 WITHIN, 0 UNSUPPORTED, 1 NOT_RUN, 0 MISMATCH, 0 ERROR" in out


def test_junit_counts_what_failed_and_carries_the_facts_of_each_case(tmp_path: Path) -> None:
    run_cases("fake::good", "fake::wrong", "fake::raises", "fake::needs_moon", "--junit", "j.xml")
    suite = ET.parse(tmp_path / "j.xml").getroot()[0]
    counts = {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")}
    assert counts == {"name": "fake emulated:sm_100a", "tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    by_name = {case.get("name"): case for case in suite.iter("testcase")}
    facts = {one.get("name"): one.get("value") for one in by_name["wrong"].iter("property")}
    assert (facts["status"], facts["blamed"], facts["seed"]) == ("MISMATCH", "candidate", "2")
    assert str(facts["again"]).startswith("equiv run fake::wrong --device emulated:sm_100a")
    failure = by_name["wrong"].find("failure")
    assert failure is not None
    assert "expected 0x" in str(failure.text)
    assert by_name["good"].find("failure") is None


def test_the_summary_is_appended_and_shows_what_failed_whole(tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    run_cases("fake::good", "fake::wrong", "--summary", str(file))
    said = file.read_text()
    assert said.startswith("before\n### equiv: 1 case(s) are not\n")
    assert "| fake | emulated:sm_100a | 1 | 1 |" in said
    assert "<details><summary>MISMATCH fake::wrong on emulated:sm_100a</summary>" in said
    assert "again     equiv run fake::wrong" in said


@pytest.mark.parametrize("option", ["--junit", "--summary"])
def test_a_file_that_cannot_be_written_is_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cases("fake::good", option, "/nowhere/file") == 2
    assert "/nowhere/file: cannot be written: No such file or directory" in capsys.readouterr().err
