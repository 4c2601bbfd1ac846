"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import errno
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import equiv_fake
import pytest

from equiv import cli, journal, running
from equiv.records import Status
from equiv.report import environment
from equiv.workers import run_plan

CASES = Path(__file__).parent / "support" / "cases"


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every device is the host device, also in workers; the working directory is empty."""
    monkeypatch.setattr(sys.modules["equiv.device"], "device", equiv_fake.HostDevice)
    monkeypatch.setattr(running, "run_plan", functools.partial(run_plan, run=equiv_fake.run_on_host))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, in_process: bool = True) -> int:
    return cli.main(["run", "--cases", str(CASES), *(["--in-process"] if in_process else []), *arguments])


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Status]]:
    code = run("--json", *arguments)
    data = json.loads(capsys.readouterr().out)
    return code, {entry["case"]: Status(entry["status"]) for entry in data["verdicts"]}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["fake::good"], 0),
        (["fake_reordered"], 0),
        (["fake_unknown"], 0),
        (["fake_unknown", "--strict"], 1),
        (["fake::good", "fake_unknown", "--strict"], 1),
        (["fake::wrong"], 1),
        (["fake::overruns"], 1),
        (["fake::raises"], 1),
        (["fake::needs_moon"], 3),
        (["fake::needs_moon", "--require"], 1),
        (["fake::good", "fake::needs_moon"], 0),
        (["fake::good", "fake::needs_moon", "--require"], 1),
        (["fake::good", "--device", "cuda:7"], 3),
        (["fake::nothing"], 2),
        (["nobody"], 2),
        (["--suite", "weekly"], 2),
        (["fake::good", "--journal", "/proc/journal.jsonl"], 2),
    ],
)
def test_the_exit_code_says_what_the_run_came_to(arguments: list[str], code: int) -> None:
    assert run(*arguments) == code


def test_the_versions_that_decide_bits_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert all(f"{name} {found}" in said for name, found in environment.versions().items())
    assert {"equiv", "numpy", "python", "triton"} <= {one.split()[0] for one in said.split(", ")}


def test_a_line_that_cannot_be_read_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--colour"], ["-j", "0"], ["--seed", "x"]):
        with pytest.raises(SystemExit) as caught:
            run(*arguments)
        assert caught.value.code == 2
    assert "argument -j/--jobs: 0 is not 1 or more" in capsys.readouterr().err


def test_an_unknown_device_is_a_usage_error_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    assert cli.main(["run", "fake::good", "--cases", str(CASES), "--device", "emulated:sm_75"]) == 2
    assert (
        "equiv: no device named 'emulated:sm_75'; known: emulated:sm_90a, emulated:sm_100a, cuda:N"
        in capsys.readouterr().err
    )


def test_a_bad_case_file_lists_all_its_faults_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fake.toml").write_text('[[case]]\nid = "A"\nwhy = ""\nseed = -1\nsuites = ["pr"]\naxes = { n = 0 }\n')
    assert cli.main(["run", "--cases", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for path in ("$.case[0].id", "$.case[0].why", "$.case[0].seed", "$.case[0].axes.n"):
        assert f"  {path}: " in captured.err
    assert not (tmp_path / "runs").exists()


def test_a_suite_selects_and_the_report_counts_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--suite", "smoke") == 0
    out = capsys.readouterr().out
    assert out.endswith(
        "3 case(s): 1 IDENTICAL, 1 REORDERED, 1 WITHIN, 0 UNSUPPORTED, 0 NOT_RUN, 0 MISMATCH, 0 ERROR\n"
    )
    assert "declared  fake.1: oracle no carry, candidate carry" in out
    assert "\x1b" not in out


def test_a_mismatch_prints_bits_place_and_a_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fake::wrong", "--device", "emulated:sm_90a") == 1
    out = capsys.readouterr().out
    assert "MISMATCH fake::wrong  emulated:sm_90a  seed 2" in out
    assert "[3] element 3  expected 0x" in out
    (again,) = [line for line in out.splitlines() if line.startswith("  again")]
    assert again == f"  again     equiv run fake::wrong --device emulated:sm_90a --cases {CASES}"
    assert cli.main(again.split()[2:]) == 1  # and it does


def test_another_seed_is_run_beside_the_file_s_own_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fake::wrong", "--seed", "99", "--seed", "2", "--json") == 1
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [(entry["seed"], " --seed 99" in entry["again"]) for entry in verdicts] == [(2, False), (99, True)]


def test_several_devices_are_run_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    devices = ("--device", "emulated:sm_90a", "--device", "emulated:sm_100a", "--device", "emulated:sm_90a")
    assert run("fake::good", "--json", *devices) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [entry["device"] for entry in verdicts] == ["emulated:sm_90a", "emulated:sm_100a"]


def test_json_is_the_whole_of_stdout_and_says_what_ran_with(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = reported(capsys, "fake_reordered")
    assert (code, found) == (0, {"fake_reordered::carries": Status.REORDERED})


def test_a_journal_is_always_written_and_the_report_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fake::good") == 0
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    assert f"journal runs/{path.name}" in capsys.readouterr().out
    assert [v.status for v in journal.read(path).verdicts] == [Status.IDENTICAL]


def test_launch_records_go_where_they_are_asked_for(tmp_path: Path) -> None:
    assert run("fake::good", "--record", "kept", "--seed", "77") == 0
    assert len(list((tmp_path / "kept").iterdir())) == 4  # two parties, two seeds


def test_a_folder_that_holds_such_launch_records_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = tmp_path / "kept" / "captures"
    captures.mkdir(parents=True)
    (captures / "fake.good.77.oracle.sm_100a.json").touch()
    assert run("fake::good", "--record", "kept", "--seed", "77") == 2
    assert capsys.readouterr().err == (
        "equiv: --record kept: holds 1 of the 4 captures of this run already, fake.good.77.oracle.sm_100a for one:"
        " name another folder, or delete this one\n"
    )
    assert not (tmp_path / "runs").exists()
    assert run("fake::good", "--record", "kept") == 0  # others do not matter
    (tmp_path / "file").touch()
    assert run("fake::good", "--record", "file") == 2
    assert capsys.readouterr().err == "equiv: --record file: is there and no folder\n"


def test_what_others_say_cannot_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def steers(_case: object, _tensors: object) -> None:
        raise ValueError("red \x1b[31m\rDone")

    monkeypatch.setattr(equiv_fake, "candidate", steers)
    assert run("fake::good") == 1
    out = capsys.readouterr().out
    assert r"ValueError: red \x1b[31m\rDone" in out
    assert "\x1b" not in out
    assert "\r" not in out
    (tmp_path / "fake.toml").write_text('[[case]]\nid = "a"\nwhy = "\\u001b[2J"\nseed = 1\nsuites = ["pr"]\n')
    assert cli.main(["list", "fake", "--cases", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("    fake::a  \\x1b[2J\n")
    assert cli.main(["list", "\x1b[2J", "--cases", str(tmp_path)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def with_gap(folder: Path, case: str, until: str = "2099-01-31") -> list[str]:
    """The options of a run over copies of the case files with one known gap."""
    shutil.copytree(CASES, folder / "listed")
    (folder / "listed" / "known_gaps.toml").write_text(f'[[gap]]\nid = "{case}"\nreason = "soon"\nuntil = {until}\n')
    return ["run", "--cases", str(folder / "listed"), "--in-process"]


def test_a_known_gap_is_reported_and_counted_and_does_not_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = with_gap(tmp_path, "fake::wrong")
    assert cli.main([*command, "fake::good", "fake::wrong"]) == 0
    out = capsys.readouterr().out
    assert "  known gap: soon (until 2099-01-31)\n" in out
    assert "1 IDENTICAL, 0 REORDERED, 0 WITHIN, 0 UNSUPPORTED, 0 NOT_RUN, 1 MISMATCH, 0 ERROR" in out
    assert cli.main([*command, "fake::overruns", "fake::wrong"]) == 1
    capsys.readouterr()
    assert cli.main([*command, "fake::wrong", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["gap"] == "soon (until 2099-01-31)"


def test_a_known_gap_that_passes_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = with_gap(tmp_path, "fake::good")
    assert cli.main([*command, "fake::good"]) == 1
    wanted = "fake::good passes: take it out of known_gaps.toml: soon (until 2099-01-31)"
    assert wanted in capsys.readouterr().out.splitlines()
    assert cli.main([*command, "fake_reordered"]) == 0


@pytest.mark.parametrize(
    ("case", "until", "words"),
    [
        (
            "fake::wrong",
            "2020-01-31",
            "$.gap[0].until: was accepted until 2020-01-31: close the gap, or say why it stays",
        ),
        ("fake::wrongs", "2099-01-31", '$.gap[0].id: no case is called "fake::wrongs"; did you mean "fake::wrong"?'),
    ],
)
def test_a_list_of_known_gaps_that_does_not_hold_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, until: str, words: str
) -> None:
    assert cli.main([*with_gap(tmp_path, case, until), "fake_reordered"]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_the_report_says_what_the_numbers_of_an_emulated_device_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fake::good", "--device", "emulated:sm_100a") == 0
    assert (
        "emulated:sm_100a: arithmetic as measured on an H200; launches name what of sm_100a alone they executed"
        in capsys.readouterr().out
    )


def test_progress_goes_to_a_terminal_and_to_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fake::good", "fake_reordered") == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("fake::good", "fake_reordered") == 0
    captured = capsys.readouterr()
    assert captured.err.split("\r\x1b[K")[1:] == [
        f"[{'#' * 15}{'.' * 15}] 1/2 IDENTICAL fake::good emulated:sm_100a",
        f"[{'#' * 30}] 2/2 REORDERED fake_reordered::carries emulated:sm_100a\n",
    ]
    assert "\x1b" not in captured.out


def test_a_journal_that_is_there_already_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "mine.jsonl"
    assert run("fake::good", "--journal", str(book)) == 0
    before = book.read_bytes()
    assert run("fake::good", "--journal", str(book)) == 2
    assert f"equiv: journal {book}: is there already, and a journal holds one run" in capsys.readouterr().err
    assert book.read_bytes() == before


def test_a_party_that_exits_with_0_does_not_make_the_run_green(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fake::quits") == 1
    out = capsys.readouterr().out
    assert "ERROR fake::quits" in out
    assert "SystemExit: 0" in out


def test_what_a_party_prints_does_not_get_into_the_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("fake::prints", "--json") == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["counts"]["IDENTICAL"] == 1
    assert sorted(captured.err.splitlines()) == ["a line of C", "a line of Python"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeout", "nan"], "argument --timeout: nan is no number of seconds above 0, 1e+06 at most"),
        (["--timeout", "0"], "argument --timeout: 0 is no number of seconds above 0, 1e+06 at most"),
        (["--timeout", "1e7"], "argument --timeout: 1e7 is no number of seconds above 0, 1e+06 at most"),
        (["--timeout", "soon"], "argument --timeout: soon is no number of seconds above 0, 1e+06 at most"),
        (["-j", "many"], "argument -j/--jobs: many is not 1 or more"),
    ],
)
def test_a_time_or_a_count_that_cannot_be_meant_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        run("fake::good", *arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", str(1 << 64)])
def test_a_seed_that_no_case_file_could_state_is_a_usage_error(capsys: pytest.CaptureFixture[str], seed: str) -> None:
    assert run("fake::good", "--seed", seed) == 2
    assert capsys.readouterr().err == f"equiv: seed {seed} is not an integer from 0 to 2**64 - 1\n"


def test_a_cache_that_cannot_be_written_is_said_once_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path / "file"))
    assert run("fake::good") == 2
    assert capsys.readouterr().err == (
        f"equiv: cache {tmp_path / 'file'}: File exists: set EQUIV_CACHE_DIR to a folder that can be written\n"
    )
    assert not (tmp_path / "runs").exists()


def test_an_unknown_pair_is_named_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nobody") == 2
    assert "equiv: no pair named 'nobody'; known: dsa_front, dsa_index, fake" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [(">&-", 0, ""), ("> /dev/full", 1, "equiv: standard output: No space left on device\n")],
)
def test_a_standard_output_that_takes_nothing_is_no_traceback(target: str, code: int, words: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m equiv.cli list --cases {CASES} {target}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, words)


def test_an_interruption_while_the_plan_is_made_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "cases", interrupted)
    assert run("fake::good") == 130
    assert capsys.readouterr().err == "equiv: interrupted\n"


def test_an_error_of_the_system_that_is_not_about_the_output_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(*_arguments: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(running, "cases", exhausted)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        run("fake::good")


def test_a_report_can_be_printed_whatever_it_quotes_and_whatever_the_terminal_can_show(tmp_path: Path) -> None:
    (tmp_path / "fake.toml").write_text(
        '[[case]]\nid = "a"\nwhy = "1 \u00b1 ulp"\nseed = 1\nsuites = ["pr"]\n', encoding="utf-8"
    )
    command = [sys.executable, "-m", "equiv.cli", "list", "fake", "--cases", str(tmp_path)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("    fake::a  1 \\xb1 ulp\n")
