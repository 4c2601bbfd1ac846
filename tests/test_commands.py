"""The commands beside `run`: what `list`, `rounding` and `replay` print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import equiv_fake

from equiv import cli, commands
from equiv.emulator import replay as replaying
from equiv.emulator.replay import ReplayReport
from equiv.pairs import Party

if TYPE_CHECKING:
    import pytest

CASES = Path(__file__).parent / "support" / "cases"


def test_list_prints_axes_contracts_and_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "fake", "--cases", str(CASES), "--suite", "smoke"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "fake: y = 2 x",
        "  axes",
        "    n = 8  [1..4096]  elements",
        f"    behaviour = good  [{', '.join(equiv_fake.BEHAVIOURS)}]  what the candidate does",
        "  regimes",
        "    x: random",
        "  outputs",
        "    y (f32): envelope: the last element may be one ulp up",
        "    pool (u8): bitwise: row 1 is set, the others stay",
        "  1 case(s): 1 in smoke, 1 in pr, 1 in nightly",
        "    fake::good  nothing wrong: IDENTICAL",
    ]


def test_list_names_cases_only_of_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--cases", str(CASES)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "::" in line or "regimes" in line] == []
    assert [line.partition(":")[0] for line in lines if line and line[0] not in " `"] == [
        "fake",
        "fake_reordered",
        "fake_unknown",
    ]
    assert lines[lines.index("  outputs") - 1].startswith("    behaviour = good")
    assert sum("case(s): " in line for line in lines) == 3
    assert lines[-1] == "`equiv list PAIR` and `equiv list --suite S` name the cases"
    assert cli.main(["list", "--cases", str(CASES), "--suite", "smoke"]) == 0
    out = capsys.readouterr().out
    assert "    fake::good  nothing wrong: IDENTICAL\n" in out
    assert "name the cases" not in out


def test_list_as_json_has_every_case_with_its_why_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--cases", str(CASES), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["fake", "fake_reordered", "fake_unknown"]
    assert data["fake"]["cases"][0]["name"] == "fake::good"
    assert data["fake"]["cases"][0]["seed"] == 1
    assert data["fake"]["outputs"][1]["contract"] == "bitwise"


def test_rounding_prints_rows_variants_and_declared_orders(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rounding", "dsa_index"]) == 0
    out = capsys.readouterr().out
    rows, *declared = out.split("\n\n")
    assert "dsa.R12  q: scale, the power of two >= s: f32 -> f32, up [exact]" in rows
    assert "    variants   log2, add_mask" in rows
    assert [said.splitlines()[0] for said in declared] == [
        f"sm_90a and sm_100a: oracle (triton {version('triton')})",
        f"sm_90a and sm_100a: candidate (nvidia-cutlass-dsl {version('nvidia-cutlass-dsl')})",
    ]
    assert "order key.squares" in declared[0]
    assert "  dsa.R12  add_mask" in declared[1]


def test_an_architecture_of_which_nothing_is_declared_is_said_and_a_form_that_it_lacks_is_not() -> None:
    declared = {("one", "sm_90a"), ("two", "sm_90a")}
    party = Party("m:f", ())
    pair = equiv_fake.make(
        forms={"candidate": ("one", "two")}, declaration=lambda _party, _versions, arch, form: (form, arch) in declared
    )

    def shown() -> list[tuple[str, str, bool]]:
        return [(form, arch, bool(one)) for form, arch, one in commands._forms(pair, "candidate", party, {})]

    assert {found for found in shown() if not found[2]} == {("one", "sm_100a", False), ("two", "sm_100a", False)}
    declared.add(("one", "sm_100a"))
    assert all(found[2] for found in shown())
    assert len(shown()) == 3


def test_a_pair_without_a_ledger_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rounding", "fake"]) == 2
    assert capsys.readouterr().err == "equiv: pair 'fake' brings no rounding ledger\n"


def test_replaying_a_folder_without_records_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"equiv: {tmp_path}: no captures/*.json\n"


def test_skipped_launches_fail_a_strict_replay_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = ReplayReport("emulated:sm_90a", 2, 1, 1, 1, 1, 64, skipped=[("b", 0, "compiled for sm_100a\x1b")])
    monkeypatch.setattr(replaying, "replay_directory", lambda _path, _device, names=(): report)
    for main, command in ((cli.main, ["replay", str(tmp_path)]), (replaying.main, [str(tmp_path)])):
        for extra, code in ([], 0), (["--strict"], 1):
            assert main([*command, *extra]) == code
            assert capsys.readouterr().out.endswith("1 launches skipped\n  skipped 1: compiled for sm_100a\\x1b\n")
    report.skipped.clear()
    assert cli.main(["replay", str(tmp_path), "--strict"]) == 0


HANGING = """
import sys, time
import equiv.emulator.replay
from equiv import cli, commands
equiv.emulator.replay.replay_directory = lambda path, device: time.sleep(60)
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_replay_that_takes_too_long_is_given_up() -> None:
    command = [sys.executable, "-c", HANGING, "replay", "records", "--timeout", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (1, "equiv: replay of records: not done after 0.5 s\n")
