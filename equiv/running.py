"""The command `equiv run`: plan, journal, verdicts, report.

A run is one plan and one journal. `--shard I/N` takes every N-th task, so that machines with the same case files share
a suite without talking to each other; `--resume JOURNAL` does what a journal planned and did not reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import changed, journaled, ray_engine
from equiv.arguments import positive, seconds
from equiv.cache import cache_dir
from equiv.device import check_name
from equiv.errors import UsageError
from equiv.plan import DEFAULT_DEVICE, Settings, cases, folders, known_gaps, refuse_taken, shard
from equiv.report import document, junit, summary, text
from equiv.report.outcome import exit_code
from equiv.terminal import visible
from equiv.workers import Task, default_jobs, run_plan, run_task

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

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
    journaled.add_options(run)
    run.add_argument("--strict", action="store_true", help="WITHIN fails")
    run.add_argument("--require", action="store_true", help="UNSUPPORTED fails")
    run.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    run.add_argument("--junit", type=Path, metavar="FILE", help="also write the verdicts as JUnit XML")
    run.add_argument("--summary", type=Path, metavar="FILE", help="also append a summary in markdown")
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
        others = ("selectors", "suite", "device", "seed", "changed", "journal", *KEPT)
        work = journaled.resume(options, "run", others, partial(_resumed, options))
    else:
        wanted = _wanted(options)
        if not wanted:
            print(f"no case is affected by what changed since {options.changed}: nothing was run")
            return 0
        work = _begun(options, wanted)
    versions = work.versions
    verdicts, remarks = journaled.do(work, _verdicts(work.tasks, options, versions))
    if options.json:
        print(document.render(verdicts, versions, remarks), end="")
    else:
        print(text.render(verdicts, versions, [*remarks, f"journal {work.book.path}"]), end="")
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


def _begun(options: argparse.Namespace, wanted: Sequence[Case]) -> journaled.Work:
    """The tasks of this shard under a fresh journal."""
    kept = {name: str(getattr(options, name) or "") for name in KEPT}
    devices = tuple(dict.fromkeys(options.device or [DEFAULT_DEVICE]))
    more = f" --cases {shlex.quote(kept['cases'])}" if options.cases else ""
    gaps = known_gaps(folders(options.cases, wanted))
    settings = Settings(devices, tuple(options.seed), options.record, options.check, more, gaps)
    tasks = shard([task for case in wanted for task in settings.tasks(case)], options.shard)
    for name in devices:
        check_name(name, check=options.check or None)
    cache_dir()  # every emulated device needs it: said once, and not as an ERROR of each case
    refuse_taken(options.record, tasks)
    if options.engine == "ray":
        ray_engine.connect(tasks)
    return journaled.begin(options.journal, "run", tasks, kept)


def _resumed(options: argparse.Namespace, tasks: Sequence[Task], kept: Mapping[str, str]) -> list[Task]:
    """The tasks that a journal holds no verdict of, with what its run looked for and the known gaps of today.

    Raises:
        UsageError: that run recorded launches.
    """
    if kept["record"]:
        raise UsageError(
            f"--resume {options.resume}: that run recorded launches, and half a record is none: run it anew"
        )
    folder = Path(kept["cases"]) if kept["cases"] else None
    gaps = known_gaps(folders(folder, [task.case for task in tasks]))
    left = [dataclasses.replace(task, gap=gaps.get(task.case.name, ""), check=kept["check"]) for task in tasks]
    if options.engine == "ray":
        ray_engine.connect(left)
    return left


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
