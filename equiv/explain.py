"""What a mismatch looks like from inside: the smallest change of the model under which it gives the bits found.

The model of the party that differs is run again with one thing changed: a ledger row computed by another of its steps,
wrongly or not at all, a reduction in another order, an input misread. A change that reproduces every bit is the
explanation; if none does, the best one stays and another is looked for beside it. Where an output is copied or left
alone, its fault is one of place: what the differing places share says which, and an input misread (a slot, a count)
may give these bits too, and those of the computed outputs that follow from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.compare import compare_bits
from equiv.errors import UnsupportedError, UsageError
from equiv.rounding.alternatives import alternatives
from equiv.rounding.scales import remarks
from equiv.runner import run_party, toolchain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from equiv.device import Device
    from equiv.pairs import Pair
    from equiv.records import Bits, Case, Difference, OutputSpec
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger

PARTIES = ("oracle", "candidate")


MOST = 3
"""Changes that one explanation may consist of."""
FEW = 16
"""Wrong elements below which bits that a change gives may be right by chance.

A difference of one ulp is given by chance about one time in three: of 16 of them, 3^-16 is 2e-8, and the changes that
are tried are tens.
"""


@dataclass(frozen=True, slots=True)
class Computation:
    """What a model executes: a declaration's orders and variants, a ledger's steps, inputs and those read otherwise."""

    declaration: Declaration
    ledger: Ledger
    inputs: Mapping[str, Bits]
    changed: Mapping[str, Bits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a model does otherwise: `what` names it (a row id, a reduction, an input), `words` say how."""

    what: str
    words: str
    computation: Computation


