"""The commands of `equiv` beside `run`: each prints its result to stdout and returns the exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from equiv import kernels, pairs
from equiv.errors import UnsupportedError, UsageError
from equiv.plan import cases
from equiv.runner import toolchain
from equiv.terminal import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from equiv.pairs import Axis, Pair, Party
    from equiv.records import Case
    from equiv.rounding.declaration import Declaration


Found = TypeVar("Found")


def list_pairs(options: argparse.Namespace) -> int:
    """`equiv list`: the pairs, of each its axes and the contracts of its outputs; of those asked for also the cases."""
    wanted = cases(options.cases, options.selectors, options.suite)
    groups: dict[str, list[Case]] = {}
    for case in wanted:
        groups.setdefault(case.pair, []).append(case)
    found = {name: (pairs.get(name), members) for name, members in groups.items()}
    if options.json:
        data = {name: _pair_data(pair, members) for name, (pair, members) in found.items()}
        for one in kernels.found():
            if one.kernel and one.kernel.pair in data:
                data[one.kernel.pair]["kernels"].append({"name": one.name, "summary": one.kernel.summary})
        print(json.dumps(data, indent=1))
    else:
        whole = bool(options.selectors or options.suite)
        said = ["\n".join(_pair_lines(pair, members, whole=whole)) for pair, members in found.values()]
        said += ["\n".join(lines)] if (lines := list(_kernel_lines(found))) else []
        print(visible("\n\n".join(said)))
        if not whole:
            print("\n`equiv list PAIR` and `equiv list --suite S` name the cases")
    return 0


def opcodes(options: argparse.Namespace) -> int:
    """`equiv emulator opcodes`: the instruction table, all of it or what a pattern selects."""
    from equiv.emulator.isa import listing

    architecture = int(options.arch.strip("sm_a")) if options.arch else 0
    found = listing.rows(options.pattern, architecture)
    print(json.dumps(found, indent=1) if options.json else "\n".join(listing.lines(found)))
    return 0


def _pair_data(pair: Pair, members: Sequence[Case]) -> dict[str, Any]:
    return {
        "summary": pair.summary,
        "axes": {
            axis.name: {"default": axis.default, "values": _values(axis), "meaning": axis.meaning} for axis in pair.axes
        },
        "regimes": {piece: list(known) for piece, known in pair.regimes.items()},
        "outputs": [
            {"name": name, "format": format_, "contract": contract, "promise": promise}
            for name, format_, contract, promise in _contracts(pair, members)
        ],
        "kernels": [],
        "cases": [
            {"name": case.name, "suites": list(case.suites), "seed": case.seed, "why": case.why, "origin": case.origin}
            for case in members
        ],
    }


def _pair_lines(pair: Pair, members: Sequence[Case], *, whole: bool) -> Iterator[str]:
    yield f"{pair.name}: {pair.summary}"
    yield "  axes"
    for axis in pair.axes:
        yield f"    {axis.name} = {axis.default}  [{_values(axis)}]  {axis.meaning}"
    if whole:
        yield "  regimes"
        yield from (f"    {piece}: {', '.join(known)}" for piece, known in pair.regimes.items())
    yield "  outputs"
    for name, format_, contract, promise in _contracts(pair, members):
        yield f"    {name} ({format_}): {contract}: {promise}"
    suites = Counter(suite for case in members for suite in case.suites)
    yield f"  {len(members)} case(s): " + ", ".join(f"{count} in {suite}" for suite, count in suites.items())
    width = max(len(case.name) for case in members)
    for case in members if whole else ():
        yield f"    {case.name:{width}}  {case.why}"


def _kernel_lines(shown: Collection[str]) -> Iterator[str]:
    """Other people's kernels for the pairs that are shown, and entry points that give none."""
    lines = []
    for one in kernels.found():
        if one.kernel is None:
            lines.append(f"  not loaded: {one.problem}")
        elif one.kernel.pair in shown:
            lines.append(f"  {one.kernel.pair}{pairs.JOINT}{one.name}: {one.kernel.summary}")
            lines += [f"    only {axis} = {', '.join(map(str, some))}" for axis, some in one.kernel.supports.items()]
            lines += [f"    {output} is not compared: {why}" for output, why in one.kernel.omits.items()]
    if lines:
        yield "kernels of other packages, which run as PAIR+KERNEL"
        yield from lines


