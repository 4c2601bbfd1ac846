"""Does numbered work in forked processes: what a crash or a hang costs is the one piece of work that it was in.

Forked, not spawned: the work needs memory at the addresses where this process recorded it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import warnings
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from equiv.workers import PR_SET_PDEATHSIG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.context import ForkProcess


def work(
    count: int,
    do: Callable[[int], Any],
    died: Callable[[int, str], Any],
    jobs: int,
    late: Callable[[], bool] = lambda: False,
    *,
    kinds: Sequence[str] = (),
) -> Iterator[tuple[int, Any]]:
    """(number, what `do` made of it) for each number below `count`, as they are done; begun in ascending order.

    Args:
        count: pieces of work.
        do: called in one of the processes; its result travels back.
        died: called here with the number and how the process ended, where one died over its work.
        jobs: processes at a time.
        late: once true, nothing more is begun. What is in hand is still done: left out, the slow pieces would be, and
            with them what most of the slow ones have in common.
        kinds: one for each number, where the order does not matter: a process goes on with what is of its kind, and
            then with what is of nobody's.
    """
    waiting = deque(range(count))
    workers: list[_Worker] = []
    try:
        while waiting or any(one.number is not None for one in workers):
            if late():
                waiting.clear()
                if all(one.number is None for one in workers):
                    return
            workers = [one for one in workers if one.alive]
            while waiting and len(workers) < jobs:
                workers.append(_Worker(do))
            for one in workers:
                if one.number is None and waiting:
                    one.give(_next(waiting, kinds, one, workers) if kinds else waiting.popleft())
            busy = {one.connection: one for one in workers if one.number is not None}
            for ready in wait(list(busy)):
                one = busy[ready]  # type: ignore[index]
                number = one.number
                assert number is not None
                try:
                    result = one.take()
                except (EOFError, ConnectionResetError):
                    result = died(number, one.ended())
                yield number, result
    finally:
        for one in workers:
            one.end()


def _next(waiting: deque[int], kinds: Sequence[str], worker: _Worker, workers: Sequence[_Worker]) -> int:
    """Takes a number out of those that wait."""
    others = {kinds[other.last] for other in workers if other is not worker and other.last is not None}
    own = None if worker.last is None else kinds[worker.last]
    mine = (number for number in waiting if kinds[number] == own)
    free = (number for number in waiting if kinds[number] not in others)
    number = next(mine, next(free, waiting[0]))
    waiting.remove(number)
    return number


class _Worker:
    """One process, the number it has in hand, and the last one that it was given."""

    def __init__(self, do: Callable[[int], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.number: int | None = None
        self.last: int | None = None
        self.alive = True
        self._process: ForkProcess = context.Process(target=_serve, args=(theirs, self.connection, do), daemon=True)
        with warnings.catch_warnings():
            # Compilers left threads behind, which do not run in the copy and hold no lock that the engine takes.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def give(self, number: int) -> None:
        self.number = self.last = number
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile, which `take` finds
            self.connection.send(number)

    def take(self) -> Any:  # noqa: ANN401
        result = self.connection.recv()
        self.number = None
        if isinstance(result, BaseException):
            raise result
        return result

    def ended(self) -> str:
        """How it died, in words."""
        self.alive, self.number = False, None
        self._process.join()
        code = self._process.exitcode or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def end(self) -> None:
        if self.alive:
            self._process.kill()
            self._process.join()
            self.connection.close()


def _serve(connection: Connection, parents: Connection, do: Callable[[int], Any]) -> None:
    parents.close()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a mutant that hangs would outlive a killed run
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    with contextlib.suppress(EOFError):
        while True:
            number = connection.recv()
            try:
                connection.send(do(number))
            except Exception as error:  # noqa: BLE001  a fault of equiv: raised again where it can be seen
                connection.send(error)
    os._exit(0)  # nothing of the parent's is torn down twice
