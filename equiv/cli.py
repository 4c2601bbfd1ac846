"""The command `equiv`: `list`, `run`, `rounding`, `order`, `explain`, `doctor`, `bench`, `emulator`, `replay`.

Results go to stdout, progress and complaints to stderr. Exit codes of `run`: 0 every case that ran is good, or a
MISMATCH listed as a known gap; 1 another MISMATCH, ERROR, NOT_RUN or a listed case that passes (WITHIN under --strict,
UNSUPPORTED under --require); 2 a usage error, nothing was run; 3 every case was UNSUPPORTED.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import io
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import commands, journal
from equiv.cache import cache_dir
from equiv.device import device
from equiv.errors import DeviceError, EquivError, UnsupportedError
from equiv.plan import DEFAULT_DEVICE, Settings, cases, folders, known_gaps, refuse_taken
from equiv.report import document, environment, text
from equiv.report.outcome import exit_code
from equiv.terminal import visible
from equiv.workers import Task, default_jobs, run_plan, run_task

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import FrameType

    from equiv.records import Verdict


STREAM_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EIO)
"""What writing to a pipe, a file on a full disk or a terminal that is gone ends with."""

LONGEST = 1e6
"""Seconds that a case can be given at most; a wait for its worker cannot be longer than 2^31 ms."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; argparse itself exits with 2 for a line it cannot read."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a report quotes what parties say, in whatever characters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = options.command(options)
        if sys.stdout is not None:  # None: whoever started us closed it, and wants the exit code only
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in STREAM_ERRORS or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it cannot take what it still holds
        if not isinstance(error, BrokenPipeError):  # that is `head` or a pager, which has seen enough
            print(f"equiv: standard output: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("equiv: interrupted", file=sys.stderr)
        return 130
    except EquivError as error:
        print(f"equiv: {visible(str(error))}", file=sys.stderr)
        return error.exit_code
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equiv", description="Do two kernels compute the same numbers? Bit for bit, GPU or not."
    )
    commands_ = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands_.add_parser("list", help="pairs, their axes, contracts and cases")
    _selecting(listing)
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(command=commands.list_pairs)

    run = commands_.add_parser("run", help="verify cases")
    _selecting(run)
    run.add_argument(
        "--device",
        action="append",
        metavar="D",
        help=f"emulated:sm_90a, emulated:sm_100a, cuda:0 (repeatable, default {DEFAULT_DEVICE})",
    )
    run.add_argument(
        "--seed",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="also run each case with this seed (repeatable)",
    )
    run.add_argument("--strict", action="store_true", help="WITHIN fails")
    run.add_argument("--require", action="store_true", help="UNSUPPORTED fails")
    run.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    run.add_argument(
        "--journal", type=Path, metavar="PATH", help="where to write the journal (default runs/<time>.jsonl)"
    )
    run.add_argument("--check", choices=("race",), default="", help="race: unordered accesses to shared memory (slow)")
    run.add_argument(
        "--record",
        default="",
        metavar="DIR",
        help="keep launch records below DIR, which must not hold them yet",
    )
    run.add_argument(
        "-j", "--jobs", type=_positive, default=default_jobs(), metavar="N", help="worker processes (default: CPUs)"
    )
    run.add_argument(
        "--timeout", type=_seconds, default=600.0, metavar="S", help="seconds a case may take (default 600)"
    )
    run.add_argument(
        "--in-process", action="store_true", help="no workers: one case after the other in this process, for debuggers"
    )
    run.set_defaults(command=_run)

    rounding = commands_.add_parser("rounding", help="where a pair rounds, and in which order each party adds")
    rounding.add_argument("pair", metavar="PAIR")
    rounding.add_argument("--markdown", action="store_true", help="the ledger as a table, with each party's variants")
    rounding.set_defaults(command=commands.rounding)

    order = commands_.add_parser("order", help="the orders in which a pair's parties add, traced from what they launch")
    order.add_argument("selector", metavar="PAIR | PAIR::CASE", help="of a pair its smallest case is traced")
    order.add_argument(
        "--device", action="append", default=[], metavar="D", help="emulated:sm_90a, emulated:sm_100a (default: both)"
    )
    order.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")
    order.set_defaults(command=commands.order)

    explain = commands_.add_parser(
        "explain", help="the one change of a row, an order or an input under which a model gives the bits found"
    )
    explain.add_argument("selector", metavar="PAIR::CASE")
    explain.add_argument("--device", default=DEFAULT_DEVICE, metavar="D", help=f"default {DEFAULT_DEVICE}")
    explain.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")
    explain.set_defaults(command=commands.explain)

    doctor = commands_.add_parser("doctor", help="what works on this machine, and why the rest does not")
    doctor.add_argument(
        "--numerics", action="store_true", help="check every model of an instruction instead; takes minutes"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(command=commands.doctor)

    bench = commands_.add_parser("bench", help="how fast the parts are on this machine, one core")
    bench.add_argument(
        "subject",
        choices=("numerics", "emulator"),
        help="numerics: the C twins of instructions; emulator: kernels, Triton's interpreter beside it, set-up",
    )
    bench.add_argument("--json", action="store_true", help="as JSON")
    bench.set_defaults(command=commands.bench)

    emulator = commands_.add_parser("emulator", help="what the emulator knows")
    about = emulator.add_subparsers(required=True, metavar="SUBJECT")
    opcodes = about.add_parser("opcodes", help="the instruction table: syntax, operands, architectures")
    opcodes.add_argument("pattern", nargs="?", default="", metavar="PATTERN", help="a part of the syntax, or an opcode")
    opcodes.add_argument("--arch", choices=("sm_90a", "sm_100a"), help="what this architecture has (default: both)")
    opcodes.add_argument("--json", action="store_true", help="as JSON")
    opcodes.set_defaults(command=commands.opcodes)

    replay = commands_.add_parser("replay", help="run launch records again and compare every byte")
    replay.add_argument("directory", type=Path, metavar="DIR")
    replay.add_argument("--device", default=DEFAULT_DEVICE, metavar="D")
    replay.add_argument(
        "--strict",
        action="store_true",
        help="skipped launches (of another architecture, or that failed when recorded) fail; else they only count",
    )
    replay.add_argument(
        "--timeout", type=_seconds, metavar="S", help="give up and exit with 1 after S seconds (default: never)"
    )
    replay.set_defaults(command=commands.replay)
    return parser


def _selecting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("selectors", nargs="*", metavar="PAIR | PAIR::CASE", help="what to take (default: everything)")
    parser.add_argument("--suite", action="append", default=[], metavar="S", help="only cases of suite S (repeatable)")
    parser.add_argument(
        "--cases", type=Path, metavar="DIR", help="folder of case files (default ./cases, else those of the package)"
    )


def _positive(number: str) -> int:
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return int(number)


def _seconds(number: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(number) <= LONGEST:
            return float(number)
    raise argparse.ArgumentTypeError(f"{number} is no number of seconds above 0, {LONGEST:g} at most")


def _run(options: argparse.Namespace) -> int:
    """`equiv run`: plan, journal, verdicts, report."""
    devices = tuple(dict.fromkeys(options.device or [DEFAULT_DEVICE]))
    folder = f" --cases {shlex.quote(str(options.cases))}" if options.cases else ""
    wanted = cases(options.cases, options.selectors, options.suite)
    gaps = known_gaps(folders(options.cases, wanted))
    settings = Settings(devices, tuple(options.seed), options.record, options.check, folder, gaps)
    tasks = [task for case in wanted for task in settings.tasks(case)]
    for name in devices:
        with contextlib.suppress(UnsupportedError, DeviceError):  # verdicts; a name that means nothing is a usage error
            device(name, check=options.check or None)
    cache_dir()  # every emulated device needs it: said once, and not as an ERROR of each case
    refuse_taken(options.record, tasks)
    versions = environment.versions()
    path = options.journal or journal.default_path()
    remarks = environment.basis(devices)
    with journal.Journal(path, fresh=True) as book:
        book.plan([task.planned for task in tasks], versions)
        try:
            with _ended_politely(), contextlib.closing(_verdicts(tasks, options)) as found:
                for done, verdict in enumerate(found, 1):
                    book.verdict(verdict)
                    _progress(done, len(tasks), verdict)
        except KeyboardInterrupt:
            remarks.append("interrupted: the cases that were not reached are NOT_RUN")
    run = journal.read(path)
    remarks += [f"journal: {run.torn}"] if run.torn else []
    verdicts = run.verdicts
    if options.json:
        print(document.render(verdicts, versions, remarks), end="")
    else:
        print(text.render(verdicts, versions, [*remarks, f"journal {path}"]), end="")
    return exit_code(verdicts, strict=options.strict, require=options.require)


def _verdicts(tasks: Sequence[Task], options: argparse.Namespace) -> Generator[Verdict, None, None]:
    if options.in_process:
        for task in tasks:
            with _no_stdout() if options.json and sys.stdout is not None else contextlib.nullcontext():
                verdict = run_task(task)
            yield verdict
    else:
        yield from run_plan(tasks, options.jobs, options.timeout)


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
def _ended_politely() -> Iterator[None]:
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


def _progress(done: int, total: int, verdict: Verdict) -> None:
    """One line that redraws itself, on a terminal only."""
    if not sys.stderr.isatty():
        return
    filled = 30 * done // total
    line = f"[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {verdict.status} {verdict.case} {verdict.device}"
    print(f"\r\x1b[K{line[:118]}", end="\n" if done == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