def _values(axis: Axis) -> str:
    if axis.choices:
        return ", ".join(map(str, axis.choices))
    low, high = ("any" if bound is None else f"{bound:g}" for bound in (axis.low, axis.high))
    return f"{low}..{high}"


def _contracts(pair: Pair, members: Sequence[Case]) -> list[tuple[str, str, str, str]]:
    """What is promised of each logical output, over all these cases, in the order of their first appearance."""
    specs = [spec for case in members for spec in pair.output_specs(case)]
    return list(dict.fromkeys((spec.name, spec.format, spec.contract, spec.promise) for spec in specs))


def doctor(options: argparse.Namespace) -> int:
    """`equiv doctor`: what works here; 1 if something that equiv needs is broken."""
    from equiv.doctor import examine, render

    if options.numerics:
        return _numerics(as_json=options.json)
    findings = list(examine())
    print(json.dumps([asdict(finding) for finding in findings], indent=1) if options.json else render(findings))
    return int(any(finding.state == "broken" for finding in findings))


def _numerics(*, as_json: bool) -> int:
    """`equiv doctor --numerics`: a line for each check as soon as it is done; 1 if one found a mismatch."""
    from equiv.rounding import checks

    outcomes = []
    start = time.perf_counter()
    for outcome in checks.run():
        outcomes.append(outcome)
        if not as_json:
            print(outcome, flush=True)
    if as_json:
        print(json.dumps([{**asdict(outcome), "ok": outcome.ok} for outcome in outcomes], indent=1))
    else:
        checked, wrong = sum(one.checked for one in outcomes), sum(one.mismatches for one in outcomes)
        seconds = time.perf_counter() - start
        print(f"{len(outcomes)} checks, {checked:,} values compared, {wrong:,} mismatches, {seconds:.0f} s")
    return int(not all(outcome.ok for outcome in outcomes))


def bench(options: argparse.Namespace) -> int:
    """`equiv bench SUBJECT`: a line for each figure as soon as it is measured."""
    from equiv import bench as benches

    figures = []
    for figure in getattr(benches, options.subject)():
        figures.append(figure)
        if not options.json:
            print(figure, flush=True)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    return 0


def rounding(options: argparse.Namespace) -> int:
    """`equiv rounding PAIR`: the ledger's rows, and what each party declares as compiled here, by architecture."""
    from equiv.report import rounding as report

    pair = pairs.get(options.pair)
    if pair.ledger is None:
        raise UsageError(f"pair {pair.name!r} brings no rounding ledger")
    if options.markdown:
        print(report.markdown(pair.ledger(), _declared(pair)))
        return 0
    print(report.ledger(pair.ledger()))
    groups: dict[str, list[str]] = {}
    for name, party in (("oracle", pair.oracle), ("candidate", pair.candidate)):
        try:
            versions = toolchain(party)
        except UnsupportedError as error:
            print(f"\n{name}: {error}")
            continue
        compiled = ", ".join(f"{package} {version}" for package, version in versions.items())
        for form, arch, declared in _forms(pair, name, party, versions):
            said = report.declaration(declared)
            groups.setdefault(f"{name}{form and f', {form}'} ({compiled})\n{said}", []).append(arch)
    for said, architectures in groups.items():
        print(f"\n{' and '.join(architectures)}: {said}")
    return 0


def _declared(pair: Pair) -> dict[str, dict[str, Declaration | None]]:
    """Party -> form and architecture -> what it declares as compiled here; None where that is not known."""
    found: dict[str, dict[str, Declaration | None]] = {}
    for name, party in (("oracle", pair.oracle), ("candidate", pair.candidate)):
        try:
            versions = toolchain(party)
        except UnsupportedError:
            forms = pair.forms.get(name, ("",))
            found[name] = dict.fromkeys(f"{form} {arch}".strip() for form in forms for arch in party.architectures)
        else:
            served = _forms(pair, name, party, versions)
            found[name] = {f"{form} {arch}".strip(): declared for form, arch, declared in served}
    return found


def _forms(
    pair: Pair, name: str, party: Party, versions: Mapping[str, str]
) -> Iterator[tuple[str, str, Declaration | None]]:
    """(form, architecture, what is declared) of a party; left out is a form that an architecture alone lacks.

    That is one which another architecture has declared, while other forms are declared for this one.
    """
    forms, archs = pair.forms.get(name, ("",)), party.architectures
    declared = {(form, arch): pair.declaration(name, versions, arch, form) for form in forms for arch in archs}
    for (form, arch), one in declared.items():
        elsewhere = any(declared[form, other] for other in archs)
        others = any(declared[other, arch] for other in forms)
        if one or not (elsewhere and others):
            yield form, arch, one


