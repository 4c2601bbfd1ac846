"""`equiv determinism`: table, exit codes, JSON, journal; the fake pair needs no compiler."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import equiv_fake
import pytest

from equiv import cli, journal
from equiv.determinism import command
from equiv.records import Status
from equiv.workers import run_plan

if TYPE_CHECKING:
    import functools
    from collections.abc import Generator, Sequence

    from equiv.records import Verdict
    from equiv.workers import Task

CASE = """
[[case]]
id = "{0}"
why = "a behaviour"
seed = {1}
suites = ["pr"]
axes = {{ behaviour = "{0}" }}
"""
BEHAVIOURS = ("good", "counts", "raises", "segfaults", "wrong")


def here(tasks: Sequence[Task], _jobs: int, _timeout: float, run: functools.partial[Verdict]) -> Generator[Verdict]:
    yield from map(run, tasks)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    written = "".join(CASE.format(name, seed) for seed, name in enumerate(BEHAVIOURS))
    (tmp_path / "cases" / "fake.toml").write_text(written)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["equiv.device"], "device", equiv_fake.HostDevice)
    monkeypatch.setattr(command, "run_plan", here)


def ran(*arguments: str) -> int:
    return cli.main(["determinism", "--cases", "cases", *arguments])


def test_the_table_has_a_row_a_party_and_a_column_a_condition(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("fake::good", "--only", "repeat", "--only", "graph") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["case", "device", "party", "repeat", "graph"],
        ["fake::good", "emulated:sm_100a", "candidate", "same", "unsupported"],
        ["fake::good", "emulated:sm_100a", "oracle", "same", "unsupported"],
    ]
    assert "unsupported, 2 cell(s): needs device:cuda: graph on emulated:sm_100a" in lines
    assert lines[-1] == "1 case(s), 4 cells: 2 same, 0 declared, 0 CHANGED, 2 unsupported, 0 ERROR, 0 NOT_RUN"


def test_several_cases_are_counted_and_what_changed_is_shown_with_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    equiv_fake.CALLS.clear()
    assert ran("fake::good", "fake::counts", "--only", "repeat", "--repeats", "1") == 1
    said = capsys.readouterr().out
    assert "fake  emulated:sm_100a  candidate  CHANGED 1, same 1\n" in said
    assert "fake  emulated:sm_100a  oracle     same 2\n" in said
    assert "CHANGED fake::counts  emulated:sm_100a  seed 1\n  candidate repeat: CHANGED: 1 of 1 differ (run 2);" in said
    assert "      2 of 8 differ, first run (expected) against run 2 (got)\n" in said
    assert (
        "  again     equiv determinism fake::counts --device emulated:sm_100a --cases cases --only repeat --repeats 1\n"
        in said
    )


def test_a_party_that_fails_is_an_error_with_what_it_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("fake::raises", "--only", "repeat") == 1
    said = capsys.readouterr().out
    assert "  candidate once: ERROR: candidate: Traceback" in said
    assert "ValueError: seven is not a tile size" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--only", "graph"), 3),
        (("--only", "graph", "--require"), 1),
        (("--only", "graph", "--only", "repeat", "--require"), 1),
        (("--only", "repeat", "--require"), 0),
        (("--device", "cuda:x"), 2),
        (("--cases", "nowhere"), 2),
    ],
)
def test_exit_codes_are_those_of_run(arguments: tuple[str, ...], code: int) -> None:
    assert ran("fake::good", *arguments) == code


def test_json_has_the_cells_as_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("fake::good", "--only", "repeat", "--json") == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert [(cell["output"], cell["status"]) for cell in verdict["outputs"]] == [
        ("oracle repeat", "IDENTICAL"), ("candidate repeat", "IDENTICAL"),
    ]  # fmt: skip


def test_what_is_not_reached_is_not_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(tasks: Sequence[Task], *_: object) -> Generator[Verdict]:
        yield tasks[0].stopped(Status.IDENTICAL, "")
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_plan", interrupted)
    assert ran("fake::good", "fake::wrong") == 1
    assert "NOT_RUN fake::wrong  emulated:sm_100a  seed 4\n  planned and not reached" in capsys.readouterr().out


def test_workers_do_it_and_die_for_their_own_case_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_plan", run_plan)
    assert ran("fake::segfaults", "fake::good", "--only", "repeat", "-j", "1") == 1
    said = capsys.readouterr().out
    assert "ERROR fake::segfaults  emulated:sm_100a  seed 3\n  the worker died: signal SIGSEGV" in said
    assert "fake  emulated:sm_100a  candidate  -      same\n" in said
    assert said.endswith("2 case(s), 3 cells: 2 same, 0 declared, 0 CHANGED, 0 unsupported, 1 ERROR, 0 NOT_RUN\n")


def planned(path: str) -> list[str]:
    return [verdict.case for verdict in journal.read(Path(path)).verdicts]


def test_a_killed_matrix_is_resumed_as_it_was_begun_and_its_journal_ends_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[object] = []

    def killed(
        tasks: Sequence[Task], _jobs: int, _timeout: float, run: functools.partial[Verdict]
    ) -> Generator[Verdict]:
        yield run(tasks[0])
        seen.extend(verdict.status for verdict in journal.read(Path("j.jsonl")).verdicts)  # each one as it comes
        raise KeyboardInterrupt

    def rest(tasks: Sequence[Task], jobs: int, timeout: float, run: functools.partial[Verdict]) -> Generator[Verdict]:
        seen.extend([run.keywords, [task.planned.again for task in tasks]])
        return here(tasks, jobs, timeout, run)

    selected = ["fake::good", "fake::raises", "fake::wrong", "--only", "repeat", "--repeats", "3"]
    monkeypatch.setattr(command, "run_plan", killed)
    assert ran(*selected, "--journal", "j.jsonl") == 1
    assert seen == [Status.IDENTICAL, Status.NOT_RUN, Status.NOT_RUN]
    assert "\njournal j.jsonl\n" in capsys.readouterr().out
    with Path("j.jsonl").open("ab") as torn:
        torn.write(b'{"kind":"verdict","verd')
    monkeypatch.setattr(command, "run_plan", rest)
    assert cli.main(["determinism", "--resume", "j.jsonl"]) == 1
    again = "equiv determinism fake::{} --device emulated:sm_100a --cases cases --only repeat --repeats 3"
    assert seen[3:] == [{"repeats": 3, "only": ["repeat"]}, [again.format("raises"), again.format("wrong")]]
    said = capsys.readouterr().out
    assert "fake  emulated:sm_100a  candidate  ERROR  same 2\n" in said
    assert said.endswith("3 case(s), 6 cells: 5 same, 0 declared, 0 CHANGED, 0 unsupported, 1 ERROR, 0 NOT_RUN\n")
    assert len(Path("j.jsonl").read_bytes().splitlines()) == 1 + 3


def test_a_journal_is_kept_in_runs_unless_another_place_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("fake::good", "--only", "repeat") == 0
    (book,) = Path("runs").glob("*.jsonl")
    assert f"\njournal {book}\n" in capsys.readouterr().out
    assert ran("fake::good", "--only", "repeat", "--journal", str(book)) == 2
    assert "is there already, and a journal holds one run: name another" in capsys.readouterr().err


def test_shards_cover_the_plan_once_and_say_which_part_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    selected = ["fake::good", "fake::raises", "fake::wrong", "--only", "repeat"]
    for at in (1, 2):
        ran(*selected, "--shard", f"{at}/2", "--journal", f"{at}.jsonl")
        assert f"\nshard {at}/2 of the plan\n" in capsys.readouterr().out
    assert [planned("1.jsonl"), planned("2.jsonl")] == [["fake::good", "fake::wrong"], ["fake::raises"]]
    assert journal.read(Path("2.jsonl")).settings == {
        "command": "determinism", "shard": "2/2", "cases": "cases", "repeats": "2", "only": "repeat",
    }  # fmt: skip
    assert ran("fake::good", "--shard", "2/2") == 2
    assert "--shard 2/2: the plan has 1 task(s), so this part of it is empty" in capsys.readouterr().err


def test_a_resumed_matrix_takes_nothing_else_that_selects_and_no_other_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran("fake::good", "--only", "repeat", "--journal", "j.jsonl") == 0
    options = ["--suite=pr", "--device=cuda:0", "--journal=k", "--shard=1/2", "--repeats=2", "--only=graph"]
    assert ran("fake::good", *options, "--resume", "j.jsonl") == 2
    left_out = "selectors, suite, device, journal, shard, cases, repeats, only"
    assert f"the journal says what to run; leave out {left_out}\n" in capsys.readouterr().err
    monkeypatch.setattr("equiv.report.environment.versions", lambda: {"numpy": "0.1"})
    assert cli.main(["determinism", "--resume", "j.jsonl"]) == 2
    assert "then, 0.1 now" in capsys.readouterr().err
