"""The orders in which a pair's parties really add, traced from what they launch, beside the declared ones.

A party runs one case on a tracing device; the reductions that its declaration names are looked up among those found.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from equiv.errors import DeviceError, UnsupportedError
from equiv.rounding.declaration import Declaration
from equiv.rounding.orders import first_difference
from equiv.runner import run_party

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from equiv.emulator.reductions import Reduction
    from equiv.pairs import Pair
    from equiv.records import Case
    from equiv.rounding.orders import Order

UNDECLARED = "nothing is declared for these versions; --json gives what a declaration needs"


@dataclass(frozen=True, slots=True)
class Traced:
    """One reduction of one party on one architecture.

    Attributes:
        order: as traced; None if no such reduction, or several different ones, were found.
        problem: "" if the traced order is the declared one; else what is wrong, in words.
        form: of the party, that serves the case which was traced.
    """

    party: str
    arch: str
    toolchain: Mapping[str, str]
    reduction: str
    order: Order | None
    problem: str
    form: str = ""


def smallest(pair: Pair, cases: Sequence[Case]) -> Case:
    """The case with the fewest tensor elements, of those that both parties can do if there are any."""
    able = [case for case in cases if not pair.oracle.unsupported(case) and not pair.candidate.unsupported(case)]
    return min(able or cases, key=lambda case: sum(prod(spec.shape) for spec in pair.layout(case)))


def trace(pair: Pair, party: str, case: Case, arch: str) -> tuple[Traced, ...]:
    """Runs one party on one case and compares every declared order with what it did.

    Raises:
        UnsupportedError: the party cannot be compiled here, or no reduction of this pair is described for tracing.
        PartyError: it failed.
    """
    from equiv.emulator.reductions import single

    if pair.terms is None:
        raise UnsupportedError(f"terms:{pair.name}", "no reduction of this pair is described for tracing")
    versions, reductions = _reductions(pair, party, case, arch)
    declared: Declaration | None = pair.declared(party, versions, arch, case)
    found = []
    for name, terms in pair.terms().items():
        fitting = [
            one
            for one in reductions
            if (one.form, len(one.terms), one.buffers) == (terms.form, terms.count, terms.buffers)
        ]
        order, problem = None, ""
        try:
            order = single(fitting, str(terms)).order
        except DeviceError as error:
            problem = str(error)
        if order is not None:
            problem = _problem(declared, name, order)
        found.append(Traced(party, arch, versions, name, order, problem, pair.form_of(party, case, arch)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Discovered:
    """`count` reductions of a traced party that have one order, of `terms` terms of one form from the same tensors."""

    party: str
    arch: str
    toolchain: Mapping[str, str]
    form: str
    terms: int
    buffers: tuple[str, ...]
    order: Order
    count: int


def discover(pair: Pair, party: str, case: Case, arch: str) -> tuple[Discovered, ...]:
    """Every reduction that one party was seen to do on one case, longest first: what a pair can describe by `terms`.

    Raises:
        UnsupportedError: the party cannot be compiled here.
        PartyError: it failed.
    """
    versions, reductions = _reductions(pair, party, case, arch)
    groups: dict[tuple[str, int, tuple[str, ...], str], list[Reduction]] = {}
    for one in reductions:
        groups.setdefault((one.form, len(one.terms), one.buffers, one.order.digest), []).append(one)
    found = [
        Discovered(party, arch, versions, form, terms, buffers, members[0].order, len(members))
        for (form, terms, buffers, _), members in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.terms, one.form, one.buffers)))


def _reductions(pair: Pair, party: str, case: Case, arch: str) -> tuple[Mapping[str, str], list[Reduction]]:
    """Versions of the party's packages, and the reductions that it does."""
    from equiv.emulator.reductions import Finder
    from equiv.emulator.tracing import TracingDevice

    device = TracingDevice(arch)
    versions = run_party(pair, party, case, pair.inputs(case), device).toolchain
    return versions, Finder(device.tracer.graph).all(device.tracer.outputs)


def _problem(declared: Declaration | None, name: str, order: Order) -> str:
    if declared is None:
        return UNDECLARED
    if name not in declared.orders:
        return "not declared"
    return first_difference(declared.orders[name], order)


def as_declared(found: Iterable[Traced]) -> tuple[Declaration, ...]:
    """What was traced as declarations without variants, one for each party, architecture and form."""
    groups: dict[tuple[str, str, str], list[Traced]] = {}
    for one in found:
        groups.setdefault((one.party, one.arch, one.form), []).append(one)
    return tuple(
        Declaration(
            party, members[0].toolchain, arch, {one.reduction: one.order for one in members if one.order}, {}, form
        )
        for (party, arch, form), members in groups.items()
    )
