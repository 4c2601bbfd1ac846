"""`equiv soak`: counts, the entry of a failing case, a case alone, a soak that goes on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import equiv_fake
import pytest

from equiv import casefile, cli, journal, pairs, soak
from equiv.drawn import SHARING, Cases
from equiv.records import Status


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every device is the host device, every case runs in this process; the working directory is empty."""
    monkeypatch.setattr(sys.modules["equiv.device"], "device", equiv_fake.HostDevice)
    monkeypatch.setattr(soak, "run_plan", lambda tasks, _jobs, _timeout: (equiv_fake.run_on_host(t) for t in tasks))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    return cli.main(["soak", "fake", "--seed", "6", "-j", "2", *arguments])


def number(behaviour: str) -> int:
    """The first case of seed 6 whose candidate behaves like that."""
    drawn = Cases(pairs.get("fake"), 6)
    return next(at for at in range(0, 100 * SHARING, SHARING) if drawn.case(at).axes["behaviour"] == behaviour)


def test_a_failing_case_is_shown_with_an_entry_for_a_case_file_and_makes_the_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good, wrong = number("good"), number("wrong")
    assert run("--only", str(good), "--only", str(wrong)) == 1
    out, err = capsys.readouterr()
    again = f"equiv soak fake --seed 6 --only {wrong} --device emulated:sm_100a"
    assert f"again     {again}\n" in out
    assert err == f"equiv: MISMATCH {again}\n"
    assert "y: MISMATCH (candidate): the candidate differs from its model in 1 of" in out
    start = out.index("[[case]]")
    (tmp_path / "fake.toml").write_text(out[start : out.index("\n\n", start)])
    (kept,) = casefile.load(tmp_path / "fake.toml")
    drawn = Cases(pairs.get("fake"), 6).case(wrong)
    assert (kept.axes, kept.regimes, kept.seed, kept.id) == (drawn.axes, drawn.regimes, drawn.seed, f"soak-6-{wrong}")
    assert f"soak-6-{good}" not in out
    assert "seed 6: 2 set(s) of compiled axes for up to 20 cases each, of about 1 s at most" in out
    assert out.splitlines()[-1].startswith("2 case(s): 1 IDENTICAL, 0 REORDERED")
    assert " 1 MISMATCH, 0 ERROR" in out.splitlines()[-1]


def test_more_cases_may_share_what_kernels_are_compiled_for_and_the_command_that_repeats_one_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = Cases(pairs.get("fake"), 6, sharing=3)
    wrong = next(at for at in range(0, 300, 3) if drawn.case(at).axes["behaviour"] == "wrong")
    assert drawn.case(wrong + 2).axes["behaviour"] == "wrong"
    assert run("--only", str(wrong), "--sharing", "3") == 1
    out, err = capsys.readouterr()
    assert err == f"equiv: MISMATCH equiv soak fake --seed 6 --sharing 3 --only {wrong} --device emulated:sm_100a\n"
    assert "1 set(s) of compiled axes for up to 3 cases each" in out
    with pytest.raises(SystemExit):
        run("--sharing", "0")


def test_good_cases_end_with_0_on_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    only = [f"--only={number('good') + at}" for at in range(5)]
    assert run(*only, "--device", "emulated:sm_90a", "--device", "emulated:sm_100a") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "10 case(s): 10 IDENTICAL" in out
    assert "[[case]]" not in out
    (book,) = Path("runs").iterdir()
    assert len(journal.read(book).verdicts) == 10


def test_the_same_soak_goes_on_in_its_journal_and_another_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = number("good")
    soak_of = ["--journal", "j.jsonl", *(f"--only={good + at}" for at in range(6))]
    assert run(*soak_of) == 0
    lines = Path("j.jsonl").read_bytes().splitlines(keepends=True)
    Path("j.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:20])  # killed in the middle of the fourth verdict
    assert run(*soak_of) == 0
    assert "6 case(s): 6 IDENTICAL" in capsys.readouterr().out.splitlines()[-1]
    assert [verdict.status for verdict in journal.read(Path("j.jsonl")).verdicts] == [Status.IDENTICAL] * 6
    assert len(Path("j.jsonl").read_bytes().splitlines()) == 7
    assert run("--journal", "j.jsonl", f"--only={good}") == 2
    assert capsys.readouterr().err == "equiv: --journal j.jsonl: holds another plan than these 1 cases\n"
    assert run(*soak_of, "--case-seconds", "0.5") == 2  # it draws other cases under the same numbers
    assert "holds another plan" in capsys.readouterr().err
    kept = Path("j.jsonl").read_bytes()
    Path("j.jsonl").write_bytes(re.sub(rb'"draws":"[0-9a-f]{64}"', b'"draws":"0"', kept))
    assert run(*soak_of) == 2
    said = "equiv: --journal j.jsonl: its cases were drawn from other axes or regimes than fake has\n"
    assert capsys.readouterr().err == said
    Path("j.jsonl").write_bytes(kept)
    assert cli.main(["run", "--resume", "j.jsonl"]) == 2
    assert "the same `equiv soak fake --seed 6 ...` with --journal j.jsonl goes on with it" in capsys.readouterr().err


def test_a_case_that_cannot_run_here_is_shown_with_its_reason_and_fails_if_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moon = f"--only={number('needs_moon')}"
    assert run(moon, f"--only={number('good')}") == 0
    assert re.search(r"UNSUPPORTED 1 case\(s\): .*moon", capsys.readouterr().out)
    assert run(moon, f"--only={number('good')}", "--require") == 1


def test_a_limit_that_passes_on_the_last_case_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--only={number('good')}", "--time-limit", "0.0001") == 0
    assert "stopped" not in capsys.readouterr().out


def test_a_time_limit_ends_a_soak_and_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    good = number("good")
    only = [f"--only={good + at}" for at in range(12)]
    assert run(*only, "--time-limit", "0.001") == 0
    out = capsys.readouterr().out
    assert "stopped after 0.001 s: 11 of 12 not reached" in out
    assert "1 case(s): 1 IDENTICAL" in out


def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "-1") == 2
    assert capsys.readouterr().err == "equiv: --only -1: cases are numbered from 0\n"
    assert run("--seed", "-3") == 2
    assert "seed -3 is not an integer from 0 to 2**64 - 1" in capsys.readouterr().err
    assert cli.main(["soak", "nobody"]) == 2
    assert "no pair named 'nobody'" in capsys.readouterr().err
