"""Case files as pytest items, in pytest runs inside this one: alone, and spread over xdist workers."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import brought
import pytest

CASES = Path(__file__).parent / "support" / "cases"

HOST = """
import sys
import equiv_fake
import equiv.device
sys.modules["equiv.device"].device = equiv_fake.HostDevice
"""

ALONE = ("-p", "no:xdist", "-p", "no:cacheprovider")
SPREAD = ("-n", "2", "-p", "no:cacheprovider")


@pytest.fixture
def repo(pytester: pytest.Pytester) -> pytest.Pytester:
    """Somebody's repository with a test of its own and a folder of case files; every device is the host."""
    pytester.makeconftest(HOST)
    pytester.makepyfile(test_own="def test_own(): pass")
    shutil.copytree(CASES, pytester.path / "cases")
    (pytester.path / "cases" / "known_gaps.toml").touch()
    return pytester


def run(repo: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return repo.runpytest_subprocess(*arguments)


def verdicts(repo: pytest.Pytester) -> dict[tuple[str, str], dict[str, Any]]:
    data = json.loads((repo.path / "report.json").read_text())
    assert (data["schema"], data["version"]) == ("equiv.report", 1)
    return {(entry["case"], entry["device"]): entry for entry in data["verdicts"]}


def test_a_plain_run_collects_nothing_new_and_loads_nothing(repo: pytest.Pytester) -> None:
    repo.makeconftest(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    loaded = {name for name in sys.modules if name.startswith('equiv')}\n"
        "    print('LOADED', sorted(loaded), 'torch' in sys.modules)\n"
    )
    result = run(repo, *ALONE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["LOADED [[]'equiv', 'equiv.pytest_plugin'] False"])
    result.stdout.no_fnmatch_line("*case(s)*")


def test_a_suite_is_collected_from_the_usual_folder_when_no_path_is_given(repo: pytest.Pytester) -> None:
    result = run(repo, *ALONE, "--equiv-suite", "smoke", "-v")
    result.assert_outcomes(passed=3, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "cases/fake.toml::good PASSED*",
            "cases/fake_reordered.toml::carries PASSED*",
            "cases/fake_unknown.toml::carries PASSED*",
            "*PytestWarning: fake_unknown::carries is only WITHIN its envelope: *",
            "3 case(s): 1 IDENTICAL, 1 REORDERED, 1 WITHIN, 0 UNSUPPORTED, 0 NOT_RUN, 0 MISMATCH, 0 ERROR",
        ]
    )


def test_somebody_s_kernel_runs_beside_the_candidate_whose_place_it_takes(
    repo: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from equiv.kernels import Kernel\n"
        "KERNEL = Kernel(pair='fake', summary='', entry='equiv_fake:oracle', packages=('numpy',))\n"
    )
    brought.install(repo.path, "brought_one", source, {"equiv.kernels": {"theirs": "brought_one:KERNEL"}})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(repo.path), os.environ["PYTHONPATH"]]))
    result = run(repo, *ALONE, "--equiv-case", "fake+theirs::good", "--equiv-case", "fake::good", "-v")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "cases/fake.toml::good[[]theirs] PASSED*",
            "cases/fake.toml::good PASSED*",
            "*PytestWarning: fake+theirs::good is only WITHIN its envelope: *",
        ]
    )
    result = run(repo, *ALONE, "--equiv-case", "fake+nobodys::good")
    result.stdout.fnmatch_lines(["*no kernel named 'nobodys'; known: *theirs*"])


def test_a_case_file_named_on_the_command_line_needs_no_option(repo: pytest.Pytester) -> None:
    run(repo, *ALONE, "cases/fake.toml::good").assert_outcomes(passed=1)
    run(repo, *ALONE, "cases/fake_reordered.toml", "test_own.py").assert_outcomes(passed=2)


