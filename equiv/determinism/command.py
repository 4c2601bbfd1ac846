"""The command `equiv determinism`: plan, journal, workers and report of determinism matrices."""

from __future__ import annotations

import dataclasses
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from equiv import journaled
from equiv.arguments import positive, seconds
from equiv.cache import cache_dir
from equiv.determinism import CONDITIONS, REPEATS, conditions, matrix
from equiv.device import check_name
from equiv.plan import DEFAULT_DEVICE, Settings, cases, shard
from equiv.report import determinism as report
from equiv.report import document
from equiv.workers import Task, default_jobs, guarded, run_plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from equiv.device import Device
    from equiv.pairs import Pair
    from equiv.records import Verdict


def add_parser(commands: Any, selecting: Callable[[argparse.ArgumentParser], None]) -> None:  # noqa: ANN401
    """Adds `determinism` to the commands; `selecting` adds the arguments that select cases."""
    parser = commands.add_parser(
        "determinism", help="do both parties give the same bits again: repeated, as a graph, alone in a batch, ..."
    )
    selecting(parser)
    parser.add_argument(
        "--device", action="append", default=[], metavar="D", help=f"as of run (repeatable, default {DEFAULT_DEVICE})"
    )
    parser.add_argument(
        "--repeats", type=positive, metavar="N", help=f"further runs, and orders of warps (default {REPEATS})"
    )
    parser.add_argument(
        "--only", action="append", default=[], choices=tuple(CONDITIONS), help="this condition (repeatable)"
    )
    journaled.add_options(parser)
    parser.add_argument("--require", action="store_true", help="a condition that the device cannot do fails")
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    parser.add_argument("-j", "--jobs", type=positive, default=default_jobs(), metavar="N", help="worker processes")
    parser.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="seconds a case may take")
    parser.set_defaults(command=_determinism)


def _determinism(options: argparse.Namespace) -> int:
    if options.resume:
        others = ("selectors", "suite", "device", "journal", "shard", "cases", "repeats", "only")
        work = journaled.resume(options, "determinism", others, lambda tasks, _: tasks)
    else:
        work = _begun(options)
    only = work.settings["only"].split()
    judge = partial(run_task, repeats=int(work.settings["repeats"]), only=only)
    verdicts, remarks = journaled.do(work, run_plan(work.tasks, options.jobs, options.timeout, judge))
    if options.json:
        print(document.render(verdicts, work.versions, remarks), end="")
    else:
        remarks = [*remarks, f"journal {work.book.path}"]
        print(report.render(verdicts, work.versions, remarks, conditions(only)), end="")
    return report.exit_code(verdicts, require=options.require)


def _begun(options: argparse.Namespace) -> journaled.Work:
    """The tasks of this shard under a fresh journal."""
    devices = tuple(dict.fromkeys(options.device or [DEFAULT_DEVICE]))
    for name in devices:
        check_name(name)
    cache_dir()
    repeats = options.repeats or REPEATS
    settings = Settings(devices, options=f" --cases {shlex.quote(str(options.cases))}" if options.cases else "")
    more = "".join(f" --only {name}" for name in options.only)
    more += f" --repeats {repeats}" if repeats != REPEATS else ""
    tasks = [
        dataclasses.replace(task, again=task.again.replace("equiv run", "equiv determinism", 1) + more)
        for case in cases(options.cases, options.selectors, options.suite)
        for task in settings.tasks(case)
    ]
    kept = {"shard": options.shard, "cases": str(options.cases or "")}
    kept |= {"repeats": str(repeats), "only": " ".join(options.only)}
    return journaled.begin(options.journal, "determinism", shard(tasks, options.shard), kept)


def run_task(task: Task, repeats: int, only: Sequence[str]) -> Verdict:
    """The matrix of one case in this process; whatever goes wrong short of the process's death is in the verdict."""

    def judge(pair: Pair, device: Device) -> Verdict:
        return matrix(pair, task.case, device, repeats=repeats, only=only, again=task.again)

    return guarded(task, judge)