def explain(options: argparse.Namespace) -> int:
    """`equiv explain PAIR::CASE`: 0 if every wrong bit has a reason or none is wrong, else 1."""
    from equiv import explain as explaining
    from equiv.device import device
    from equiv.report.explanation import render
    from equiv.trail import command as trail

    chosen = cases(options.cases, [options.selector], [])
    if len(chosen) != 1:
        raise UsageError(f"{options.selector!r} selects {len(chosen)} cases; explain takes one, PAIR::CASE")
    (case,) = chosen
    if trail.wanted(options):
        return trail.run(options, pairs.get(case.pair), case)
    if options.trace:
        trail.prepare(options)
    found = explaining.explain(pairs.get(case.pair), case, device(options.device))
    print(visible(render(case, options.device, found)))
    if options.trace:
        trail.trace(options, pairs.get(case.pair), case, found)
    return int(not all(one.explained for one in found))


def order(options: argparse.Namespace) -> int:
    """`equiv order PAIR`: every declared reduction as traced from what runs; 1 if one is not as declared.

    With `--json` the orders as a file to declare with: 1 if one was not found. What no trace can show is neither.
    """
    from equiv import order as tracing
    from equiv.report import order as report
    from equiv.rounding import order_file

    pair = pairs.get(options.selector.partition("::")[0])
    case = tracing.smallest(pair, cases(options.cases, [options.selector], []))
    if pair.terms is None:
        if options.json:
            raise UsageError(f"pair {pair.name!r} describes no reduction (`terms`), and a file needs their names")
        seen, missing = _traced(options.device, partial(tracing.discover, pair), case)
        print(visible(report.discovered(case.name, seen, missing)))
        return 3 if missing else 0
    found, missing = _traced(options.device, partial(tracing.trace, pair), case)
    if options.json:
        lost = [one for one in found if one.order is None]
        words = [f"{one.reduction} of {one.party} on {one.arch}: {one.problem or one.untraced}" for one in lost]
        for said in (*words, *missing):
            print(f"equiv: not traced: {visible(said)}", file=sys.stderr)
        print(order_file.render(tracing.as_declared(found)), end="")
        return 1 if any(one.problem for one in lost) else 3 if missing else 0
    forms = tracing.other_forms(pair, cases(options.cases, [pair.name], []), found)
    print(visible(report.render(case.name, found, missing, forms)))
    return 1 if any(one.problem for one in found) else 3 if missing else 0


def _traced(
    devices: Sequence[str], trace: Callable[[str, Case, str], tuple[Found, ...]], case: Case
) -> tuple[list[Found], list[str]]:
    """What tracing both parties on each device found, and in words what could not be traced."""
    from equiv.device import EMULATED

    found: list[Found] = []
    missing: list[str] = []
    for device in devices or [f"emulated:{arch}" for arch in EMULATED]:
        arch = device.removeprefix("emulated:")
        if arch not in EMULATED:
            known = ", ".join(f"emulated:{one}" for one in EMULATED)
            raise UsageError(f"device {device!r} cannot be traced; known: {known}")
        for party in ("oracle", "candidate"):
            try:
                found += trace(party, case, arch)
            except UnsupportedError as error:
                missing.append(f"{party} on {arch}: {error}")
    return found, missing


def replay(options: argparse.Namespace) -> int:
    """`equiv replay DIR`: runs launch records again; 0 if all bytes are as recorded, 1 if not, or if nothing ran.

    What was skipped is counted, and under --strict makes it 1.
    """
    from equiv.emulator.replay import replay_directory

    with _at_most(options.timeout, f"replay of {options.directory}"):
        report = replay_directory(options.directory, options.device)
    print(visible(str(report)))
    return report.exit_code(strict=options.strict)


@contextlib.contextmanager
def _at_most(seconds: float | None, what: str) -> Iterator[None]:
    """Ends this process with 1 if the block takes longer; a launch in the emulator hears no signal."""

    def give_up() -> None:
        print(f"equiv: {visible(what)}: not done after {seconds:g} s", file=sys.stderr, flush=True)
        os._exit(1)

    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
