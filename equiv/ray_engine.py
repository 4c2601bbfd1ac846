"""Runs a plan on a Ray cluster: the same tasks and verdicts as `equiv.workers`, with actors for worker processes.

An actor holds one CPU, and one GPU where the plan is for `cuda`, which Ray then shows to it alone. One that dies or
hangs costs its case only: ERROR, and another takes its place. What the run did not reach is NOT_RUN in its journal.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from equiv.errors import UsageError
from equiv.records import Status, Verdict
from equiv.wire import Planned
from equiv.workers import Task, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

GLANCE = 1.0
"""Seconds after which deadlines are looked at."""
KINDS = {"CPU": {"num_cpus": 1}, "GPU": {"num_cpus": 0, "num_gpus": 1}}
"""What an actor takes of the cluster: for emulated devices, and for `cuda`."""


def connect(tasks: Sequence[Task]) -> Any:  # noqa: ANN401
    """Ray's module, connected to the cluster of `RAY_ADDRESS` or to one that it starts on this machine.

    Raises:
        UsageError: before anything is written. Ray is not installed, or there is no such cluster; a device is a GPU by
            number, which is for Ray to choose; the cluster lacks what a task needs; launches are to be recorded.
    """
    for name in dict.fromkeys(task.device for task in tasks):
        if name.startswith("cuda:"):
            raise UsageError(f"--engine ray: Ray chooses the GPU of a case: --device cuda, not {name}")
    if any(task.record for task in tasks):
        raise UsageError("--engine ray: launch records would lie on every machine: --record is for the local engine")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UsageError(f"--engine ray: {error.name} is not installed: pip install 'equiv[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"--engine ray: {error}") from error
    for what in dict.fromkeys(map(_needs, tasks)):
        if not ray.cluster_resources().get(what):
            raise UsageError(f"--engine ray: the cluster has no {what}, and the plan needs one")
    return ray


def _needs(task: Task) -> str:
    return "GPU" if task.device == "cuda" else "CPU"


def run_plan(
    tasks: Sequence[Task],
    jobs: int | None,
    timeout: float,
    versions: Mapping[str, str],
    run: Callable[[Task], Verdict] = run_task,
) -> Generator[Verdict, None, None]:
    """Verifies every task and yields verdicts as they come.

    Args:
        tasks: what to do, in the order in which it is begun.
        jobs: how many actors at most; None: as many as the cluster has CPUs, or GPUs.
        timeout: seconds a case may take, the start of a fresh actor included.
        versions: of the packages that can change a bit; a machine with others gives ERROR.
        run: what an actor does with a task; a function of a module, because it travels by name.

    Raises:
        UsageError: as `connect`.
    """
    ray = connect(tasks)
    for what, options in KINDS.items():
        waiting = deque(task for task in tasks if _needs(task) == what)
        room = int(ray.cluster_resources().get(what, 0))
        kind = ray.remote(**options, max_restarts=0, max_task_retries=0)(_Serving)
        pool = _Pool(ray, min(jobs or room, room), timeout, partial(kind.remote, run, dict(versions)))
        yield from pool.work(waiting)


@dataclass(slots=True)
class _Actor:
    """One actor and the task in its hand."""

    handle: Any
    task: Task
    answer: Any
    started: float


@dataclass(frozen=True, slots=True)
class _Pool:
    """Actors of one kind: at most `size`, each begun by `start`."""

    ray: Any
    size: int
    timeout: float
    start: Callable[[], Any]

    def work(self, waiting: deque[Task]) -> Generator[Verdict, None, None]:
        """A verdict for each task."""
        busy: list[_Actor] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < self.size:
                    busy.append(self._begin(self.start(), waiting.popleft()))
                self.ray.wait([actor.answer for actor in busy], timeout=GLANCE)
                for actor in list(busy):
                    verdict, usable = self._verdict(actor)
                    if verdict is None:
                        continue
                    busy.remove(actor)
                    if usable and waiting:
                        busy.append(self._begin(actor.handle, waiting.popleft()))
                    else:
                        self.ray.kill(actor.handle)
                    yield verdict
        finally:
            for actor in busy:
                self.ray.kill(actor.handle)

    def _begin(self, handle: Any, task: Task) -> _Actor:  # noqa: ANN401
        return _Actor(handle, task, handle.verify.remote(task), time.monotonic())

    def _verdict(self, actor: _Actor) -> tuple[Verdict | None, bool]:
        """The verdict on the task in hand if there is one by now; whether the actor can go on."""
        spent = time.monotonic() - actor.started
        ready, _ = self.ray.wait([actor.answer], timeout=0)
        if not ready:
            if spent < self.timeout:
                return None, True
            return actor.task.stopped(Status.ERROR, f"timed out: no verdict after {self.timeout:g} s", spent), False
        try:
            verdict = self.ray.get(actor.answer)
        except self.ray.exceptions.RayError as error:
            why = str(error).strip() or type(error).__name__
            return actor.task.stopped(Status.ERROR, f"the worker died: {why}", spent), False
        if not isinstance(verdict, Verdict) or Planned.of(verdict) != actor.task.planned:
            said = f"the worker answered something else: {verdict!r:.200}"
            return actor.task.stopped(Status.ERROR, said, spent), False
        return verdict, not (actor.task.device == "cuda" and verdict.status is Status.ERROR)


class _Serving:
    """What an actor is."""

    def __init__(self, run: Callable[[Task], Verdict], versions: Mapping[str, str]) -> None:
        from equiv.report import environment

        self.run, self.other = run, environment.changed(versions, environment.versions())

    def verify(self, task: Task) -> Verdict:
        """The verdict on one task; ERROR where this machine has other versions than the run."""
        import platform

        if self.other:
            return task.stopped(Status.ERROR, f"{platform.node()} has other versions than the run: {self.other}")
        return self.run(task)
