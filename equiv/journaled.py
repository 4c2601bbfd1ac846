"""A plan done under a journal: begun, whole or one shard of it, or gone on with where its journal ends."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import journal
from equiv.errors import UsageError
from equiv.plan import cases
from equiv.records import Status
from equiv.report import environment
from equiv.workers import Task

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from types import FrameType

    from equiv.records import Verdict


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done now, and the journal that gets its verdicts.

    Attributes:
        total: how many tasks the journal's plan has; `tasks` are those without a verdict.
        settings: the options that the journal keeps.
    """

    book: journal.Journal
    tasks: Sequence[Task]
    total: int
    versions: Mapping[str, str]
    settings: Mapping[str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--shard`, `--resume` and `--journal` to a command."""
    parser.add_argument("--shard", default="", metavar="I/N", help="the I-th of N equal parts of the plan, I from 1")
    parser.add_argument("--resume", type=Path, metavar="JOURNAL", help="do what a journal planned and did not reach")
    parser.add_argument(
        "--journal", type=Path, metavar="PATH", help="where to write the journal (default runs/<time>.jsonl)"
    )


def begin(path: Path | None, command: str, tasks: Sequence[Task], kept: Mapping[str, str]) -> Work:
    """A fresh journal with its plan.

    Args:
        path: the journal, or None for one of the usual name.
        command: whose it is, as `journal.Run.command` says.
        tasks: the plan.
        kept: options that a resumed run needs.

    Raises:
        UsageError: the journal cannot be written, or is there already.
    """
    versions, settings = environment.versions(), {**kept, "command": command}
    book = journal.Journal(path or journal.default_path(), fresh=True)
    book.plan([task.planned for task in tasks], versions, settings)
    return Work(book, tasks, len(tasks), versions, settings)


def resume(
    options: argparse.Namespace,
    command: str,
    others: Sequence[str],
    prepare: Callable[[list[Task], Mapping[str, str]], Sequence[Task]],
) -> Work:
    """The journal of `--resume` opened again.

    Args:
        options: the command line.
        command: whose journal it must be.
        others: options that select something, and are the journal's to say.
        prepare: the tasks without a verdict, as their plan and case files have them, and the journal's settings -> the
            tasks as this command does them; it may refuse them.

    Raises:
        UsageError: one of `others` is given; the journal is another command's or of other versions; a case is gone.
        RecordError: it cannot be read.
    """
    path = options.resume
    given = [name for name in others if getattr(options, name)]
    if given:
        raise UsageError(f"--resume {path}: the journal says what to run; leave out {', '.join(given)}")
    run, versions = journal.read(path), environment.versions()
    if run.command == "soak":
        soak = run.settings["soak"]
        raise UsageError(
            f"--resume {path}: a soak's journal: the same `equiv soak {soak} ...` with --journal {path} goes on with it"
        )
    if run.command != command:
        raise UsageError(
            f"--resume {path}: a journal of `equiv {run.command}`, not of `equiv {command}`: "
            f"`equiv {run.command} --resume {path}` goes on with it"
        )
    if said := environment.changed(run.environment, versions):
        raise UsageError(f"--resume {path}: a run has one environment, and this is another: {said}")
    tasks = prepare(_unreached(run), run.settings)
    journal.mend(path)
    return Work(journal.Journal(path), tasks, len(run.verdicts), versions, run.settings)


def _unreached(run: journal.Run) -> list[Task]:
    """The tasks that a journal holds no verdict of: its case, seed, device and `again`, nothing else."""
    left = [verdict for verdict in run.verdicts if verdict.status is Status.NOT_RUN]
    folder = Path(run.settings["cases"]) if run.settings["cases"] else None
    wanted = {case.name: case for case in cases(folder, [verdict.case for verdict in left], [])} if left else {}
    return [
        Task(dataclasses.replace(wanted[verdict.case], seed=verdict.seed), verdict.device, verdict.again)
        for verdict in left
    ]


def do(work: Work, verdicts: Generator[Verdict, None, None]) -> tuple[tuple[Verdict, ...], list[str]]:
    """Writes verdicts as they come; ends as politely when it is told to stop.

    Returns:
        The verdicts of the whole journal, in the plan's order, NOT_RUN where none came; remarks on the run.
    """
    interrupted = []
    with work.book as book:
        try:
            with ended_politely(), contextlib.closing(verdicts):
                for done, verdict in enumerate(verdicts, work.total - len(work.tasks) + 1):
                    book.verdict(verdict)
                    progress(done, work.total, verdict)
        except KeyboardInterrupt:
            interrupted.append("interrupted: the cases that were not reached are NOT_RUN")
            if sys.stderr.isatty():
                print(file=sys.stderr)  # ends the line of progress
    run = journal.read(work.book.path)
    remarks = [*environment.basis(task.device for task in work.tasks), *interrupted]
    remarks += [f"journal: {run.torn}"] if run.torn else []
    remarks += [f"shard {run.settings['shard']} of the plan"] if run.settings["shard"] else []
    return run.verdicts, remarks


@contextlib.contextmanager
def ended_politely() -> Iterator[None]:
    """Treats what CI (SIGTERM) and a closed terminal send like Ctrl-C: workers are ended, the report is written."""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]  # nohup
    previous = {one: signal.signal(one, interrupt) for one in heard}
    try:
        yield
    finally:
        for one, handler in previous.items():
            signal.signal(one, handler)


def progress(done: int, total: int, verdict: Verdict) -> None:
    """One line that redraws itself, on a terminal only."""
    if not sys.stderr.isatty():
        return
    filled = 30 * done // total
    line = f"[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {verdict.status} {verdict.case} {verdict.device}"
    print(f"\r\x1b[K{line[:118]}", end="\n" if done == total else "", file=sys.stderr, flush=True)
