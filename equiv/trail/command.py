"""`equiv explain PAIR::CASE --against WAY`: a party played in two ways, or in two versions, down to an instruction."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv.device import EMULATED
from equiv.errors import UsageError
from equiv.terminal import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from equiv.explain import Explanation
    from equiv.mutate.scene import Scene
    from equiv.pairs import Pair
    from equiv.records import Case
    from equiv.trail.played import Played

PARTIES = ("candidate", "oracle")
WAYS = "late, shuffled[:SEED], emulated:ARCH, MODULE:FUNCTION (another version of the party), FILE.ptx (of its kernel)"


def add_options(explain: Any) -> None:  # noqa: ANN401
    """What `explain` takes to go down to instructions."""
    explain.add_argument(
        "--against",
        metavar="WAY",
        help=f"play one party in two ways and find the first instruction that departs: {WAYS}",
    )
    explain.add_argument(
        "--trace", action="store_true", help="also go back from a wrong element to the instruction that departs"
    )
    explain.add_argument("--party", choices=PARTIES, default="candidate", help="of --against (default candidate)")
    explain.add_argument("--output", metavar="NAME", help="the output to begin with (default the first that differs)")
    explain.add_argument("--at", metavar="I,J,...", help="the element of it (default the first that differs)")


def wanted(options: argparse.Namespace) -> bool:
    """Whether the options ask for instructions."""
    if options.against is None and not options.trace and (options.output or options.at):
        raise UsageError("--output and --at say where --against or --trace begin")
    if options.against is not None and options.trace:
        raise UsageError("--against compares two plays, --trace one with its model: not both at once")
    if options.at and not options.output:
        raise UsageError("--at is an element of --output, which is missing")
    return options.against is not None


def run(options: argparse.Namespace, pair: Pair, case: Case) -> int:
    """0 if the two ways leave the same bits, else 1; of `--output` if that is given: others are not compared."""
    from equiv.report.trail import between
    from equiv.trail.between import departure, element

    prepare(options)
    arch, index = architecture(options.device), element_index(options.at)
    one, other = plays(pair, case, options.party, arch, options.against)
    chosen = element(one, other, options.output, index)
    found = None if chosen is None else departure(one, other, *chosen)
    print(visible(between(case, options.party, one, other, found, output=options.output)))
    return int(found is not None)


def prepare(options: argparse.Namespace) -> None:
    """Before anything is compiled: PTX shall say which line of the kernel it is from.

    Raises:
        UsageError: the device shows no instructions, or the element is none.
    """
    architecture(options.device)
    element_index(options.at)
    os.environ.setdefault("CUTE_DSL_LINEINFO", "1")


def trace(options: argparse.Namespace, pair: Pair, case: Case, found: Sequence[Explanation]) -> None:
    """Prints where a wrong element of each party that differs from its model comes from."""
    from equiv.mutate.scene import record
    from equiv.report.trail import origin as rendered
    from equiv.runner import toolchain
    from equiv.trail.stage import Model
    from equiv.trail.why import origin

    arch, index = architecture(options.device), element_index(options.at)
    for one in found:
        scene = record(pair, case, arch, one.party, sound=False)
        declared = pair.declared(one.party, toolchain(getattr(pair, one.party)), arch, case)
        assert pair.ledger is not None  # else nothing would have been found
        model = Model(pair, case, scene.inputs, declared, pair.ledger())
        print(visible(rendered(scene, one.party, origin(scene, model, one, options.output, index))))
        scene.close()


def architecture(device: str) -> str:
    """The architecture of an emulated device.

    Raises:
        UsageError: another device.
    """
    arch = device.removeprefix("emulated:")
    if arch not in EMULATED or arch == device:
        known = ", ".join(f"emulated:{one}" for one in EMULATED)
        raise UsageError(f"device {device!r} does not show its instructions; known: {known}")
    return arch


def element_index(text: str | None) -> tuple[int, ...] | None:
    """`3,0,17` as an index.

    Raises:
        UsageError: it is none.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--at {text!r} is no index such as 3,0,17") from error


def plays(pair: Pair, case: Case, party: str, arch: str, against: str) -> tuple[Played, Played]:
    """A party played as it comes, and in the way asked for.

    Raises:
        UsageError: no such way, or the other version cannot be loaded.
        UnsupportedError, DeviceError: it cannot be played.
    """
    from equiv.mutate.scene import record
    from equiv.trail.played import Played

    kind, _, rest = against.partition(":")
    how: dict[str, Any] | None = None
    if against == "late":
        how = {"completion": "late"}
    elif kind == "shuffled" and (not rest or rest.isdecimal()):
        how = {"seed": int(rest or 1)}
    elif kind in {"late", "shuffled"} or (not rest and not against.endswith(".ptx")):
        raise UsageError(f"--against {against!r} is no way to play a case; known: {WAYS}")
    version, theirs = pair, arch
    if how is None and not against.endswith(".ptx"):  # before anything is played
        if kind == "emulated":
            theirs = architecture(against)
        else:
            version = _version(pair, party, against)
    scene = record(pair, case, arch, party, sound=False)
    one = Played(scene, programs(scene), f"emulated:{arch}", {})
    if how is not None:
        return one, Played(scene, one.programs, against, how)
    if against.endswith(".ptx"):
        return one, Played(scene, _replaced(one, Path(against)), against, {})
    other = record(version, case, theirs, party, sound=False)
    return one, Played(other, programs(other), against, {})


def _version(pair: Pair, party: str, entry: str) -> Pair:
    """The pair with another version of a party, MODULE:FUNCTION.

    Raises:
        UsageError: it cannot be loaded.
    """
    version = replace(pair, **{party: replace(getattr(pair, party), entry=entry)})
    try:
        getattr(version, party).load()
    except (Exception, SystemExit) as error:  # somebody's module: whatever it raises, this is what is wrong with it
        raise UsageError(f"--against {entry}: cannot be loaded: {type(error).__name__}: {error}") from error
    return version


def programs(scene: Scene) -> dict[tuple[str, str], Any]:
    """What the launches of a scene execute."""
    from equiv.emulator.store import shared_store
    from equiv.mutate.mutants import Target

    return {key: Target(shared_store().get(key[0]), key[1]).program for key in sorted(scene.kernels)}


def _replaced(one: Played, path: Path) -> dict[tuple[str, str], Any]:
    """The programs of a play, those of the kernels of a PTX file taken from there."""
    from equiv.emulator import contraction, engine, ptx_parser

    try:
        module = ptx_parser.parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--against {path}: cannot be read: {error}") from error
    known = [key for key in one.programs if key[1] in module.kernels]
    if not known:
        wanted_ = ", ".join(sorted(name for _, name in one.programs))
        raise UsageError(f"--against {path}: has the kernels {', '.join(module.kernels)}; launched are {wanted_}")
    arch = next(iter(one.programs.values())).arch
    fresh = {key: engine.load(contraction.contract_all(module, key[1]), key[1], arch) for key in known}
    return {**one.programs, **fresh}
