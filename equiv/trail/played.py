"""A recorded case played in one way, with what it takes to go back from an output element to instructions.

First only stores to global memory are recorded, of all CTAs; then, cluster by cluster as the way back leads there, all
that a cluster executed. Plays repeat each other to the bit, so that events of two recordings of one play agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.emulator import engine
from equiv.emulator.faults import coordinates
from equiv.trail.log import Recorded
from equiv.trail.memory import GLOBAL, Bytes, Memory, stores_global

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from equiv.emulator.engine import Program
    from equiv.emulator.launch import Launch
    from equiv.mutate.scene import Scene
    from equiv.records import Bits
    from equiv.trail.log import Log
    from equiv.trail.memory import Store

    Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """What one cluster of one launch did: its log, and its stores to be searched.

    Attributes:
        launch: number of the launch in its case.
        whole: all instructions are there; else only stores to global memory, of all CTAs.
    """

    launch: int
    log: Log = field(repr=False)
    memory: Memory = field(repr=False)
    whole: bool


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes of global memory and the store that left them: byte `first` of those asked for, `size` of them."""

    first: int
    size: int
    view: View
    store: Store


class Played:
    """One way of playing a scene.

    Args:
        scene: the recorded case.
        programs: what is launched, by (image, kernel).
        words: what this way is called in reports.
        how: arguments of `engine.launch`: seed, completion.
    """

    def __init__(self, scene: Scene, programs: Mapping[Key, Program], words: str, how: Mapping[str, Any]) -> None:
        self.scene = scene
        self.programs = programs
        self.words = words
        self.how = how
        self._all = {key: Recorded(program) for key, program in programs.items()}
        self._clusters: dict[tuple[int, tuple[int, ...]], View] = {}
        some = {key: Recorded(one, _storing(one)) for key, one in programs.items()}
        self.stores = tuple(
            View(number, log, Memory(log), whole=False) for number, log in enumerate(self._record(some, None))
        )
        self.outputs: dict[str, Bits] = scene.outputs()

    def launch(self, number: int) -> Launch:
        """A launch by its number."""
        return self.scene.steps[number].launch

    def restore(self) -> None:
        """Plays once more, so that the scene holds what this way leaves."""
        self.scene.play(self.programs, **self.how)

    def _record(self, recorded: Mapping[Key, Recorded], only: tuple[int, int, int] | None) -> list[Log]:
        """Plays the scene: logs of all launches, or of CTAs of one; `only`: its number, first and last CTA."""
        logs: list[Log] = []
        number = -1

        def launching(program: Program, *arguments: Any, **how: Any) -> None:  # noqa: ANN401
            nonlocal number
            number += 1
            one = next(one for key, one in recorded.items() if self.programs[key] is program)
            if only is not None and number != only[0]:
                engine.launch(program, *arguments, **how)
                return
            recording = one.begin(*(only or (0, 0, 0xFFFF_FFFF))[1:])
            engine.launch(one.program, *arguments, **how)
            logs.append(recording.end())

        self.scene.play(self.programs, launching, **self.how)
        return logs

    def cluster(self, number: int, cta: int) -> View:
        """All that the cluster of a CTA did in a launch.

        Raises:
            DeviceError: more than there is room for.
        """
        members = _cluster(self.launch(number), cta)
        key = (number, members)
        if key not in self._clusters:
            (log,) = self._record(self._all, (number, min(members), max(members)))
            log = log.of_ctas(members)
            self._clusters[key] = View(number, log, Memory(log), whole=True)
        return self._clusters[key]

    def whole(self, view: View, event: int, lane: int) -> tuple[View, int]:
        """An execution as all that its cluster did has it: that view and the event in it."""
        if view.whole:
            return view, event
        log = view.log
        cta, warp = log.thread(event)
        found = self.cluster(view.launch, cta)
        same = found.log.nth(log.pc(event), cta, warp, lane, log.turn(event, lane))
        assert same is not None  # plays repeat each other
        return found, same

    def written(
        self, address: int, size: int, before: tuple[View, int] | None = None
    ) -> list[Written | tuple[int, int]]:
        """Who left bytes of global memory: a store, or (first byte, bytes) where none did, or the host after it.

        Args:
            address: of the first one.
            size: their number.
            before: as an event of a cluster finds them; None: as they are in the end.
        """
        found: list[Written | tuple[int, int]] = []
        pending = [(0, size)]
        if before is not None:
            pending = self._search(before[0], before[1], address, pending, found)
        last = len(self.stores) if before is None else before[0].launch
        host: list[tuple[int, int]] = []
        for number in reversed(range(last)):
            if number + 1 < len(self.stores):
                pending = _without(self.scene.steps[number + 1].host, address, pending, host)
            pending = self._search(self.stores[number], len(self.stores[number].log), address, pending, found)
        if before is not None:
            # of another cluster of the same launch; see `contended`
            other = self.stores[before[0].launch]
            own = np.unique(before[0].log.column("cta"))
            pending = self._search(other, len(other.log), address, [*pending, *host], found, apart=own)
            host = []
        return [*found, *pending, *host]

    def contended(self, where: Bytes, view: View) -> bool:
        """Whether other clusters of the launch store to some bytes that one reads: which were first is not known."""
        other, own = self.stores[view.launch], np.unique(view.log.column("cta"))
        return any(store for *_, store in other.memory.pieces(where, len(other.log), own))

    def _search(
        self,
        view: View,
        event: int,
        address: int,
        pending: list[tuple[int, int]],
        found: list[Written | tuple[int, int]],
        *,
        apart: npt.NDArray[np.integer] | None = None,
    ) -> list[tuple[int, int]]:
        left = []
        for first, size in pending:
            for at, count, store in view.memory.pieces(Bytes(GLOBAL, address + first, size), event, apart):
                if store is None:
                    left.append((first + at, count))
                else:
                    found.append(Written(first + at, count, view, store))
        return left

    @cached_property
    def spans(self) -> npt.NDArray[np.uint64]:
        """Spans of global memory that were stored to, (address, bytes), `[n, 2]`, ascending."""
        return np.concatenate([one.memory.touched(GLOBAL) for one in self.stores])


def _without(
    host: npt.NDArray[np.int64], address: int, pending: list[tuple[int, int]], taken: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The pieces behind an address without what the host wrote, which is added to `taken`."""
    ends = host.sum(axis=1)
    left = []
    for first, size in pending:
        at, end = first, first + size
        for number in range(int(np.searchsorted(ends, address + first, "right")), len(host)):
            start = max(int(host[number, 0]) - address, at)
            if start >= end:
                break
            if start > at:
                left.append((at, start - at))
            at = min(int(ends[number]) - address, end)
            taken.append((start, at - start))
        if at < end:
            left.append((at, end - at))
    return left


def _storing(program: Program) -> frozenset[int]:
    return frozenset(index for index, one in enumerate(program.bytecode.instructions) if stores_global(one))


def _cluster(launch: Launch, cta: int) -> tuple[int, ...]:
    """Linear numbers of the CTAs of the cluster of one of them, by rank."""
    (across, down, _), (x, y, z) = launch.grid, launch.cluster
    first = [at // size * size for at, size in zip(coordinates(cta, launch.grid), launch.cluster, strict=True)]
    return tuple(
        ((first[2] + k) * down + first[1] + j) * across + first[0] + i
        for k in range(z)
        for j in range(y)
        for i in range(x)
    )
