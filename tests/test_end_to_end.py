"""The whole line with real kernels: both emulated devices, worker processes, records and their replay."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from equiv import journal

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = ("emulated:sm_90a", "emulated:sm_100a")


def equiv(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "equiv.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_case_is_verified_on_both_devices_and_its_records_replay_to_the_byte(tmp_path: Path) -> None:
    records, book = tmp_path / "records", tmp_path / "run.jsonl"
    devices = [word for name in DEVICES for word in ("--device", name)]
    done = equiv("run", "dsa_index::fp8-b1", *devices, "--json", "--record", str(records), "--journal", str(book))
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert {entry["device"] for entry in report["verdicts"]} == set(DEVICES)
    for entry in report["verdicts"]:
        assert entry["status"] in {"IDENTICAL", "REORDERED"}
        assert entry["warp_instructions"] > 0
        assert set(entry["toolchain"]) == {"triton", "nvidia-cutlass-dsl"}
        assert len(entry["declared"]) > 2
    assert len(journal.read(book).verdicts) == 2
    for name in DEVICES:
        replayed = equiv("replay", str(records), "--device", name)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert f"{name}: 4 capture(s), 5 of 5 launches equal" in replayed.stdout
        assert " 0 of " in replayed.stdout
        assert "skipped 5: compiled for" in replayed.stdout


@pytest.mark.parametrize("name", DEVICES)
def test_case_files_run_as_pytest_items(pytester: pytest.Pytester, name: str) -> None:
    result = pytester.runpytest_subprocess(
        "--equiv-case", "dsa_index::fp8-b1", "--equiv-device", name, "-p", "no:xdist"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"{name}: arithmetic *", "1 case(s): *0 MISMATCH, 0 ERROR"])
