"""Two dumps side by side: the same cases on two machines, devices or versions, party by party, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from equiv import casefile, pairs, stored
from equiv.compare import PARTIES, compare_bits
from equiv.rounding.declaration import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from equiv.dump import Dumped, DumpFolder
    from equiv.pairs import Pair
    from equiv.records import Bits, Case, Difference


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found about one case.

    Attributes:
        case, seed: which one.
        places: `emulated:sm_90a against cuda:0`, or "" where one dump lacks the case.
        problems: why something could not be compared, or differs beside the outputs.
        differences: (party, how its output differs).
        outputs, elements: compared, equal or not.
        versions: what the two were made with, where that differs.
        declared: what a party that differs declares otherwise in B than in A.
    """

    case: str
    seed: int
    places: str = ""
    problems: tuple[str, ...] = ()
    differences: tuple[tuple[str, Difference], ...] = ()
    outputs: int = 0
    elements: int = 0
    versions: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Everything was there, and every bit the same."""
        return not self.problems and not self.differences and self.outputs > 0


def compare(left: DumpFolder, right: DumpFolder) -> Iterator[Compared]:
    """Compares all cases of two dumps, one after the other, in the order of their names.

    Raises:
        UsageError: a folder holds no dump. RecordError: one is damaged.
    """
    found = left.files(), right.files()
    for name, seed in sorted({*found[0], *found[1]}):
        here = [files.get((name, seed)) for files in found]
        if here[0] and here[1]:
            yield of(left.load(here[0]), right.load(here[1]))
            continue
        has, lacks = ("A", "B") if here[0] else ("B", "A")
        others = sorted(other for case, other in found[lacks == "B"] if case == name)
        seeds = f"; {lacks} has it with seed {', '.join(map(str, others))}" if others else ""
        yield Compared(name, seed, problems=(f"only in {has}{seeds}",))


def of(left: Dumped, right: Dumped) -> Compared:
    """Compares one case."""
    problems = [*_unlike(left, right)]
    found, outputs, elements = [], 0, 0
    comparable = not problems
    known = cache(partial(_Known.of, left))
    for party in PARTIES:
        ours, theirs = left.parties[party], right.parties[party]
        stops = [(where, one.stopped) for where, one in (("A", ours), ("B", theirs)) if one.stopped]
        problems += [f"{party}: stopped in {where}: {why}" for where, why in stops]
        if ours.faults != theirs.faults:
            said = [f"{where}: {'; '.join(one.faults) or 'none'}" for where, one in (("A", ours), ("B", theirs))]
            problems.append(f"{party}: other memory faults, {', '.join(said)}")
        for name, spec in left.specs.items() if comparable and not stops else ():
            if spec.contract == "candidate" and party != "candidate":
                continue
            bits, other = ours.outputs[name], theirs.outputs[name]
            if bits.shape != other.shape:
                problems.append(f"{party}: {name} has shape {bits.shape} in A, {other.shape} in B")
                continue
            mask = left.undefined.get(name)
            excluded = None if mask is None else mask.astype(np.bool_)
            outputs, elements = outputs + 1, elements + bits.size - (0 if excluded is None else int(excluded.sum()))
            if np.array_equal(bits, other):
                continue
            pair = known()
            words = pair.words(name) if pair else {}
            place, shared = words.get("place"), words.get("shared")
            difference = compare_bits(spec, "A", bits, "B", other, excluded=excluded, place=place, shared=shared)
            if difference is not None:
                found.append((party, difference))
    return Compared(
        left.case.name,
        left.case.seed,
        f"{left.device} against {right.device}",
        tuple(problems),
        tuple(found),
        outputs,
        elements,
        tuple(_versions(left, right)),
        tuple(_declared(known, [party for party, _ in found], left, right)),
    )


def _declared(known: Callable[[], _Known | None], parties: Iterable[str], left: Dumped, right: Dumped) -> Iterator[str]:
    for party in dict.fromkeys(parties):
        if pair := known():
            yield from (f"{party}: {said}" for said in pair.declared(party, left, right))


def _unlike(left: Dumped, right: Dumped) -> Iterator[str]:
    """Why two dumps of a name are not the same case."""
    for what in ("axes", "regimes"):
        ours, theirs = getattr(left.case, what), getattr(right.case, what)
        for name in sorted({*ours, *theirs}):
            if name not in ours or name not in theirs or ours[name] != theirs[name]:
                yield f"{what}.{name} is {ours.get(name, 'absent')} in A, {theirs.get(name, 'absent')} in B"
    other = [name for name in {**left.inputs, **right.inputs} if left.inputs.get(name) != right.inputs.get(name)]
    if other:
        yield f"other inputs in A and B, so outputs are not compared: {', '.join(other)}"
    for name in {**left.specs, **right.specs}:
        if name not in left.specs or name not in right.specs:
            yield f"output {name} is only in {'A' if name in left.specs else 'B'}"
        elif (left.specs[name].format, left.specs[name].dims) != (right.specs[name].format, right.specs[name].dims):
            yield f"output {name} has another format or other dimensions in A and B"
        elif not _same(left.undefined.get(name), right.undefined.get(name)):
            yield f"output {name}: other elements are undefined in A and B"


def _same(left: npt.NDArray[np.unsignedinteger] | None, right: npt.NDArray[np.unsignedinteger] | None) -> bool:
    return left is right if left is None or right is None else np.array_equal(left, right)


def _versions(left: Dumped, right: Dumped) -> Iterator[str]:
    for name in sorted({*left.environment, *right.environment}):
        ours, theirs = (one.environment.get(name, "absent") for one in (left, right))
        if ours != theirs:
            yield f"{name} {ours} in A, {theirs} in B"


@dataclass(frozen=True, slots=True)
class _Known:
    """The pair of a dump, where it is here and generates the inputs that were dumped."""

    pair: Pair
    case: Case
    inputs: Mapping[str, Bits]

    @staticmethod
    def of(dumped: Dumped) -> _Known | None:
        """It, or None; nothing that a dump says reaches a pair that would not take it from a case file."""
        case = dumped.case
        pair = pairs.get(case.pair) if pairs.known(case.pair) else None
        if pair is None or {axis.name for axis in pair.axes} != set(case.axes) or casefile.problems(case, pair):
            return None
        inputs = pair.inputs(case)
        same = {name: stored.digest(bits) for name, bits in inputs.items()} == dict(dumped.inputs)
        return _Known(pair, case, inputs) if same else None

    def words(self, name: str) -> dict[str, Callable[..., str]]:
        """The pair's words for places of an output, as `compare_bits` takes them."""
        found = {"place": self.pair.place, "shared": self.pair.shared}
        return {key: partial(function, self.case, self.inputs, name) for key, function in found.items() if function}

    def declared(self, party: str, left: Dumped, right: Dumped) -> tuple[str, ...]:
        """What a party declares differently as compiled there and there; nothing if one is not known."""
        said = [self.pair.declared(party, one.parties[party].toolchain, one.arch, self.case) for one in (left, right)]
        if None in said:
            return ()
        ours, theirs = (replace(one, party=where) for one, where in zip(said, ("A", "B"), strict=True))
        return differences(ours, theirs, self.pair.ledger() if self.pair.ledger else None)
