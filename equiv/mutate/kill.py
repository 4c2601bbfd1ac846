"""The kill run of one mutant: the cheapest cases that come to its instruction first, up to the first one that notices.

A mutant may change nothing in the plain schedule of the emulator, where copies land at once and warps run in turn. What
no case notices so is played in three more ways, each only if the sound kernel passes it; mutants of instructions that
order accesses, or that make what such a one is given, in all ways from the first case on.
"""

from __future__ import annotations

import fcntl
import re
import signal
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from equiv.emulator import engine
from equiv.errors import DeviceError
from equiv.mutate import pool
from equiv.mutate.reach import Counting
from equiv.mutate.recording import attempt, recorded
from equiv.mutate.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from equiv.emulator.engine import Program
    from equiv.mutate.mutants import Mutant, Target
    from equiv.pairs import Pair
    from equiv.records import Case

WAYS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "late": {"completion": "late"},
    "shuffled": {"seed": 1},
    "race": {"check": "race"},
}
"""How a case can be played: as it comes, with copies as late as allowed, warps at random, or searched for races."""

HANGS = 60
"""Seconds that one play of a mutant may take before its process ends, besides its budget of instructions."""

_HOST = re.compile(r"\b0x[0-9a-f]{9,}\b")
"""A host address, which is another one in each run."""

Key = tuple[str, str]
Rehearsal = tuple[dict[Key, "npt.NDArray[np.uint64]"], str]
"""How often a scene comes to each instruction of its kernels, and what its launches alone do not repeat, or ""."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant.

    Attributes:
        status: `killed`, `survived`, `not reached`, `equivalent`, `invisible` (see `equiv.mutate.mutants.Mutant`), or
            `argued`: survived, as `equiv.mutate.argued` says it must.
        killers: the cases that killed it, with ` (late)` and so on where it was not the plain way; the first one only,
            unless all were asked for.
        how: what the first one noticed, or why the mutant is equivalent.
        played: cases that ran.
    """

    status: str
    killers: tuple[str, ...] = ()
    how: str = ""
    played: int = 0


