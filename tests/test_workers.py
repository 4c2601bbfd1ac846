"""A case that takes its process down costs that case only."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equiv_fake
import pytest

from equiv import gpus, workers
from equiv.errors import UsageError
from equiv.records import Case, Status, Verdict
from equiv.workers import Task, run_plan, run_task


def task(behaviour: str, name: str = "") -> Task:
    case = Case("fake", name or behaviour, "", 1, ("pr",), {"n": 8, "behaviour": behaviour}, {})
    return Task(case, "emulated:sm_100a", f"equiv run fake::{name or behaviour}")


def ran(*tasks: Task, jobs: int = 1, timeout: float = 60) -> dict[str, Verdict]:
    return {v.case.partition("::")[2]: v for v in run_plan(tasks, jobs, timeout, equiv_fake.answer)}


def test_a_crash_is_an_error_with_its_signal_and_output_and_the_others_go_on() -> None:
    found = ran(task("good", "before"), task("segfaults"), task("exits"), task("good", "after"))
    assert {name: v.status for name, v in found.items()} == {
        "before": Status.IDENTICAL, "segfaults": Status.ERROR, "exits": Status.ERROR, "after": Status.IDENTICAL,
    }  # fmt: skip
    first, *output = found["segfaults"].summary.splitlines()
    assert first == "the worker died: signal SIGSEGV; the end of its output:"
    assert output[0] == "about to read address 0"
    assert found["exits"].summary == "the worker died: exit code 7; it printed nothing"
    assert found["segfaults"].again == "equiv run fake::segfaults"


def test_a_case_that_hangs_is_killed_after_its_time_and_the_others_go_on() -> None:
    started = time.monotonic()
    found = ran(task("hangs"), task("good"), timeout=3)
    assert found["hangs"].status is Status.ERROR
    assert found["hangs"].summary == (
        "timed out: no verdict after 3 s; the end of its output:\nwaiting for the barrier"
    )
    assert found["hangs"].seconds >= 3
    assert found["good"].status is Status.IDENTICAL
    assert time.monotonic() - started < 30


def test_tasks_of_one_kind_go_to_one_worker_while_others_have_work() -> None:
    waiting = deque(replace(task("good", name), kind=name[:1].strip("-")) for name in ("a1", "b1", "a2", "-1", "b2"))
    first, second = SimpleNamespace(kind=""), SimpleNamespace(kind="")
    given = []
    for worker in (first, second, second, second, first, first):
        taken = workers._next(waiting, worker, (first, second)) if waiting else None  # type: ignore[arg-type]
        worker.kind = taken.kind if taken else ""
        given.append(taken.case.id if taken else "")
    assert given == ["a1", "b1", "b2", "-1", "a2", ""]


def test_a_worker_without_work_of_its_kind_helps_another() -> None:
    waiting = deque(replace(task("good", name), kind="a") for name in ("a1", "a2"))
    busy, idle = SimpleNamespace(kind="a"), SimpleNamespace(kind="b")
    assert workers._next(waiting, idle, (busy, idle)).case.id == "a1"  # type: ignore[arg-type]


def test_workers_are_kept_from_case_to_case_and_never_more_than_jobs() -> None:
    found = ran(*(task("good", f"n{n}") for n in range(9)), jobs=2)
    answered = Counter(v.summary for v in found.values())
    assert len(found) == 9
    assert 1 <= len(answered) <= 2
    assert f"answered by {os.getpid()}" not in answered


def test_closing_the_iterator_ends_the_workers() -> None:
    found = run_plan([task("good"), *(task("hangs", f"h{n}") for n in range(3))], 2, 60, equiv_fake.answer)
    assert next(found).status is Status.IDENTICAL
    started = time.monotonic()
    found.close()
    assert time.monotonic() - started < 5
    assert not _children()


def _children(of: int | None = None) -> list[int]:
    """Workers that a process, by default this one, started and that still run."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if _parent(pid) == (of or os.getpid()) and b"spawn_main" in _command(pid)]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_an_unknown_pair_is_an_error_of_its_case_that_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("nobody", "a", "", 1, ("pr",), {}, {})
    verdict = run_task(Task(case, "emulated:sm_100a", "again"))
    assert verdict.status is Status.ERROR
    assert "UsageError: no pair named 'nobody'; known: " in verdict.summary


def test_a_device_that_this_machine_lacks_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("equiv.device")
    monkeypatch.setattr(module, "device", equiv_fake.HostDevice)  # so that it is put back when the test ends
    verdict = equiv_fake.run_on_host(Task(task("good").case, "emulated:sm_0", "again"))
    assert (verdict.status, verdict.summary) == (Status.UNSUPPORTED, "needs arch:sm_0: nobody has it")


def test_a_death_is_noticed_though_a_child_of_the_party_holds_the_pipe_open() -> None:
    started = time.monotonic()
    found = ran(task("exits_leaving_a_child"), task("good"))
    assert found["exits_leaving_a_child"].summary == "the worker died: exit code 7; it printed nothing"
    assert found["good"].status is Status.IDENTICAL
    assert time.monotonic() - started < 20


def test_an_answer_about_another_case_is_an_error_of_the_case_in_hand() -> None:
    found = ran(task("answers_for_another"), task("good"))
    assert found["answers_for_another"].status is Status.ERROR
    assert found["answers_for_another"].summary.startswith("the worker answered something else: Verdict(case='fake::an")
    assert found["good"].status is Status.IDENTICAL


