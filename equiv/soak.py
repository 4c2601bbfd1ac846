"""The command `equiv soak`: random cases of a pair, as many as asked for or as time allows, and what they found.

The cases are `equiv.drawn`'s, each judged as any case is. A journal holds the whole plan, so a soak that was stopped
goes on where it was: the same command with the same journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import journal, pairs
from equiv.arguments import positive, seconds
from equiv.cache import cache_dir
from equiv.device import check_name
from equiv.drawn import SHARING, Cases
from equiv.errors import UsageError
from equiv.journaled import ended_politely, progress
from equiv.plan import DEFAULT_DEVICE
from equiv.records import Status
from equiv.report import environment, soaked
from equiv.report.outcome import PASSING, exit_code
from equiv.running import KEPT
from equiv.wire import Planned
from equiv.workers import Task, default_jobs, run_plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from equiv.records import Verdict

COUNT = 1000


def add_parser(commands: Any) -> None:  # noqa: ANN401
    """Adds `soak` to the commands."""
    soak = commands.add_parser("soak", help="verify random cases of a pair")
    soak.add_argument("pair", metavar="PAIR")
    soak.add_argument("--count", type=positive, default=COUNT, metavar="N", help=f"cases (default {COUNT})")
    soak.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed draws the same cases (default 0)")
    soak.add_argument(
        "--only", action="append", type=int, default=[], metavar="NUMBER", help="case NUMBER alone, from 0 (repeatable)"
    )
    soak.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="D",
        help=f"emulated:sm_90a, emulated:sm_100a, cuda:0, cuda for all GPUs (repeatable, default {DEFAULT_DEVICE})",
    )
    soak.add_argument("--time-limit", type=seconds, metavar="S", help="stop after S seconds, however many are left")
    soak.add_argument(
        "--case-seconds",
        type=seconds,
        metavar="S",
        help="the largest cases: what one emulating core needs about S seconds for (default: the pair's own bound)",
    )
    soak.add_argument(
        "--sharing",
        type=positive,
        default=SHARING,
        metavar="N",
        help=f"draw what kernels are compiled for once for N cases (default {SHARING}): larger, faster, less various",
    )
    soak.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="S", help="seconds a case may take (default 600)"
    )
    soak.add_argument(
        "-j", "--jobs", type=positive, default=default_jobs(), metavar="N", help="worker processes (default: CPUs)"
    )
    soak.add_argument(
        "--journal",
        type=Path,
        metavar="PATH",
        help="where to write the journal (default runs/<time>.jsonl); one of the same soak is continued",
    )
    soak.add_argument("--strict", action="store_true", help="WITHIN fails")
    soak.add_argument("--require", action="store_true", help="UNSUPPORTED fails")
    soak.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    drawn = Cases(pairs.get(options.pair), options.seed, options.case_seconds or 0.0, options.sharing)
    tasks = list(_tasks(options, drawn))
    book, done = _journal(options, drawn, tasks)
    left = [task for task in tasks if task.planned not in done]
    stopped = ""
    with book:
        try:
            with ended_politely(), contextlib.closing(run_plan(left, options.jobs, options.timeout)) as found:
                for verdict in found:
                    book.verdict(verdict)
                    done[Planned.of(verdict)] = verdict
                    progress(len(done), len(tasks), verdict)
                    if verdict.status not in PASSING:
                        print(f"equiv: {verdict.status} {verdict.again}", file=sys.stderr)
                    late = options.time_limit and time.monotonic() - begun > options.time_limit
                    if late and len(done) < len(tasks):
                        stopped = f"stopped after {options.time_limit:g} s"
                        break
        except KeyboardInterrupt:
            stopped = "interrupted"
    verdicts = [done[task.planned] for task in tasks if task.planned in done]
    remarks = [f"{stopped}: {len(tasks) - len(verdicts)} of {len(tasks)} not reached"] if stopped else []
    remarks += [*environment.basis(options.device or [DEFAULT_DEVICE]), f"journal {book.path}"]
    cases = {task.case.name: task.case for task in tasks}
    print(soaked.render(verdicts, cases, drawn, environment.versions(), remarks, took=time.monotonic() - begun), end="")
    if stopped == "interrupted" or not verdicts:
        return 1
    return exit_code(verdicts, strict=options.strict, require=options.require)


def _tasks(options: argparse.Namespace, drawn: Cases) -> Iterator[Task]:
    """One for each number and device; those that share compilations are of one kind."""
    if any(number < 0 for number in options.only):
        raise UsageError(f"--only {min(options.only)}: cases are numbered from 0")
    devices = tuple(dict.fromkeys(options.device or [DEFAULT_DEVICE]))
    for name in devices:
        check_name(name)
    cache_dir()  # every emulated device needs it: said once, and not as an ERROR of each case
    more = f" --case-seconds {options.case_seconds!r}" if options.case_seconds else ""
    more += f" --sharing {drawn.sharing}" if drawn.sharing != SHARING else ""
    for number in dict.fromkeys(options.only) or range(options.count):
        case = drawn.case(number)
        for name in devices:
            again = f"equiv soak {drawn.pair.name} --seed {drawn.seed}{more} --only {number} --device {name}"
            yield Task(case, name, again, kind=f"{number // drawn.sharing} {name}")


def _journal(
    options: argparse.Namespace, drawn: Cases, tasks: Sequence[Task]
) -> tuple[journal.Journal, dict[Planned, Verdict]]:
    """The journal, begun or gone on with, and the verdicts that it holds already.

    Raises:
        UsageError: it holds another run, one of other draws, or one with other versions.
    """
    planned, versions = [task.planned for task in tasks], environment.versions()
    draws = hashlib.sha256(json.dumps([[task.case.axes, task.case.regimes] for task in tasks]).encode()).hexdigest()
    path = options.journal or journal.default_path()
    if not path.exists():
        book = journal.Journal(path, fresh=True)
        soak = f"{drawn.pair.name} --seed {drawn.seed}"
        book.plan(planned, versions, {**dict.fromkeys(KEPT, ""), "soak": soak, "draws": draws})
        return book, {}
    run = journal.read(path)
    if [(one, one.again) for one in run.planned] != [(one, one.again) for one in planned]:  # `again`: the same draws
        raise UsageError(f"--journal {path}: holds another plan than these {len(planned)} cases")
    if run.settings.get("draws") != draws:
        raise UsageError(
            f"--journal {path}: its cases were drawn from other axes or regimes than {drawn.pair.name} has"
        )
    if said := environment.changed(run.environment, versions):
        raise UsageError(f"--journal {path}: was begun with other versions: {said}")
    journal.mend(path)
    done = {Planned.of(verdict): verdict for verdict in run.verdicts if verdict.status is not Status.NOT_RUN}
    return journal.Journal(path), done
