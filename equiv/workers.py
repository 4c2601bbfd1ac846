"""Runs a plan in worker processes, so that a case that crashes or hangs its process costs that case only.

Knows how to call `equiv.verify` in a fresh process and what to make of its death; nothing of what a case is.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import gpus
from equiv.errors import DeviceError, UnsupportedError
from equiv.records import Case, Status, Verdict
from equiv.wire import Planned

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from multiprocessing.context import SpawnProcess

    from equiv.device import Device
    from equiv.pairs import Pair

TAIL = 2000
"""Bytes of a dead worker's output that its verdict quotes."""

PR_SET_PDEATHSIG = 1
"""Of `linux/prctl.h`: the signal that this process gets when its parent dies."""

GLANCE = 1.0
"""Seconds after which a silent worker is looked at: what a party forked may hold its pipe open past its death."""


@dataclass(frozen=True, slots=True)
class Task:
    """One case to verify on one device.

    Attributes:
        again: the command that repeats it.
        record: a folder for its launch records, or "".
        gap: why and until when the case is listed as known not to pass, or "".
        check: what an emulated device looks for besides, or "".
        kind: tasks of one kind share what a process builds for them, so they go to one worker while others have work;
            "": of no kind.
    """

    case: Case
    device: str
    again: str
    record: str = ""
    gap: str = ""
    check: str = ""
    kind: str = ""

    @property
    def planned(self) -> Planned:
        """Its entry in the plan."""
        return Planned(self.case.name, self.device, self.case.seed, self.again)

    def stopped(self, status: Status, summary: str, seconds: float = 0.0) -> Verdict:
        """The verdict on a task that came to no judgement."""
        return self.marked(
            Verdict(self.case.name, self.device, self.case.seed, status, summary, seconds=seconds, again=self.again)
        )

    def marked(self, verdict: Verdict) -> Verdict:
        """The verdict with the known gap of its case."""
        return replace(verdict, gap=self.gap)


def default_jobs() -> int:
    """As many workers as this process may use CPUs."""
    return max(1, len(os.sched_getaffinity(0)))


def run_task(task: Task) -> Verdict:
    """Verifies one task in this process; whatever goes wrong short of the process's death is in the verdict."""

    def judge(pair: Pair, device: Device) -> Verdict:
        from equiv.verify import verify

        record = Path(task.record) if task.record else None
        return verify(pair, task.case, device, again=task.again, record=record)

    return guarded(task, judge)


_BROKEN: dict[str, str] = {}
"""Device -> the case that left it unusable for this process."""


def guarded(task: Task, judge: Callable[[Pair, Device], Verdict]) -> Verdict:
    """What `judge` says of a task; whatever goes wrong short of the process's death is in the verdict.

    After some errors every call to a GPU fails until the process ends ("sticky"): what comes after one is NOT_RUN.
    """
    from equiv import pairs
    from equiv.device import device

    if task.device in _BROKEN:
        said = f"not reached: {_BROKEN[task.device]} left {task.device} unusable for this process"
        return task.stopped(Status.NOT_RUN, said)
    place: Device | None = None
    try:
        pair = pairs.get(task.case.pair)
        place = device(task.device, check=task.check or None)
        verdict = task.marked(judge(pair, place))
    except UnsupportedError as error:
        verdict = task.stopped(Status.UNSUPPORTED, str(error))
    except DeviceError as error:
        verdict = task.stopped(Status.ERROR, str(error))
    except (Exception, SystemExit):  # noqa: BLE001  a fault of equiv or of a pair: ERROR with all there is to say
        verdict = task.stopped(Status.ERROR, traceback.format_exc().strip())
    if place is not None and verdict.status is Status.ERROR:
        try:
            place.synchronize()
        except DeviceError:
            _BROKEN[task.device] = task.case.name
    return verdict


def run_plan(
    tasks: Sequence[Task], jobs: int, timeout: float, run: Callable[[Task], Verdict] = run_task
) -> Generator[Verdict, None, None]:
    """Verifies every task, `jobs` at a time, and yields verdicts as they come.

    Args:
        tasks: what to do, in the order in which it is begun.
        jobs: how many workers at most.
        timeout: seconds a case may take, the start of a fresh worker included.
        run: what a worker does with a task; a function of a module, because it travels by name.

    A worker that dies gives its case ERROR with its exit and the end of its output; one that needs more than `timeout`
    seconds for a case is killed, ERROR as well. Others go on. A worker on a GPU is replaced after an ERROR, which may
    have left the GPU unusable for its process. Closing the iterator (Ctrl-C) ends all workers.

    Workers on GPUs are pinned each to one of those that the caller shows, as evenly as their number allows.

    Raises:
        UsageError: the caller's list of GPUs has a bad entry.
    """
    waiting = _Waiting(tasks)
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.task for worker in workers):
            workers = [worker for worker in workers if worker.usable]
            for worker in workers:
                if worker.task is None and (task := waiting.take(worker, workers)):
                    worker.give(task)
            for worker in workers:
                if waiting and worker.task is None and len(workers) >= jobs:
                    worker.end()  # nothing is left that it could do where it is
            workers = [worker for worker in workers if worker.usable]
            while waiting and len(workers) < jobs:
                place = waiting.emptiest([worker.place for worker in workers])
                workers.append(_Worker(timeout, run, place))
                task = waiting.take(workers[-1], workers)
                assert task is not None, f"nothing to do at {place}"
                workers[-1].give(task)
            busy = [worker for worker in workers if worker.task]
            patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            wait([worker.connection for worker in busy], min(patience, GLANCE))
            for worker in busy:
                verdict = worker.verdict()
                if verdict is not None:
                    yield verdict
    finally:
        for worker in workers:
            worker.end()


