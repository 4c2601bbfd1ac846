"""The command `equiv`: its subcommands and the exit code of each line.

Results go to stdout, progress and complaints to stderr. Exit codes of `run`: 0 every case that ran is good, or a
MISMATCH listed as a known gap; 1 another MISMATCH, ERROR, NOT_RUN or a listed case that passes (WITHIN under --strict,
UNSUPPORTED under --require); 2 a usage error, nothing was run; 3 every case was UNSUPPORTED.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import budget, commands, debugging, new_pair, reporting, running, soak
from equiv.arguments import seconds
from equiv.determinism import command as determinism
from equiv.errors import EquivError
from equiv.mutate import command as mutating
from equiv.plan import DEFAULT_DEVICE
from equiv.report import environment
from equiv.terminal import visible
from equiv.trail import command as trail

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAM_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EIO)
"""What writing to a pipe, a file on a full disk or a terminal that is gone ends with."""


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


class _Versions(argparse.Action):
    """Prints the versions that decide a run's bits, looked up only if asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Ends the program."""
        print(", ".join(f"{name} {found}" for name, found in environment.versions().items()))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equiv", description="Do two kernels compute the same numbers? Bit for bit, GPU or not."
    )
    parser.add_argument("--version", action=_Versions, nargs=0, help="what is installed, as every journal has it")
    commands_ = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands_.add_parser("list", help="pairs, their axes, contracts and cases")
    _selecting(listing)
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(command=commands.list_pairs)

    running.add_parser(commands_, _selecting)
    soak.add_parser(commands_)
    budget.add_parser(commands_)
    new_pair.add_parser(commands_)
    determinism.add_parser(commands_, _selecting)
    reporting.add_parser(commands_)
    debugging.add_parsers(commands_)
    mutating.add_parser(commands_)

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
    order.add_argument("--json", action="store_true", help="as the file of a declaration (equiv.rounding.order_file)")
    order.set_defaults(command=commands.order)

    explain = commands_.add_parser(
        "explain", help="the one change of a row, an order or an input under which a model gives the bits found"
    )
    explain.add_argument("selector", metavar="PAIR::CASE")
    explain.add_argument("--device", default=DEFAULT_DEVICE, metavar="D", help=f"default {DEFAULT_DEVICE}")
    explain.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")
    trail.add_options(explain)
    explain.set_defaults(command=commands.explain)

    doctor = commands_.add_parser("doctor", help="what works on this machine, and why the rest does not")
    doctor.add_argument(
        "--numerics", action="store_true", help="check every model of an instruction instead; takes minutes"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(command=commands.doctor)

    bench = commands_.add_parser("bench", help="how fast the parts are here: one core, or a GPU")
    bench.add_argument(
        "subject",
        choices=("numerics", "emulator", "kda", "dsa_front"),
        help="numerics: the C twins of instructions; emulator: kernels, Triton's interpreter beside it, set-up; "
        "kda, dsa_front: fused kernels beside the stock chains on a GPU",
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
        "--timeout", type=seconds, metavar="S", help="give up and exit with 1 after S seconds (default: never)"
    )
    replay.set_defaults(command=commands.replay)
    return parser


def _selecting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("selectors", nargs="*", metavar="PAIR | PAIR::CASE", help="what to take (default: everything)")
    parser.add_argument("--suite", action="append", default=[], metavar="S", help="only cases of suite S (repeatable)")
    parser.add_argument(
        "--cases", type=Path, metavar="DIR", help="folder of case files (default ./cases, else those of the package)"
    )


if __name__ == "__main__":
    sys.exit(main())