def test_a_case_is_selected_by_its_name(repo: pytest.Pytester) -> None:
    result = run(repo, *ALONE, "--equiv-case", "fake::good", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cases/fake.toml::good PASSED*"])


def test_paths_and_a_suite_together_collect_both(repo: pytest.Pytester) -> None:
    run(repo, *ALONE, "--equiv-suite", "smoke", "cases", "test_own.py").assert_outcomes(passed=4, warnings=1)


def test_a_mismatch_fails_with_the_report_and_no_traceback(repo: pytest.Pytester) -> None:
    result = run(repo, *ALONE, "--equiv-case", "fake::wrong")
    assert result.ret == 1
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "MISMATCH fake::wrong  emulated:sm_100a  seed 2",
            "*y: MISMATCH (candidate): the candidate differs from its model in 1 of 8 elements*",
            "*expected 0x????????*got 0x????????*1 ulp",
            "*again     equiv run fake::wrong --device emulated:sm_100a",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_what_is_unsupported_is_skipped_with_its_reason_and_fails_when_required(repo: pytest.Pytester) -> None:
    result = run(repo, *ALONE, "--equiv-case", "fake::needs_moon", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs package:moon"])
    run(repo, *ALONE, "--equiv-case", "fake::needs_moon", "--equiv-require").assert_outcomes(failed=1)


def test_within_fails_under_strict(repo: pytest.Pytester) -> None:
    run(repo, *ALONE, "--equiv-case", "fake_unknown", "--equiv-strict").assert_outcomes(failed=1)


def test_devices_and_seeds_are_named_when_there_are_several(repo: pytest.Pytester) -> None:
    devices = ("--equiv-device", "emulated:sm_90a", "--equiv-device", "emulated:sm_100a")
    result = run(repo, *ALONE, "--equiv-case", "fake::good", "-v", *devices, "--equiv-seed", "5")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "cases/fake.toml::good[[]emulated:sm_90a] PASSED*",
            "cases/fake.toml::good[[]emulated:sm_90a,seed=5] PASSED*",
            "cases/fake.toml::good[[]emulated:sm_100a] PASSED*",
            "cases/fake.toml::good[[]emulated:sm_100a,seed=5] PASSED*",
        ]
    )
    one = run(repo, *ALONE, "cases/fake.toml::good[emulated:sm_90a]", *devices)
    one.assert_outcomes(passed=1)


