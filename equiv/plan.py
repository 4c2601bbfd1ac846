"""What a run is going to do: cases, selected from case files, times devices and seeds."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import casefile
from equiv.errors import UsageError
from equiv.runner import capture_name
from equiv.verify import PARTIES
from equiv.workers import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from equiv.records import Case

DEFAULT_DEVICE = "emulated:sm_100a"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the wanted cases are to be run.

    Attributes:
        seeds: run each case with these seeds too, besides its own.
        record: a folder that gets the launch records of every case, or "".
        check: what emulated devices look for besides (`equiv.device.device`), or "".
        options: what else the command that repeats a case needs, ` --cases DIR`.
        gaps: case name -> why and until when it is known not to pass (`known_gaps`).
    """

    devices: tuple[str, ...] = (DEFAULT_DEVICE,)
    seeds: tuple[int, ...] = ()
    record: str = ""
    check: str = ""
    options: str = ""
    gaps: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses seeds that no case file could state (UsageError)."""
        for seed in self.seeds:
            if not 0 <= seed < 1 << 64:
                raise UsageError(f"seed {seed} is not an integer from 0 to 2**64 - 1")

    def tasks(self, case: Case) -> Iterator[Task]:
        """A task for each device and seed, the case's own seed first; only the other ones are named in `again`."""
        for device in self.devices:
            for seed in dict.fromkeys((case.seed, *self.seeds)):
                extra = "" if seed == case.seed else f" --seed {seed}"
                extra += f" --check {self.check}" if self.check else ""
                again = f"equiv run {case.name} --device {device}{extra}{self.options}"
                gap = self.gaps.get(case.name, "")
                yield Task(dataclasses.replace(case, seed=seed), device, again, self.record, gap, self.check)


def cases(directory: Path | None, targets: Sequence[str], suites: Sequence[str]) -> tuple[Case, ...]:
    """The wanted cases: of the pairs that `targets` name, each from its own file, or of all case files in one folder.

    Args:
        directory: the folder of the case files, or None for the usual ones (`casefile.find_cases`).
        targets: `PAIR`, `PAIR::CASE`, either with `*` and `?`.
        suites: only cases of one of these suites; all if empty.

    Raises:
        CaseFileError: a file has faults.
        UsageError: there is no such pair, file, case or suite, or nothing is left.
    """
    names = list(dict.fromkeys(target.partition("::")[0] for target in targets))
    if not names or set("*?[") & set("".join(names)):
        names = [path.stem for path in files(casefile.find_cases(directory))]
    return casefile.select(casefile.load_all(directory, names), targets, suites)


def shard(tasks: Sequence[Task], which: str) -> list[Task]:
    """The I-th of N parts of a plan, `I/N`, "" for all of it: every N-th task, so that parts take about as long.

    Raises:
        UsageError: it is not of that form, or no task is left.
    """
    if not which:
        return list(tasks)
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", which)
    if not found or int(found[1]) > int(found[2]):
        raise UsageError(f"--shard {which}: expected I/N with 1 <= I <= N")
    part = list(tasks)[int(found[1]) - 1 :: int(found[2])]
    if not part:
        raise UsageError(f"--shard {which}: the plan has {len(tasks)} task(s), so this part of it is empty")
    return part


def refuse_taken(folder: str, tasks: Iterable[Task]) -> None:
    """Makes sure that the launch records of these tasks have room in a folder, "" for none.

    Raises:
        UsageError: it is no folder, or holds captures of the same names.
    """
    if not folder:
        return
    if Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"--record {folder}: is there and no folder")
    wanted = {capture_name(task.case, party, task.device.partition(":")[2]) for task in tasks for party in PARTIES}
    taken = sorted(wanted & {path.stem for path in (Path(folder) / "captures").glob("*.json")})
    if taken:
        raise UsageError(
            f"--record {folder}: holds {len(taken)} of the {len(wanted)} captures of this run already, "
            f"{taken[0]} for one: name another folder, or delete this one"
        )


def known_gaps(folders: Iterable[Path]) -> dict[str, str]:
    """Case name -> reason and last day, of the cases that the folders' `known_gaps.toml` list.

    Raises:
        CaseFileError: such a list has faults, is past a date or names a case that its folder does not hold.
    """
    today = dt.datetime.now(dt.UTC).date()
    found: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        if (path := folder / casefile.GAPS).exists():
            held = casefile.load_all(folder, [file.stem for file in files(folder)])
            found |= {gap.id: f"{gap.reason} (until {gap.until})" for gap in casefile.load_gaps(path, held, today)}
    return found


def folders(directory: Path | None, wanted: Iterable[Case]) -> list[Path]:
    """Where the case files of the wanted cases are."""
    return [casefile.case_file(pair, directory).parent for pair in dict.fromkeys(case.pair for case in wanted)]


def files(folder: Path) -> list[Path]:
    """The case files of a folder, sorted by name."""
    return sorted(path for path in folder.glob("*.toml") if path.name != casefile.GAPS)
