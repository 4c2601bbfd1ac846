"""The commands for someone who looks for a cause: `equiv dump`, `compare`, `repro`, `shrink`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import pairs
from equiv.arguments import seconds
from equiv.compare import PARTIES
from equiv.device import device
from equiv.errors import UsageError
from equiv.plan import DEFAULT_DEVICE, cases
from equiv.terminal import visible

if TYPE_CHECKING:
    import argparse

    from equiv.records import Case


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

    repro = commands.add_parser("repro", help="one case in one file that runs anywhere, or the run of such a file")
    repro.add_argument("selector", nargs="?", default="", metavar="PAIR::CASE", help="the case to make a bundle of")
    repro.add_argument("--device", default="", metavar="D", help=f"default {DEFAULT_DEVICE}, or where it was recorded")
    repro.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")
    repro.add_argument("--out", type=Path, metavar="FILE", help="the bundle (default PAIR.CASE.SEED.ARCH.zip)")
    repro.add_argument("--run", type=Path, metavar="FILE", help="run this bundle and compare every byte")
    repro.set_defaults(command=_repro)

    shrinking = commands.add_parser("shrink", help="a smaller case with the same fault, and simpler inputs")
    shrinking.add_argument("selector", metavar="PAIR::CASE")
    _running(shrinking)
    shrinking.add_argument("--budget", type=seconds, default=120.0, metavar="S", help="seconds to look (default 120)")
    shrinking.add_argument("--out", type=Path, metavar="FILE", help="a bundle of it, if its inputs were changed")
    shrinking.set_defaults(command=_shrink)


def _running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default=DEFAULT_DEVICE, metavar="D", help=f"default {DEFAULT_DEVICE}")
    parser.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")


def one_case(options: argparse.Namespace) -> Case:
    """The one case that a selector means."""
    chosen = cases(options.cases, [options.selector], [])
    if len(chosen) != 1:
        raise UsageError(f"{options.selector!r} selects {len(chosen)} cases; wanted one, PAIR::CASE")
    return chosen[0]


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


def _repro(options: argparse.Namespace) -> int:
    """Making one: 0 if it is offered. Running one: 0 if every byte is as recorded, else 1."""
    from equiv.bundle import make, rerun
    from equiv.report import bundled

    if bool(options.run) == bool(options.selector):
        raise UsageError("repro takes a case, PAIR::CASE, or --run FILE")
    if options.run:
        if options.out or options.cases:
            raise UsageError("repro --run takes no --out and no --cases")
        bundle, report = rerun.rerun(options.run, options.device)
        print(visible(bundled.render(bundle)))
        print(visible(str(report)))
        return report.exit_code(strict=True)
    case = one_case(options)
    where = device(options.device or DEFAULT_DEVICE)
    path = options.out or Path(f"{case.pair}.{case.id}.{case.seed}.{where.arch}.zip")
    more = f" --cases {shlex.quote(str(options.cases))}" if options.cases else ""
    again = f"equiv run {case.name} --device {where.name}{more}"
    made = make.make(pairs.get(case.pair), case, where, path, again=again)
    print(visible(bundled.render(made)))
    print(_offered(path))
    return 0


def _offered(path: Path) -> str:
    return f"{path}: {path.stat().st_size} bytes; run it with: equiv repro --run {shlex.quote(str(path))}"


def _shrink(options: argparse.Namespace) -> int:
    """0 if there is a fault, shown as small as it was found; 1 if no party is wrong on the case."""
    from equiv.bundle import make
    from equiv.report import shrunk
    from equiv.shrink import shrink

    case, where = one_case(options), device(options.device)
    pair = pairs.get(case.pair)
    path = options.out or Path(f"{case.pair}.{case.id}-shrunk.{where.arch}.zip")
    if path.exists():
        raise UsageError(f"{path}: is there already: name another file with --out")
    found = shrink(pair, case, where, options.budget)
    if found is None:
        print(f"{case.name} on {where.name}: both parties equal their models: there is no fault to shrink")
        return 1
    print(visible(shrunk.render(found, where.name)))
    if found.changed and where.kind == "emulated":
        small = replace(found.case, id=shrunk.name(found.case))
        make.make(pair, small, where, path, inputs=found.inputs, changed="; ".join(found.changed))
        print(_offered(path))
    return 0
