"""The command `equiv run`: plan, journal, verdicts, report.

A run is one plan and one journal. `--shard I/N` takes every N-th task, so that machines with the same case files share
a suite without talking to each other; `--resume JOURNAL` does what a journal planned and did not reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import changed, journal, ray_engine
from equiv.arguments import positive, seconds
from equiv.cache import cache_dir
from equiv.device import check_name
from equiv.errors import UsageError
from equiv.plan import DEFAULT_DEVICE, Settings, cases, folders, known_gaps, refuse_taken, shard
from equiv.records import Status
from equiv.report import document, environment, junit, summary, text
from equiv.report.outcome import exit_code
from equiv.terminal import visible
from equiv.workers import Task, default_jobs, run_plan, run_task

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from types import FrameType

    from equiv.records import Case, Verdict

KEPT = ("shard", "check", "record", "cases")
"""Options that a journal keeps, so that a run can be resumed as it was begun."""


def add_parser(commands: Any, selecting: Callable[[argparse.ArgumentParser], None]) -> None:  # noqa: ANN401
    """Adds `run` to the commands; `selecting` adds the arguments that select cases."""
    run = commands.add_parser("run", help="verify cases")
    selecting(run)
    run.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="D",
        help=f"emulated:sm_90a, emulated:sm_100a, cuda:0, or cuda for all GPUs (repeatable, default {DEFAULT_DEVICE})",
    )
    run.add_argument(
        "--seed",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="also run each case with this seed (repeatable)",
    )
    run.add_argument(
        "--changed", default="", metavar="BASE", help="only what changes since git revision BASE can affect"
    )
    run.add_argument("--shard", default="", metavar="I/N", help="the I-th of N equal parts of the plan, I from 1")
    run.add_argument(
        "--resume",
        type=Path,
        metavar="JOURNAL",
        help="do what a journal planned and did not reach",
    )
    run.add_argument("--strict", action="store_true", help="WITHIN fails")
    run.add_argument("--require", action="store_true", help="UNSUPPORTED fails")
    run.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    run.add_argument("--junit", type=Path, metavar="FILE", help="also write the verdicts as JUnit XML")
    run.add_argument("--summary", type=Path, metavar="FILE", help="also append a summary in markdown")
    run.add_argument(
        "--journal", type=Path, metavar="PATH", help="where to write the journal (default runs/<time>.jsonl)"
    )
    run.add_argument("--check", choices=("race",), default="", help="race: unordered accesses to shared memory (slow)")
    run.add_argument(
        "--record", default="", metavar="DIR", help="keep launch records below DIR, which must not hold them yet"
    )
    run.add_argument(
        "-j",
        "--jobs",
        type=positive,
        metavar="N",
        help="worker processes (default: CPUs; under Ray what the cluster has)",
    )
    run.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where the workers are: this machine, or the Ray cluster of RAY_ADDRESS (pip install 'equiv[ray]')",
    )
    run.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="S", help="seconds a case may take (default 600)"
    )
    run.add_argument(
        "--in-process", action="store_true", help="no workers: one case after the other in this process, for debuggers"
    )
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    if options.engine == "ray" and options.in_process:
        raise UsageError("--in-process is one process, and --engine ray is others: leave one out")
    if options.resume:
        book, tasks, total, versions = _resumed(options)
    else:
        wanted = _wanted(options)
        if not wanted:
            print(f"no case is affected by what changed since {options.changed}: nothing was run")
            return 0
        book, tasks, total, versions = _begun(options, wanted)
    remarks = environment.basis(tuple(dict.fromkeys(task.device for task in tasks)))
    with book:
        try:
            with ended_politely(), contextlib.closing(_verdicts(tasks, options, versions)) as found:
                for done, verdict in enumerate(found, total - len(tasks) + 1):
                    book.verdict(verdict)
                    progress(done, total, verdict)
        except KeyboardInterrupt:
            remarks.append("interrupted: the cases that were not reached are NOT_RUN")
    run = journal.read(book.path)
    remarks += [f"journal: {run.torn}"] if run.torn else []
    remarks += [f"shard {run.settings['shard']} of the plan"] if run.settings.get("shard") else []
    verdicts = run.verdicts
    if options.json:
        print(document.render(verdicts, versions, remarks), end="")
    else:
        print(text.render(verdicts, versions, [*remarks, f"journal {book.path}"]), end="")
    if options.junit:
        _write(options.junit, junit.render(verdicts, versions), "w")
    if options.summary:
        _write(options.summary, summary.render(verdicts, versions, remarks), "a")
    return exit_code(verdicts, strict=options.strict, require=options.require)


def _write(path: Path, said: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8", errors="backslashreplace") as file:
            file.write(said)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def _wanted(options: argparse.Namespace) -> tuple[Case, ...]:
    """The selected cases; with `--changed` those that it leaves, which may be none, reasons on stderr."""
    wanted = cases(options.cases, options.selectors, options.suite)
    if not options.changed:
        return wanted
    chosen = changed.select(wanted, options.changed, options.cases)
    for reason in chosen.reasons:
        print(f"equiv: {visible(reason)}", file=sys.stderr)
    return chosen.cases


def _begun(
    options: argparse.Namespace, wanted: Sequence[Case]
) -> tuple[journal.Journal, list[Task], int, dict[str, str]]:
    """A fresh journal with its plan, the tasks of this shard, how many they are, and the versions in use."""
    kept = {name: str(getattr(options, name) or "") for name in KEPT}
    devices = tuple(dict.fromkeys(options.device or [DEFAULT_DEVICE]))
    settings = _settings(kept, devices, wanted, seeds=tuple(options.seed))
    tasks = shard([task for case in wanted for task in settings.tasks(case)], options.shard)
    for name in devices:
        check_name(name, check=options.check or None)
    cache_dir()  # every emulated device needs it: said once, and not as an ERROR of each case
    refuse_taken(options.record, tasks)
    if options.engine == "ray":
        ray_engine.connect(tasks)
    versions = environment.versions()
    book = journal.Journal(options.journal or journal.default_path(), fresh=True)
    book.plan([task.planned for task in tasks], versions, kept)
    return book, tasks, len(tasks), versions


def _settings(
    kept: Mapping[str, str], devices: tuple[str, ...], wanted: Sequence[Case], seeds: tuple[int, ...] = ()
) -> Settings:
    folder = Path(kept["cases"]) if kept["cases"] else None
    more = f" --cases {shlex.quote(kept['cases'])}" if folder else ""
    return Settings(devices, seeds, kept["record"], kept["check"], more, known_gaps(folders(folder, wanted)))


def _resumed(options: argparse.Namespace) -> tuple[journal.Journal, list[Task], int, dict[str, str]]:
    """The journal opened again, the tasks that it planned and holds no verdict of, the whole plan's size, versions.

    Raises:
        UsageError: other options select something too; the journal's run had other versions or recorded launches, or
            one of its cases is gone.
        RecordError: it cannot be read.
    """
    path = options.resume
    others = ("selectors", "suite", "device", "seed", "changed", "journal", *KEPT)
    given = [name for name in others if getattr(options, name)]
    if given:
        raise UsageError(f"--resume {path}: the journal says what to run; leave out {', '.join(given)}")
    run, versions = journal.read(path), environment.versions()
    if said := environment.changed(run.environment, versions):
        raise UsageError(f"--resume {path}: a run has one environment, and this is another: {said}")
    if soak := run.settings.get("soak"):
        raise UsageError(
            f"--resume {path}: a soak's journal: the same `equiv soak {soak} ...` with --journal {path} goes on with it"
        )
    if run.settings["record"]:
        raise UsageError(f"--resume {path}: that run recorded launches, and half a record is none: run it anew")
    left = [verdict for verdict in run.verdicts if verdict.status is Status.NOT_RUN]
    folder = Path(run.settings["cases"]) if run.settings["cases"] else None
    wanted = {case.name: case for case in cases(folder, [verdict.case for verdict in left], [])} if left else {}
    tasks = []
    for verdict in left:
        case = wanted[verdict.case]
        settings = _settings(run.settings, (verdict.device,), [case], seeds=(verdict.seed,))
        tasks += [task for task in settings.tasks(case) if task.planned.seed == verdict.seed]
    if options.engine == "ray":
        ray_engine.connect(tasks)
    journal.mend(path)
    return journal.Journal(path), tasks, len(run.verdicts), versions


def _verdicts(
    tasks: Sequence[Task], options: argparse.Namespace, versions: Mapping[str, str]
) -> Generator[Verdict, None, None]:
    if options.in_process:
        for task in tasks:
            with _no_stdout() if options.json and sys.stdout is not None else contextlib.nullcontext():
                verdict = run_task(task)
            yield verdict
    elif options.engine == "ray":
        yield from ray_engine.run_plan(tasks, options.jobs, options.timeout, versions)
    else:
        yield from run_plan(tasks, options.jobs or default_jobs(), options.timeout)


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """What a party prints goes to stderr, also from C: stdout is for the report."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


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
