"""The command `equiv determinism`: plan, workers and report of determinism matrices."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from equiv.arguments import positive, seconds
from equiv.cache import cache_dir
from equiv.determinism import CONDITIONS, matrix
from equiv.device import check_name
from equiv.journaled import ended_politely, progress
from equiv.plan import DEFAULT_DEVICE, Settings, cases
from equiv.records import Status
from equiv.report import determinism as report
from equiv.report import document, environment
from equiv.report.outcome import exit_code
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
        "--repeats", type=positive, default=2, metavar="N", help="further runs, and orders of warps (default 2)"
    )
    parser.add_argument(
        "--only", action="append", default=[], choices=tuple(CONDITIONS), help="this condition (repeatable)"
    )
    parser.add_argument("--require", action="store_true", help="a condition that the device cannot do fails")
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    parser.add_argument("-j", "--jobs", type=positive, default=default_jobs(), metavar="N", help="worker processes")
    parser.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="seconds a case may take")
    parser.set_defaults(command=_determinism)


def _determinism(options: argparse.Namespace) -> int:
    devices = tuple(dict.fromkeys(options.device or [DEFAULT_DEVICE]))
    for name in devices:
        check_name(name)
    cache_dir()
    folder = f" --cases {shlex.quote(str(options.cases))}" if options.cases else ""
    settings = Settings(devices, options=folder)
    more = "".join(f" --only {name}" for name in options.only)
    more += f" --repeats {options.repeats}" if options.repeats != 2 else ""
    tasks = [
        dataclasses.replace(task, again=task.again.replace("equiv run", "equiv determinism", 1) + more)
        for case in cases(options.cases, options.selectors, options.suite)
        for task in settings.tasks(case)
    ]
    verdicts, remarks = _run(tasks, options)
    remarks += environment.basis(devices)
    versions = environment.versions()
    if options.json:
        print(document.render(verdicts, versions, remarks), end="")
    else:
        shown = {name: said for name, said in CONDITIONS.items() if not options.only or name in options.only}
        print(report.render(verdicts, shown, versions, remarks), end="")
    lacking = any(cell.status is Status.UNSUPPORTED for verdict in verdicts for cell in verdict.outputs)
    code = exit_code(verdicts, require=options.require)
    return 1 if options.require and lacking else code


def _run(tasks: Sequence[Task], options: argparse.Namespace) -> tuple[list[Verdict], list[str]]:
    """A verdict for each task, in the plan's order, NOT_RUN where none came; remarks."""
    work = partial(run_task, repeats=options.repeats, only=tuple(options.only))
    found, remarks = {}, []
    try:
        with ended_politely(), contextlib.closing(run_plan(tasks, options.jobs, options.timeout, work)) as verdicts:
            for done, verdict in enumerate(verdicts, 1):
                found[verdict.case, verdict.device] = verdict
                progress(done, len(tasks), verdict)
    except KeyboardInterrupt:
        remarks.append("interrupted: the cases that were not reached are NOT_RUN")
        print(file=sys.stderr)
    return [
        found.get((task.case.name, task.device)) or task.stopped(Status.NOT_RUN, "planned and not reached")
        for task in tasks
    ], remarks


def run_task(task: Task, repeats: int, only: Sequence[str]) -> Verdict:
    """The matrix of one case in this process; whatever goes wrong short of the process's death is in the verdict."""

    def judge(pair: Pair, device: Device) -> Verdict:
        return matrix(pair, task.case, device, repeats=repeats, only=only, again=task.again)

    return guarded(task, judge)
