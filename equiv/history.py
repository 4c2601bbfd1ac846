"""Several runs side by side: shards put together into runs, runs in time, and of each case when it went bad.

A journal is one shard or one whole run. Shards `I/N` of the same N and environment that were begun within `TOGETHER` of
the first one belong together, each I once; if a part of N is missing, the run is not whole and says so.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from equiv.records import Status, worst
from equiv.report.outcome import FAILING, is_known_gap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from equiv.journal import Run
    from equiv.records import Verdict

TOGETHER = dt.timedelta(hours=12)
"""How far apart the shards of one run may be begun: nightly runs lie further apart."""

Key = tuple[str, str]
"""A case's name and a device."""


@dataclass(frozen=True, slots=True)
class Night:
    """One run, put together from its shards.

    Attributes:
        started: when the first of its journals was begun, ISO 8601.
        missing: shards that are not among the journals, `3/8`.
        verdicts: all of them.
        settings: those of the first of its journals.
    """

    started: str
    environment: Mapping[str, str]
    missing: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def statuses(self) -> dict[Key, Status]:
        """The worst status of each case on each device, over its seeds; a known gap counts as UNSUPPORTED."""
        found: dict[Key, list[Status]] = {}
        for verdict in self.verdicts:
            status = Status.UNSUPPORTED if is_known_gap(verdict) else verdict.status
            found.setdefault((verdict.case, verdict.device), []).append(status)
        return {key: worst(statuses) for key, statuses in found.items()}


@dataclass(frozen=True, slots=True)
class Turn:
    """A case that is bad in the newest run that has it.

    Attributes:
        since: the run in which its present series of bad verdicts began.
        before: the last run in which it was good, or "" if none here was.
    """

    case: str
    device: str
    status: Status
    since: str
    before: str


def nights(runs: Iterable[Run]) -> tuple[Night, ...]:
    """Runs in the order of time, each put together from its shards."""
    found: list[list[Run]] = []
    for run in sorted(runs, key=lambda one: one.started):
        mates = [group for group in found if _belongs(run, group)]
        if mates:
            mates[-1].append(run)
        else:
            found.append([run])
    return tuple(_night(group) for group in found)


def _belongs(run: Run, group: Sequence[Run]) -> bool:
    """Whether a run is another shard of the run that a group of shards makes up."""
    first, (at, of) = group[0], _shard(run)
    taken = {_shard(one)[0] for one in group}
    return (
        of > 0
        and (of, run.environment) == (_shard(first)[1], first.environment)
        and at not in taken
        and dt.datetime.fromisoformat(run.started) - dt.datetime.fromisoformat(first.started) <= TOGETHER
    )


def _shard(run: Run) -> tuple[int, int]:
    """(I, N) of a shard, (0, 0) of a whole run."""
    at, _, of = run.settings.get("shard", "").partition("/")
    return (int(at), int(of)) if of else (0, 0)


def _night(group: Sequence[Run]) -> Night:
    of = _shard(group[0])[1]
    there = {_shard(run)[0]: run for run in group}
    missing = tuple(f"{at}/{of}" for at in range(1, of + 1) if at not in there)
    verdicts = tuple(verdict for at in sorted(there) for verdict in there[at].verdicts)
    return Night(group[0].started, group[0].environment, missing, verdicts, group[0].settings)


def turns(found: Sequence[Night]) -> tuple[Turn, ...]:
    """Every case that fails in the newest run that has it, with the run in which that began."""
    series: dict[Key, list[tuple[str, Status]]] = {}
    for night in found:
        for key, status in night.statuses.items():
            series.setdefault(key, []).append((night.started, status))
    bad = []
    for (case, device), seen in sorted(series.items()):
        if seen[-1][1] not in FAILING:
            continue
        good = [at for at, (_, status) in enumerate(seen) if status not in FAILING]
        begun = good[-1] + 1 if good else 0
        bad.append(Turn(case, device, seen[-1][1], seen[begun][0], seen[good[-1]][0] if good else ""))
    return tuple(bad)
