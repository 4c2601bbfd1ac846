"""The append-only journal of a run.

JSON lines, the plan first, then one line a verdict, flushed to the disk line by line. A journal is readable at any
moment, also after a kill: what is planned and has no verdict is NOT_RUN, and a line torn by the kill is dropped and
reported. Several processes may append to one journal: each line is one `write` to a file opened for appending.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from equiv import wire
from equiv.errors import RecordError, UsageError
from equiv.records import Status, Verdict, worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = "equiv.journal"
VERSION = 1


def default_path() -> Path:
    """`runs/<UTC time to the microsecond>-<pid>.jsonl` below the working directory."""
    now = dt.datetime.now(dt.UTC)
    return Path("runs") / f"{now:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}.jsonl"


class Journal:
    """A journal opened for appending.

    Args:
        path: the file; its folder is made.
        fresh: it must not be there yet, because a journal holds one run.

    Raises:
        UsageError: it cannot be written, or is there although it must not be.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_EXCL if fresh else 0), 0o644)
        except OSError as error:
            if fresh and path.exists():
                raise UsageError(
                    f"journal {path}: is there already, and a journal holds one run: name another"
                ) from error
            raise UsageError(f"journal {path}: cannot be written: {error.strerror}") from error

    def plan(
        self, entries: Iterable[wire.Planned], environment: Mapping[str, str], settings: Mapping[str, str] | None = None
    ) -> None:
        """Writes what the run is going to do, before it does any of it; `settings` are what a resumed run needs."""
        started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        planned = [wire.encode(entry) for entry in entries]
        self._append(
            {"kind": "plan", "schema": SCHEMA, "version": VERSION, "started": started}
            | {"environment": dict(environment), "settings": dict(settings or {}), "planned": planned}
        )

    def verdict(self, verdict: Verdict) -> None:
        """Appends one verdict; when this returns it has reached the disk."""
        self._append({"kind": "verdict", "verdict": wire.encode(verdict)})

    def close(self) -> None:
        """Closes the file; what was appended stays valid without it."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise RecordError(f"journal {self.path}: cannot be written: {error.strerror}") from error
        if written != len(line):
            raise RecordError(f"journal {self.path}: only {written} of {len(line)} bytes written: is the disk full?")
        os.fsync(self._file)


def mend(path: Path) -> None:
    """Cuts off a torn last line, so that lines can be appended; no process may be writing to the journal."""
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


@dataclass(frozen=True, slots=True)
class Run:
    """A journal as read.

    Attributes:
        settings: options of the run that are not in its plan, `shard` and `cases` for two; "" where not given.
        verdicts: one for each planned case, in the plan's order; NOT_RUN where the journal has none.
        torn: what was wrong with the last line, or "".
    """

    planned: tuple[wire.Planned, ...]
    verdicts: tuple[Verdict, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    torn: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that wrote it: `run`, `determinism` or `soak`."""
        return self.settings.get("command", "soak" if "soak" in self.settings else "run")


def read(path: Path) -> Run:
    """Reads a journal, complete or not.

    Raises:
        RecordError: not a journal, of another version, damaged before its last line, or a verdict that nobody planned.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RecordError(f"journal {path}: {error.strerror}") from error
    lines = text.split(b"\n")
    tail = lines.pop()
    torn = f"line {len(lines) + 1} is torn after {len(tail)} bytes and was dropped" if tail else ""
    plan: dict[str, Any] | None = None
    found: dict[wire.Planned, Verdict] = {}
    for number, line in enumerate(lines, 1):
        entry = _entry(path, number, line)
        if entry["kind"] == "plan" and number == 1:
            plan = entry
        elif entry["kind"] == "verdict" and plan is not None:
            verdict = wire.verdict(entry["verdict"])
            key = wire.Planned.of(verdict)
            before = found[key].status if key in found else Status.NOT_RUN
            # A case that was not reached and then run again is what the second run says.
            if before is Status.NOT_RUN or worst([before, verdict.status]) == verdict.status:
                found[key] = verdict
        else:
            raise RecordError(f"journal {path}: line {number}: unexpected kind {entry['kind']!r}")
    if plan is None:
        raise RecordError(f"journal {path}: no plan in it{'; ' + torn if torn else ''}")
    if (plan.get("schema"), plan.get("version")) != (SCHEMA, VERSION):
        raise RecordError(
            f"journal {path}: schema {plan.get('schema')!r} version {plan.get('version')!r}, not {SCHEMA!r} {VERSION}"
        )
    planned = tuple(wire.planned(entry) for entry in plan["planned"])
    stray = found.keys() - set(planned)
    if stray:
        raise RecordError(
            f"journal {path}: verdicts that nobody planned: {', '.join(sorted(key.case for key in stray))}"
        )
    verdicts = tuple(found.get(entry) or _not_run(entry) for entry in planned)
    return Run(planned, verdicts, plan["environment"], plan["started"], torn, plan.get("settings", {}))


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise RecordError(f"journal {path}: line {number} is damaged: {error}") from error
    if not isinstance(entry, dict) or "kind" not in entry:
        raise RecordError(f"journal {path}: line {number} is no journal entry")
    return entry


def _not_run(entry: wire.Planned) -> Verdict:
    return Verdict(entry.case, entry.device, entry.seed, Status.NOT_RUN, "planned and not reached", again=entry.again)
