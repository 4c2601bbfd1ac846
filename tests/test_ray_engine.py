"""A plan on a Ray cluster of this machine; `equiv[ray]` is not in CI's install, and what needs it says so."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

import equiv_fake
import pytest

from equiv import cli, journal, ray_engine
from equiv.errors import UsageError
from equiv.records import Case, Status
from equiv.workers import Task

if TYPE_CHECKING:
    from pathlib import Path

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="NOT RUN: needs Ray (pip install 'equiv[ray]'), which CI leaves out"
)


def task(behaviour: str, device: str = "emulated:sm_100a", record: str = "") -> Task:
    case = Case("fake", behaviour, "", 1, ("pr",), {"n": 8, "behaviour": behaviour}, {})
    return Task(case, device, f"equiv run fake::{behaviour}", record)


def test_without_ray_the_extra_is_named_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "dsa_index::fp8-b17-ties", "--engine", "ray"]) == 2
    assert capsys.readouterr().err == "equiv: --engine ray: ray is not installed: pip install 'equiv[ray]'\n"
    assert list(tmp_path.iterdir()) == []


def test_what_ray_cannot_do_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"--engine ray: Ray chooses the GPU of a case: --device cuda, not cuda:1"):
        ray_engine.connect([task("good"), task("good", "cuda"), task("good", "cuda:1")])
    with pytest.raises(UsageError, match="--record is for the local engine"):
        ray_engine.connect([task("good", record="here")])
    assert cli.main(["run", "dsa_index", "--engine", "ray", "--in-process"]) == 2
    assert "--in-process is one process, and --engine ray is others" in capsys.readouterr().err


SCRIPT = """
import functools, os, sys
import equiv_fake, ray
from equiv import cli, ray_engine
if __name__ == "__main__":
    ray_engine.run_plan = functools.partial(ray_engine.run_plan, run=equiv_fake.run_on_host)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    code = cli.main(sys.argv[1:])
    ray.shutdown()
    sys.exit(code)
"""

CASE = '[[case]]\nid = "{0}"\nwhy = "a behaviour"\nseed = 1\nsuites = ["pr"]\naxes = {{ behaviour = "{1}" }}\n\n'


@needs_ray
def test_two_actors_do_the_plan_and_one_that_is_killed_or_hangs_costs_its_case(tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    names = {"good": "good", "wrong": "wrong", "killed": "killed", "hangs": "hangs", "last": "good"}
    written = "".join(CASE.format(name, behaviour) for name, behaviour in names.items())
    (tmp_path / "cases" / "fake.toml").write_text(written)
    (tmp_path / "main.py").write_text(SCRIPT)
    command = ["run", "fake", "--cases", "cases", "--engine", "ray", "--timeout", "30", "--journal", "j.jsonl"]
    done = subprocess.run(
        [sys.executable, "main.py", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    run = journal.read(tmp_path / "j.jsonl")
    assert {verdict.case.partition("::")[2]: str(verdict.status) for verdict in run.verdicts} == {
        "good": "IDENTICAL", "wrong": "MISMATCH", "killed": "ERROR", "hangs": "ERROR", "last": "IDENTICAL",
    }  # fmt: skip
    summaries = {verdict.case.partition("::")[2]: verdict.summary for verdict in run.verdicts}
    assert summaries["killed"].startswith("the worker died: The actor ")
    assert summaries["hangs"] == "timed out: no verdict after 30 s"
    assert [entry.case for entry in run.planned] == [f"fake::{name}" for name in names]


@needs_ray
def test_a_machine_with_other_versions_gives_errors_and_one_without_gpus_a_usage_error() -> None:
    import ray

    ray.init(num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        (verdict,) = ray_engine.run_plan([task("good")], 2, 60, {"numpy": "1.0"}, equiv_fake.answer)
        assert verdict.status is Status.ERROR
        assert "has other versions than the run: " in verdict.summary
        assert "numpy 1.0 then, " in verdict.summary
        with pytest.raises(UsageError, match="the cluster has no GPU, and the plan needs one"):
            list(ray_engine.run_plan([task("good", "cuda")], 2, 60, {}, equiv_fake.answer))
    finally:
        ray.shutdown()