@pytest.mark.parametrize("how", [ALONE, SPREAD], ids=["alone", "spread"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--equiv-device", "emulated:sm_75"),
            "no device named 'emulated:sm_75'; known: emulated:sm_90a, *, cuda",
        ),
        (("--equiv-seed", "-1"), "seed -1 is not an integer from 0 to 2[*][*]64 - 1"),
    ],
)
def test_a_device_or_a_seed_that_cannot_be_meant_is_said_once_and_nothing_runs(
    repo: pytest.Pytester, how: tuple[str, ...], arguments: tuple[str, ...], words: str
) -> None:
    result = run(repo, *how, "--equiv-suite", "smoke", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {words}"])
    assert "fake" not in result.stdout.str()


def test_what_a_party_says_cannot_steer_the_terminal(repo: pytest.Pytester) -> None:
    repo.makeconftest(
        HOST + "def steers(case, tensors): raise ValueError('red \\x1b[31m')\nequiv_fake.candidate = steers\n"
    )
    result = run(repo, *ALONE, "--equiv-case", "fake::good", "--color", "no")
    result.assert_outcomes(failed=1)
    assert "ValueError: red \\x1b[31m" in result.stdout.str()
    assert "\x1b" not in result.stdout.str()


def test_a_bad_case_file_is_a_collection_error_that_lists_its_faults(repo: pytest.Pytester) -> None:
    (repo.path / "cases" / "fake.toml").write_text('[[case]]\nid = "A"\nwhy = "x"\nseed = 1\nsuites = ["prr"]\n')
    result = run(repo, *ALONE, "cases/fake.toml")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*fake.toml: 2 fault(s)", "*$.case[[]0].id: *", "*$.case[[]0].suites[[]0]: *"])


def test_junit_carries_status_device_seed_and_ulps(repo: pytest.Pytester) -> None:
    run(repo, *ALONE, "--equiv-case", "fake::wrong", "--junitxml", "junit.xml")
    properties = ET.parse(repo.path / "junit.xml").iter("property")
    assert {entry.get("name"): entry.get("value") for entry in properties} == {
        "status": "MISMATCH", "device": "emulated:sm_100a", "seed": "2", "max_ulps": "1",
    }  # fmt: skip


@pytest.mark.parametrize("how", [ALONE, SPREAD], ids=["alone", "spread"])
def test_the_report_has_the_verdict_of_every_item(repo: pytest.Pytester, how: tuple[str, ...]) -> None:
    selected = ("--equiv-case", "fake::wrong", "--equiv-case", "fake::good", "--equiv-case", "fake_reordered")
    result = run(repo, *how, *selected, "--equiv-report", "report.json")
    result.assert_outcomes(passed=2, failed=1)
    found = verdicts(repo)
    assert {case: entry["status"] for (case, _), entry in found.items()} == {
        "fake::good": "IDENTICAL", "fake::wrong": "MISMATCH", "fake_reordered::carries": "REORDERED",
    }  # fmt: skip
    assert found["fake::wrong", "emulated:sm_100a"]["outputs"][0]["differences"][0]["count"] == 1
    result.stdout.fnmatch_lines(
        ["3 case(s): 1 IDENTICAL, 1 REORDERED, 0 WITHIN, 0 UNSUPPORTED, 0 NOT_RUN, 1 MISMATCH, 0 ERROR"]
    )


def test_a_worker_that_crashes_costs_one_item_and_the_report_says_so(repo: pytest.Pytester) -> None:
    selected = ("--equiv-case", "fake::exits", "--equiv-case", "fake::good", "--equiv-case", "fake_reordered")
    result = run(repo, *SPREAD, *selected, "--equiv-report", "report.json")
    assert result.ret == 1
    found = verdicts(repo)
    assert {case: entry["status"] for (case, _), entry in found.items()} == {
        "fake::good": "IDENTICAL", "fake::exits": "ERROR", "fake_reordered::carries": "REORDERED",
    }  # fmt: skip
    assert "crashed while running" in found["fake::exits", "emulated:sm_100a"]["summary"]


def test_items_that_were_collected_and_not_reached_are_not_run(repo: pytest.Pytester) -> None:
    result = run(repo, *ALONE, "-x", "cases/fake.toml::wrong", "cases/fake.toml::good", "--equiv-report", "report.json")
    result.assert_outcomes(failed=1)
    assert verdicts(repo)["fake::good", "emulated:sm_100a"]["status"] == "NOT_RUN"
    result.stdout.fnmatch_lines(["2 case(s): 0 IDENTICAL, *1 NOT_RUN, 1 MISMATCH, 0 ERROR"])


def test_collecting_only_plans_nothing(repo: pytest.Pytester) -> None:
    result = run(repo, *ALONE, "--equiv-suite", "smoke", "--collect-only", "-q", "--equiv-report", "report.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["cases/fake.toml::good", "cases/fake_reordered.toml::carries"])
    assert not (repo.path / "report.json").exists()


def listed(repo: pytest.Pytester, case: str) -> None:
    path = repo.path / "cases" / "known_gaps.toml"
    path.write_text(f'[[gap]]\nid = "{case}"\nreason = "soon"\nuntil = 2099-01-31\n')


def test_a_known_gap_is_an_expected_failure(repo: pytest.Pytester) -> None:
    listed(repo, "fake::wrong")
    result = run(repo, *ALONE, "cases/fake.toml::wrong", "-rx")
    result.assert_outcomes(xfailed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*1 MISMATCH*", "XFAIL cases/fake.toml::wrong - *known gap: soon (until 2099-01-31)"])


@pytest.mark.parametrize("how", [ALONE, SPREAD])
def test_a_known_gap_that_passes_fails_the_run(repo: pytest.Pytester, how: tuple[str, ...]) -> None:
    listed(repo, "fake::good")
    result = run(repo, *how, "cases/fake.toml::good")
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["fake::good passes: take it out of known_gaps.toml: soon (until 2099-01-31)"])


@pytest.mark.parametrize("how", [ALONE, SPREAD])
@pytest.mark.parametrize(
    "arguments",
    [
        ("test_own.py", "--equiv-case", "fake::good"),
        ("--equiv-case", "fake::good", "--equiv-case", "nobody::*"),
        ("test_own.py", "cases/fake.toml", "--equiv-case", "fake::good", "--equiv-case", "fake_unknown::absent"),
    ],
)
def test_a_case_that_was_asked_for_and_is_nowhere_makes_the_run_red(
    repo: pytest.Pytester, how: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    result = run(repo, *how, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines([f"no case that was collected matches --equiv-case '{arguments[-1]}'"])


def test_a_case_that_was_deselected_was_not_missed(repo: pytest.Pytester) -> None:
    result = run(repo, *ALONE, "test_own.py", "cases/fake.toml", "--equiv-case", "fake::good", "-k", "test_own")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("how", [ALONE, SPREAD])
def test_case_files_outside_the_root_have_names_and_verdicts(repo: pytest.Pytester, how: tuple[str, ...]) -> None:
    inner = repo.mkdir("inner")
    (inner / "pytest.ini").write_text("[pytest]\n")
    (inner / "conftest.py").write_text(HOST)
    arguments = (
        "--rootdir",
        "inner",
        "-c",
        "inner/pytest.ini",
        "-p",
        "conftest",
        "-v",
        "--equiv-report",
        "report.json",
    )
    result = run(repo, *how, *arguments, "cases/fake.toml::good", "cases/fake_reordered.toml")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*PASSED*cases/fake.toml::good*" if how == SPREAD else "*cases/fake.toml::good PASSED*"]
    )
    assert {case for case, _ in verdicts(repo)} == {"fake::good", "fake_reordered::carries"}


def test_a_report_that_is_asked_for_is_written_also_when_no_case_ran(repo: pytest.Pytester) -> None:
    (repo.path / "report.json").write_text("of an older run")
    run(repo, *ALONE, "test_own.py", "--equiv-report", "report.json")
    assert verdicts(repo) == {}
