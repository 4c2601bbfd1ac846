"""Several runs side by side: shards put together into runs, runs in time, and of each case when it went bad.

A journal is one shard or one whole run. Shards `I/N` of the same N with the same environment belong together; if a part
of N is missing, the run is not whole and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.errors import UsageError
from equiv.records import Status, worst
from equiv.report.outcome import FAILING, is_known_gap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from equiv.journal import Run
    from equiv.records import Verdict

Key = tuple[str, str]
"""A case's name and a device."""


@dataclass(frozen=True, slots=True)
class Night:
    """One run, put together from its shards.

    Attributes:
        started: when the first of its journals was begun, ISO 8601.
        missing: shards that are not among the journals, `3/8`.
        verdicts: all of them.
    """

    started: str
    environment: Mapping[str, str]
    missing: tuple[str, ...]
    verdicts: tuple[Verdict, ...]

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
    """Runs in the order of time.

    Raises:
        UsageError: two journals hold the same shard of one run.
    """
    whole: list[Night] = []
    parts: dict[tuple[int, tuple[tuple[str, str], ...]], dict[int, Run]] = {}
    for run in runs:
        which = run.settings.get("shard", "")
        if not which:
            whole.append(Night(run.started, run.environment, (), run.verdicts))
            continue
        at, _, of = which.partition("/")
        shards = parts.setdefault((int(of), tuple(sorted(run.environment.items()))), {})
        if int(at) in shards:
            raise UsageError(f"shard {which} is there twice, begun {shards[int(at)].started} and {run.started}")
        shards[int(at)] = run
    for (number, environment), shards in parts.items():
        missing = tuple(f"{one}/{number}" for one in range(1, number + 1) if one not in shards)
        verdicts = tuple(verdict for one in sorted(shards) for verdict in shards[one].verdicts)
        started = min(run.started for run in shards.values())
        whole.append(Night(started, dict(environment), missing, verdicts))
    return tuple(sorted(whole, key=lambda night: night.started))


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