def _next(waiting: deque[Task], worker: _Worker, workers: Sequence[_Worker]) -> Task:
    """Takes a task out of those that wait: one of the worker's own kind, else the first that nobody else is at."""
    others = {other.kind for other in workers if other is not worker}
    mine = (at for at, task in enumerate(waiting) if worker.kind and task.kind == worker.kind)
    free = (at for at, task in enumerate(waiting) if not task.kind or task.kind not in others)
    at = next(mine, next(free, 0))
    task = waiting[at]
    del waiting[at]
    return task


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a worker can be: pinned to an entry of the caller's GPUs for tasks of one device; `device` "": anywhere."""

    device: str = ""
    entry: str = ""


class _Waiting:
    """Tasks that nobody has begun, by the device that a worker must be pinned for; "" where it need not be pinned."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        entries = gpus.pins(task.device for task in tasks)
        self._places = {device: [_Place(device, entry) for entry in mine] for device, mine in entries.items()}
        self._places[""] = [_Place()]
        self._tasks: dict[str, deque[Task]] = {}
        for task in tasks:
            self._tasks.setdefault(task.device if task.device in entries else "", deque()).append(task)

    def __bool__(self) -> bool:
        return any(self._tasks.values())

    def take(self, worker: _Worker, workers: Sequence[_Worker]) -> Task | None:
        """The next task that can be done where the worker is."""
        mine = self._tasks.get(worker.place.device)
        return _next(mine, worker, workers) if mine else None

    def emptiest(self, taken: Sequence[_Place]) -> _Place:
        """Where there is something to do and the fewest workers are."""
        useful = [place for device, tasks in self._tasks.items() if tasks for place in self._places[device]]
        return min(useful, key=taken.count)


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """What a process that is started inside the block inherits besides."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Worker:
    """One worker process and the case it has in hand."""

    def __init__(self, timeout: float, run: Callable[[Task], Verdict], place: _Place) -> None:
        context = multiprocessing.get_context("spawn")
        self.timeout = timeout
        self.place = place
        self.deadline = 0.0
        self.task: Task | None = None
        self.kind = ""
        self.usable = True
        self._started = 0.0
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the worker, and of no name to leave behind
        self.connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_serve, args=(theirs, self._output.fileno(), run, os.getpid()), daemon=True
        )
        with _environment(gpus.pinned(place.device, place.entry) if place.device else {}):
            self._process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        """Hands the worker a case; its clock starts now, the start of a fresh process included."""
        self.task, self.kind = task, task.kind
        self._started = time.monotonic()
        self.deadline = self._started + self.timeout
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile: `verdict` finds that and says how
            self.connection.send(task)

    def verdict(self) -> Verdict | None:
        """The verdict on the case in hand if there is one by now."""
        task = self.task
        assert task is not None
        try:
            alive = self._process.is_alive()  # asked first: what it sent before it died is in the pipe by then
            if self.connection.poll():
                verdict = self.connection.recv()
                if not isinstance(verdict, Verdict) or Planned.of(verdict) != task.planned:
                    verdict = self._lost(task, f"the worker answered something else: {verdict!r:.200}")
                elif task.device == "cuda":
                    verdict = replace(verdict, notes=(*verdict.notes, f"on GPU {self.place.entry or 'none'}"))
                if task.device.startswith("cuda") and verdict.status is Status.ERROR:
                    self.end()
            elif not alive:
                verdict = self._lost(task, f"the worker died: {_exit(self._process.exitcode)}")
            elif time.monotonic() < self.deadline:
                return None
            else:
                verdict = self._lost(task, f"timed out: no verdict after {self.timeout:g} s")
        except (EOFError, ConnectionResetError):
            self._process.join()
            verdict = self._lost(task, f"the worker died: {_exit(self._process.exitcode)}")
        self.task = None
        return verdict

    def _lost(self, task: Task, why: str) -> Verdict:
        self.end()
        output = self._tail
        summary = why + (f"; the end of its output:\n{output}" if output else "; it printed nothing")
        return task.stopped(Status.ERROR, summary, time.monotonic() - self._started)

    def end(self) -> None:
        """Kills the process and forgets its output."""
        if self.usable:
            self.usable = False
            self._process.kill()
            self._process.join()
            self.connection.close()
            with self._output as output:
                output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL))
                self._tail = output.read(TAIL).decode(errors="replace").strip()


def _exit(code: int | None) -> str:
    """An exit code in words: `signal SIGSEGV`, `exit code 3`."""
    assert code is not None
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _serve(connection: Connection, output: int, run: Callable[[Task], Verdict], parent: int) -> None:
    """The worker's main loop: a task in, a verdict out, until the parent hangs up or dies.

    `output` is the parent's descriptor of the file that gets what this process prints.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a case that hangs would outlive a killed run
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; it ends us
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers are the parallelism
    file = os.open(f"/proc/{parent}/fd/{output}", os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    import faulthandler

    faulthandler.enable(sys.stderr)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task = connection.recv()
            connection.send(run(task))