@dataclass(frozen=True, slots=True)
class Reading:
    """What some changes together lead to.

    Attributes:
        changes: in words, each as the end of a sentence that begins with "as if".
        left: wrong computed output -> its wrong elements that still differ from what the party left.
        spoilt: elements of computed outputs that were right and are no longer.
        misplaced: wrong copied output -> elements that still differ.
        what: each change's row id, reduction or input, as `Change.what` has it.
    """

    changes: tuple[str, ...]
    left: Mapping[str, int]
    spoilt: int
    misplaced: Mapping[str, int] = field(default_factory=dict)
    what: tuple[str, ...] = ()

    @property
    def remaining(self) -> int:
        """Elements that differ under this change, those that are a matter of place left out."""
        return sum(self.left.values()) + self.spoilt

    @property
    def given(self) -> int:
        """Wrong computed outputs of which every wrong bit is given."""
        return sum(not count for count in self.left.values())

    @property
    def in_part(self) -> bool:
        """Whether every wrong bit is given, but bits that are right would differ: it was done in some places only."""
        return not any(self.left.values()) and self.spoilt > 0

    @property
    def complete(self) -> bool:
        """Whether no element differs under this change."""
        return not self.remaining and not any(self.misplaced.values())


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was found about one party on one case.

    Attributes:
        wrong: output -> how the party differs from its model; empty if it does not.
        placed: wrong outputs whose elements are copied or left alone: these bits are in the wrong place.
        readings: what explains the other outputs, best first: if the first leaves nothing, all that leave nothing;
            else those that explain them in part of their elements, if any.
            Where bits are in the wrong place: what explains these too, or else what explains the others.
        tried: number of models run.
        scales: of pairs of codes and scales that are wrong, which convention fits them, and what they stand for.
    """

    party: str
    wrong: Mapping[str, Difference]
    placed: tuple[str, ...]
    readings: tuple[Reading, ...]
    tried: int
    scales: tuple[str, ...] = ()

    @property
    def explained(self) -> bool:
        """Whether every wrong bit has a reason."""
        first = self.readings[0] if self.readings else None
        return len(self.placed) == len(self.wrong) or bool(first and (not first.remaining or first.in_part))


def explain(pair: Pair, case: Case, device: Device) -> tuple[Explanation, ...]:
    """One explanation for each party that differs from its model, none if both equal theirs.

    Raises:
        UsageError: the pair has no ledger, or nothing is declared for a party as compiled here.
        UnsupportedError: a party cannot run here. PartyError: it failed.
    """
    if pair.ledger is None:
        raise UsageError(f"pair {pair.name!r} brings no rounding ledger: there is nothing to explain a mismatch with")
    inputs = pair.inputs(case)
    found = []
    for party in PARTIES:
        side = run_party(pair, party, case, inputs, device)
        declaration = pair.declared(party, side.toolchain, device.arch, case)
        if declaration is None:
            versions = ", ".join(f"{package} {version}" for package, version in side.toolchain.items())
            raise UsageError(f"{party}: nothing is declared for {versions} on {device.arch}: no model to change")
        sound = Computation(declaration, pair.ledger(), inputs)
        found.append(_Mismatch(pair, case, party, side.outputs, sound).explanation())
    return tuple(one for one in found if one.wrong)


@dataclass
class _Mismatch:
    """One party's outputs beside its model's."""

    pair: Pair
    case: Case
    party: str
    got: Mapping[str, Bits]
    sound: Computation

    def __post_init__(self) -> None:
        self.tried = 0
        self.read: dict[tuple[str, ...], Reading] = {}
        self.placed: tuple[str, ...] = ()
        self.computed: tuple[str, ...] = ()
        self.model = self._run(self.sound)
        self.open = {
            name: np.asarray(mask, dtype=np.bool_)
            for name, mask in self.pair.undefined(self.case, self.sound.inputs).items()
        }
        self.specs = {
            spec.name: spec
            for spec in self.pair.output_specs(self.case)
            if self.party == "candidate" or spec.contract != "candidate"
        }
        self.bad = {name: self._differs(self.model, name) for name in self.specs}

    def explanation(self) -> Explanation:
        """Looks for one change, then for the best second beside the best first, and so on."""
        found = {name: self._difference(spec) for name, spec in self.specs.items()}
        wrong = {name: difference for name, difference in found.items() if difference is not None}
        self.placed = tuple(name for name in wrong if self.specs[name].copied)
        self.computed = tuple(name for name in wrong if name not in self.placed)
        readings = tuple(self._misplaced()) if self.placed else ()
        if self.computed and not readings:
            # What follows from bits in the wrong place is rarely the sum of several changes.
            before, most = sum(wrong[name].count for name in self.computed), 1 if self.placed else MOST
            readings = tuple(self._search(before, most))
            if before >= FEW and (not readings or readings[0].remaining):
                readings = tuple(self._in_part(most)) or readings
        return Explanation(self.party, wrong, self.placed, readings, self.tried, tuple(self._scales()))

    def _scales(self) -> Iterator[str]:
        if self.pair.quantised:
            pairs = self.pair.quantised(self.case, self.sound.inputs, self.sound.declaration)
            yield from remarks(pairs, self.got, self.model)

    def _misplaced(self) -> Iterator[Reading]:
        """Inputs read otherwise under which every wrong bit is where it is."""
        for change in misread(self.pair, self.case, self.sound):
            reading = self._reading(change, (), ())
            if reading.complete:
                yield reading

    def _search(self, before: int, most: int) -> Iterator[Reading]:
        base, made, words = self.sound, list[str](), list[str]()
        helpful: list[Reading] = []
        for _ in range(most):
            tried = [
                (self._reading(change, made, words), change)
                for change in changes(self.pair, self.case, base)
                if change.what not in made
            ]
            tried = sorted((one for one in tried if one[0].remaining < before), key=lambda one: one[0].remaining)
            exact = [reading for reading, _ in tried if not reading.remaining]
            if exact:
                yield from exact
                return
            helpful = [*(reading for reading, _ in tried), *helpful]
            if not tried:
                break
            best, change = tried[0]
            base, before = change.computation, best.remaining
            made.append(change.what)
            words.append(change.words)
        yield from sorted(helpful, key=lambda one: one.remaining)

    def _in_part(self, most: int) -> Iterator[Reading]:
        """Changes that give every wrong bit, those of one more output with each, whatever else they would change."""
        base, made, words, given = self.sound, list[str](), list[str](), 0
        for _ in range(most):
            tried = [
                (self._reading(change, made, words), change)
                for change in changes(self.pair, self.case, base)
                if change.what not in made
            ]
            tried = [one for one in tried if one[0].given > given]
            whole = [reading for reading, _ in tried if reading.in_part]
            if whole or not tried:
                yield from sorted(whole, key=lambda one: one.spoilt)
                return
            best, change = min(tried, key=lambda one: (-one[0].given, one[0].spoilt))
            base, given = change.computation, best.given
            made.append(change.what)
            words.append(change.words)

    def _reading(self, change: Change, made: Sequence[str], words: Sequence[str]) -> Reading:
        """What a change leads to beside those that are made, which are called `words`."""
        key = (*words, change.words)
        if key not in self.read:
            self.read[key] = self._run_reading(change.computation, (*made, change.what), key)
        return self.read[key]

    def _run_reading(self, computation: Computation, what: tuple[str, ...], key: tuple[str, ...]) -> Reading:
        model = self._run(computation)
        now = {name: self._differs(model, name) for name in self.specs}
        left = {name: int((now[name] & self.bad[name]).sum()) for name in self.computed}
        misplaced = {name: int(now[name].sum()) for name in self.placed}
        spoilt = sum(int((now[name] & ~self.bad[name]).sum()) for name in self.specs if name not in misplaced)
        return Reading(key, left, spoilt, misplaced, what)

    def _run(self, computation: Computation) -> dict[str, Bits]:
        self.tried += 1
        pair, how = self.pair, (computation.declaration, computation.ledger)
        if computation.changed and pair.misread:
            return pair.misread(self.case, computation.inputs, computation.changed, *how)
        return pair.model(self.case, {**computation.inputs, **computation.changed}, *how)

    def _difference(self, spec: OutputSpec) -> Difference | None:
        pair, name, inputs = self.pair, spec.name, self.sound.inputs
        return compare_bits(
            spec,
            "model",
            self.model[name],
            self.party,
            self.got[name],
            excluded=self.open.get(name),
            place=pair.place and partial(pair.place, self.case, inputs, name),
            shared=pair.shared and partial(pair.shared, self.case, inputs, name),
        )

    def _differs(self, model: Mapping[str, Bits], name: str) -> npt.NDArray[np.bool_]:
        unequal = np.asarray(model[name] != self.got[name])
        return unequal & ~self.open[name] if name in self.open else unequal


def changes(pair: Pair, case: Case, base: Computation) -> Iterator[Change]:
    """Every change of one row, one order or one input that is known for a pair."""
    for row in base.ledger:
        used = base.declaration.variants.get(row.id, row.names[0])
        for step in (*row.steps, *row.faults):
            if step != used:
                how = "missing" if step == row.off else f"{step}, not {used}" if step in row.steps else step
                ledger = base.ledger.replace(row.id, step)
                yield Change(row.id, f"{row.id} ({row.value}) were {how}", replace(base, ledger=ledger))
    for name, order in sorted(base.declaration.orders.items()):
        known = {order.digest}
        others = [
            (f"as those of {other}", base.declaration.orders[other]) for other in _forms(base.declaration.orders, name)
        ]
        for words, other in (*_declared_orders(pair, name), *others, *alternatives(order)):
            if other.digest in known or other.terms != order.terms or len(other.owner) != len(order.owner):
                continue
            known.add(other.digest)
            declaration = replace(base.declaration, orders={**base.declaration.orders, name: other})
            computation = replace(base, declaration=declaration)
            yield Change(f"order {name}", f"the terms of {name} were added in another order: {words}", computation)
        if not any(node[0] in {"mma", "sum"} for node in order.nodes):
            orders = {**base.declaration.orders, name: replace(order, through="bf16")}
            computation = replace(base, declaration=replace(base.declaration, orders=orders))
            yield Change(f"order {name}", f"every partial sum of {name} were rounded to BF16", computation)
    yield from misread(pair, case, base)


def _forms(known: Iterable[str], name: str) -> Iterator[str]:
    """Other numbers of a numbered reduction: `gate.1` for `gate.0`, which sums the same terms for another mode."""
    stem, _, number = name.rpartition(".")
    for other in known:
        if number.isdigit() and other != name and re.fullmatch(rf"{re.escape(stem)}\.\d+", other):
            yield other


def misread(pair: Pair, case: Case, base: Computation) -> Iterator[Change]:
    """Every change of what is read that is known for a pair."""
    if pair.misreadings:
        for words, changed in pair.misreadings(case, base.inputs):
            yield Change("inputs", words, replace(base, changed={**base.changed, **changed}))


def _declared_orders(pair: Pair, name: str) -> Iterator[tuple[str, Any]]:
    """The orders of a reduction that other parties, forms and architectures declare as installed here."""
    for party in PARTIES:
        implementation = getattr(pair, party)
        try:
            versions = toolchain(implementation)
        except UnsupportedError:
            continue  # it is not installed: there is nothing it could declare
        for form in pair.forms.get(party, ("",)):
            for arch in implementation.architectures:
                declared = pair.declaration(party, versions, arch, form)
                if declared is not None and name in declared.orders:
                    which = f"{party}{form and f' ({form})'} on {arch}"
                    yield f"as the {which} declares", declared.orders[name]
