"""The commands for someone who looks for a cause: `equiv dump`, `equiv compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import pairs
from equiv.compare import PARTIES
from equiv.device import device
from equiv.plan import DEFAULT_DEVICE, cases
from equiv.terminal import visible

if TYPE_CHECKING:
    import argparse


def add_parsers(commands: Any) -> None:  # noqa: ANN401
    """Adds these commands to the others."""
    dumping = commands.add_parser("dump", help="keep what both parties leave behind, to compare it elsewhere")
    dumping.add_argument("selectors", nargs="+", metavar="PAIR | PAIR::CASE", help="what to run")
    dumping.add_argument("--suite", action="append", default=[], metavar="S", help="only cases of suite S (repeatable)")
    _running(dumping)
    dumping.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the dump")
    dumping.set_defaults(command=_dump)

    comparing = commands.add_parser("compare", help="two dumps, bit for bit: 0 all equal, 1 different or missing")
    comparing.add_argument("left", type=Path, metavar="A", help="a folder of `equiv dump`")
    comparing.add_argument("right", type=Path, metavar="B", help="another one: of another machine, device or version")
    comparing.set_defaults(command=_compare)


def _running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default=DEFAULT_DEVICE, metavar="D", help=f"default {DEFAULT_DEVICE}")
    parser.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")


def _dump(options: argparse.Namespace) -> int:
    """0 if both parties left outputs everywhere, 1 if one failed, 3 if nothing could run here."""
    from equiv import dump

    folder = dump.DumpFolder(options.out)
    wanted = cases(options.cases, options.selectors, options.suite)
    for case in wanted:
        folder.vacant(case)
    where = device(options.device)
    stopped = []
    for case in wanted:
        pair = pairs.get(case.pair)
        found = dump.run(pair, case, pair.inputs(case), where)
        folder.save(found)
        for name, left in found.parties.items():
            if left.stopped:
                stopped.append(left)
                print(visible(f"equiv: {case.name}: {name}: {left.stopped}"), file=sys.stderr)
    print(f"{len(wanted)} case(s) of {where.name} in {options.out}, {len(stopped)} part(ies) stopped")
    if len(stopped) == len(wanted) * len(PARTIES) and all(left.unsupported for left in stopped):
        return 3
    return int(any(not left.unsupported for left in stopped))


def _compare(options: argparse.Namespace) -> int:
    """0 if both dumps hold the same cases and every bit is equal, else 1."""
    from equiv.dump import DumpFolder
    from equiv.dump_compare import compare
    from equiv.report import dumped

    found = list(compare(DumpFolder(options.left), DumpFolder(options.right)))
    print(dumped.render(found), end="")
    return int(not all(one.equal for one in found))