class Stage:
    """The scenes of all cases with the sound programs, and which instruction each scene comes to; to be closed.

    Attributes:
        scenes: in ascending order of cost.
        left_out: case -> why it cannot be played.
    """

    def __init__(self, pair: Pair, cases: Sequence[Case], arch: str, jobs: int = 1) -> None:
        self._pair, self._arch, self._jobs = pair, arch, jobs
        self.scenes: list[Scene] = []
        self.left_out: dict[str, str] = {}
        for case, found in zip(cases, recorded(pair, cases, arch, jobs), strict=True):
            if isinstance(found, Scene):
                self.scenes.append(found)
            else:
                self.left_out[case.id] = found
        self.sound: dict[Key, Program] = {}
        self._reached: dict[tuple[str, Key], npt.NDArray[np.uint64]] = {}
        self._passes: dict[tuple[str, str], bool] = {}
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115  as long as the stage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
        for scene in self.scenes:
            scene.close()

    @property
    def kernels(self) -> list[Key]:
        """(image, kernel) of all launches, in the order of their first case."""
        return list(dict.fromkeys(key for scene in self.scenes for key in sorted(scene.kernels)))

    def rehearse(self, targets: Mapping[Key, Target]) -> None:
        """Plays every scene once, counting; a scene that its launches alone do not repeat is left out.

        If another process recorded it, it is recorded here before that is said.
        """
        self.sound = {key: target.program for key, target in targets.items()}
        repeated = []
        good = self._rehearsals(self.scenes) if self._jobs > 1 else {}
        for number, scene in enumerate(self.scenes):
            found = scene if self._jobs == 1 or number in good else self._again(scene)
            if isinstance(found, Scene):
                counts, problem = good[number] if number in good else self._rehearsal(found)
                self._reached |= {(scene.case.id, key): count for key, count in counts.items()}
                if not problem:
                    repeated.append(found)
                    continue
                found.close()
                found = f"its launches alone do not repeat it: {problem}"
            self.left_out[scene.case.id] = found
        self.scenes = sorted(repeated, key=lambda scene: scene.cost)

    def _rehearsal(self, scene: Scene) -> Rehearsal:
        counting = {key: Counting(self.sound[key]) for key in scene.kernels}
        by_program = {id(one.program): one for one in counting.values()}

        def launching(program: Program, *given: Any, **how: Any) -> None:  # noqa: ANN401  as `engine.launch`
            by_program[id(program)].begin()
            engine.launch(program, *given, **how)

        scene.play({key: one.program for key, one in counting.items()}, launching)
        return {key: one.count for key, one in counting.items()}, scene.difference()

    def _rehearsals(self, scenes: Sequence[Scene]) -> dict[int, Rehearsal]:
        """Of scenes by number, in other processes; those that come to nothing are not among them."""

        def one(number: int) -> Rehearsal | None:
            try:
                return self._rehearsal(scenes[number])
            except DeviceError:
                return None

        found = pool.work(len(scenes), one, lambda *_: None, self._jobs)
        return {number: rehearsal for number, rehearsal in found if rehearsal is not None and not rehearsal[1]}

    def _again(self, scene: Scene) -> Scene | str:
        """The scene as this process records it."""
        scene.close()
        return attempt(self._pair, scene.case, self._arch)

    def reaching(self, key: Key, index: int) -> list[Scene]:
        """The scenes that come to an instruction, the cheapest first."""
        nothing = np.zeros(0, np.uint64)
        counts = ((scene, self._reached.get((scene.case.id, key), nothing)) for scene in self.scenes)
        return [scene for scene, count in counts if index < len(count) and count[index]]

    def outcome(self, mutant: Mutant, target: Target, *, every: bool = False) -> Outcome:
        """Runs a mutant until a case kills it, or, `every`, on all cases."""
        if mutant.equivalent:
            return Outcome("equivalent", how=mutant.equivalent)
        if mutant.invisible and mutant.operator != "ordering":
            return Outcome("invisible")
        key = (mutant.image, mutant.kernel)
        scenes = self.reaching(key, mutant.index)
        if not scenes:
            return Outcome("not reached")
        programs = {**self.sound, key: target.build(mutant)}
        at_once = mutant.operator == "ordering" or target.orders(mutant.index)
        for ways in (WAYS,) if at_once else (("",), tuple(WAYS)[1:]):
            killers, how, played = self._killers(scenes, programs, ways, every=every)
            if killers:
                return Outcome("killed", tuple(killers), how, played)
        return Outcome("invisible" if mutant.invisible else "survived", played=len(scenes))

    def _killers(
        self, scenes: Sequence[Scene], programs: Mapping[Key, Program], ways: Iterable[str], *, every: bool
    ) -> tuple[list[str], str, int]:
        """The cases that notice in one of these ways, all or the first; what the first noticed; how many played."""
        killers, how, played = [], "", 0
        for scene in scenes:
            played += 1
            for way in ways:
                if way and not self._sound_passes(scene, way):
                    continue
                found = _play(scene, programs, WAYS[way], self._lock)
                if found:
                    how = how or found
                    killers.append(scene.case.id + (f" ({way})" if way else ""))
                    break
            if killers and not every:
                break
        return killers, how, played

    def _sound_passes(self, scene: Scene, way: str) -> bool:
        key = (scene.case.id, way)
        if key not in self._passes:
            self._passes[key] = not _play(scene, self.sound, WAYS[way], self._lock)
        return self._passes[key]


@contextmanager
def _alone(scene: Scene, lock: IO[bytes]) -> Iterator[None]:
    """Keeps other processes from playing a scene whose memory they share."""
    if not scene.shared:
        yield
        return
    with Path(f"/proc/self/fd/{lock.fileno()}").open("rb") as own:  # a lock belongs to a file as it was opened
        fcntl.flock(own, fcntl.LOCK_EX)
        yield


def _play(scene: Scene, programs: Mapping[Key, Program], how: Mapping[str, Any], lock: IO[bytes]) -> str:
    """What was noticed, or "". The alarm ends the process, as no handler in Python would be heard inside the engine."""
    with _alone(scene, lock):
        signal.alarm(HANGS)
        try:
            scene.play(programs, **how)
            return scene.difference()
        except DeviceError as error:
            return f"{type(error).__name__}: {_HOST.sub('0x...', str(error).splitlines()[0])}"
        finally:
            signal.alarm(0)