ORPHANS = """
import equiv_fake
from equiv.records import Case
from equiv.workers import Task, run_plan
if __name__ == "__main__":
    case = Case("fake", "hangs", "", 1, ("pr",), {"behaviour": "hangs"}, {})
    list(run_plan([Task(case, "emulated:sm_100a", "again")], 1, 60, equiv_fake.answer))
"""


def test_workers_do_not_outlive_a_run_that_is_killed_and_leave_no_files(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(ORPHANS)
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, env=environment)
    started: list[int] = []
    while not started:
        time.sleep(0.1)
        started = _children(process.pid)
    time.sleep(2)
    process.kill()
    process.wait()
    assert list((tmp_path / "tmp").iterdir()) == []
    for _ in range(50):
        if not any(_command(worker) for worker in started):
            return
        time.sleep(0.1)
    for worker in started:
        os.kill(worker, signal.SIGKILL)
    pytest.fail("a worker runs on 5 s after its parent was killed")


def on(device: str, behaviour: str, name: str = "") -> Task:
    made = task(behaviour, name)
    return Task(made.case, device, made.again)


def told(monkeypatch: pytest.MonkeyPatch, visible: str, devices: list[str], jobs: int) -> dict[str, list[Any]]:
    """Case -> [process, CUDA_VISIBLE_DEVICES, name of the device, CUDA modules loaded] in its worker."""
    monkeypatch.setenv(gpus.VISIBLE, visible)
    tasks = [on(device, "tells", f"{device} {number}") for number in range(6) for device in devices]
    found = list(run_plan(tasks, jobs, 60, equiv_fake.answer))
    assert os.environ[gpus.VISIBLE] == visible
    assert gpus.PINNED not in os.environ
    assert len(found) == len(tasks)
    return {verdict.case.partition("::")[2]: json.loads(verdict.summary) for verdict in found}


def test_workers_of_a_gpu_see_the_caller_s_entry_for_it_alone_before_cuda_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = told(monkeypatch, "GPU-aa,GPU-bb,MIG-cc/1/0", ["cuda:1", "cuda:2", "emulated:sm_90a"], 3)
    wanted = {"cuda:1": ["GPU-bb", "cuda:1"], "cuda:2": ["MIG-cc/1/0", "cuda:2"]}
    for name, (_, *said, loaded) in found.items():
        assert said == wanted.get(name.split()[0], ["GPU-aa,GPU-bb,MIG-cc/1/0", None])
        assert loaded == []


def test_one_worker_serves_one_gpu_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, "4,6", ["cuda:0", "cuda:1"], 1)
    assert {name.split()[0]: said[1] for name, said in found.items()} == {"cuda:0": "4", "cuda:1": "6"}
    assert len({said[0] for said in found.values()}) == 2


def test_all_visible_gpus_get_as_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "3,5")
    waiting = workers._Waiting([on("cuda", "tells", str(number)) for number in range(9)])
    taken: list[Any] = []
    for _ in range(5):
        taken.append(waiting.emptiest(taken))
    assert [place.entry for place in taken] == ["3", "5", "3", "5", "3"]
    (verdict,) = run_plan([on("cuda", "tells")], 2, 60, equiv_fake.answer)
    assert json.loads(verdict.summary)[1:3] == ["3", "cuda"]
    assert verdict.notes == ("on GPU 3",)


def test_a_bad_list_stops_a_run_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "0,first")
    assert ran(task("good"))["good"].status is Status.IDENTICAL
    with pytest.raises(UsageError, match="entry 2, 'first', is no index"):
        list(run_plan([on("cuda:0", "good")], 1, 60, equiv_fake.answer))


def test_a_worker_on_a_gpu_is_replaced_after_an_error_and_one_elsewhere_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "0")
    for device, processes in (("cuda:0", 3), ("emulated:sm_100a", 1)):
        tasks = [on(device, "fails", "a"), on(device, "fails", "b"), on(device, "good", "c")]
        found = list(run_plan(tasks, 1, 60, equiv_fake.answer))
        assert [verdict.status for verdict in found] == [Status.ERROR, Status.ERROR, Status.IDENTICAL]
        assert len({verdict.summary.split()[-1] for verdict in found}) == processes


STUCK = "CUDA error: an illegal memory access was encountered"


def test_what_kills_its_process_or_breaks_its_gpu_costs_its_own_case_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "0")
    names = ("good", "sticks", "killed", "last")
    tasks = [on("cuda:0", "good" if name == "last" else name, name) for name in names]
    found = {v.case.partition("::")[2]: v for v in run_plan(tasks, 1, 60, equiv_fake.run_on_host)}
    assert {name: str(verdict.status) for name, verdict in found.items()} == {
        "good": "IDENTICAL", "sticks": "ERROR", "killed": "ERROR", "last": "IDENTICAL",
    }  # fmt: skip
    assert found["sticks"].summary == f"candidate: DeviceError: cuda:0: {STUCK}"
    assert found["killed"].summary == "the worker died: signal SIGKILL; it printed nothing"


def test_in_one_process_nothing_is_judged_after_the_gpu_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("equiv.device"), "device", equiv_fake.HostDevice)
    monkeypatch.setattr(equiv_fake.HostDevice, "stuck", "")
    monkeypatch.setattr(workers, "_BROKEN", {})
    names = ("raises", "good", "sticks", "good", "wrong")
    found = [run_task(on("cuda:0", name)) for name in names]
    assert [str(verdict.status) for verdict in found] == ["ERROR", "IDENTICAL", "ERROR", "NOT_RUN", "NOT_RUN"]
    assert found[-1].summary == "not reached: fake::sticks left cuda:0 unusable for this process"
