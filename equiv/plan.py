"""What a run is going to do: cases, selected from case files, times devices and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equiv import casefile
from equiv.errors import UsageError
from equiv.records import Case
from equiv.workers import Task

DEFAULT_DEVICE = "emulated:sm_100a"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cases are wanted; each part that is empty wants all.

    Attributes:
        selectors: names of pairs (`dsa_index`) or of cases (`dsa_index::fp8-b17-ties`).
        suites: names of suites; a case of any of them is wanted.
    """

    selectors: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()

    def wants(self, case: Case) -> bool:
        """Whether a case is wanted."""
        named = not self.selectors or case.name in self.selectors or case.pair in self.selectors
        return named and (not self.suites or not set(self.suites).isdisjoint(case.suites))

    def unmatched(self, cases: Sequence[Case]) -> tuple[str, ...]:
        """The selectors and suites that no case answers to: surely a slip of the pen, so callers refuse them."""
        pairs, names = {case.pair for case in cases}, {case.name for case in cases}
        suites = {suite for case in cases for suite in case.suites}
        missing = [f"case or pair {wanted!r}" for wanted in self.selectors if wanted not in pairs | names]
        return (*missing, *(f"suite {wanted!r}" for wanted in self.suites if wanted not in suites))


def tasks_of(
    paths: Sequence[Path], selection: Selection, devices: Sequence[str], seeds: Sequence[int] = (), record: str = ""
) -> list[tuple[Task, bool]]:
    """(task, whether it has the seed of its file) of every wanted case of the files.

    Raises:
        CaseFileError: a file has faults.
    """
    found = []
    for case in (case for path in paths for case in casefile.load(path)):
        if not selection.wants(case):
            continue
        for device in devices:
            folder = str(Path(record) / device.replace(":", "-") / case.pair / case.id) if record else ""
            found.append((Task(case, device, folder), True))
            for seed in dict.fromkeys(seeds):
                if seed != case.seed:
                    other = f"{folder}-seed{seed}" if folder else ""
                    found.append((Task(dataclasses.replace(case, seed=seed), device, other), False))
    return found


def plan(
    paths: Sequence[Path], selection: Selection, devices: Sequence[str], seeds: Sequence[int] = (), record: str = ""
) -> list[Task]:
    """All tasks of a run.

    Raises:
        UsageError: nothing is left to run, or a selector or suite matches nothing.
    """
    unmatched = selection.unmatched([case for path in paths for case in casefile.load(path)])
    if unmatched:
        raise UsageError(f"nothing matches {', '.join(unmatched)} in {', '.join(map(str, paths)) or 'no case file'}")
    tasks = [task for task, _ in tasks_of(paths, selection, devices, seeds, record)]
    if not tasks:
        raise UsageError("no case is both named and in one of the suites asked for")
    return tasks
