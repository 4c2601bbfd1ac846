"""The orders in which a pair's parties really add, traced from what they launch, beside the declared ones.

A party runs one case on a tracing device; the reductions that its declaration names are looked up among those found.
Of each it is said whether it was traced; what cannot be traced, or is not done by the case, is never taken for equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from equiv.errors import DeviceError, UnsupportedError
from equiv.rounding.declaration import Declaration, Terms
from equiv.rounding.orders import first_difference
from equiv.runner import run_party

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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
        problem: "" if the traced order is the declared one, or none was looked for; else what is wrong, in words.
        form: of the party, that serves the case which was traced.
        untraced: why no such reduction was looked for, or none found where parts were not followed; "" if traced.
        partly: launches of the party that were followed in part, in words.
    """

    party: str
    arch: str
    toolchain: Mapping[str, str]
    reduction: str
    order: Order | None
    problem: str
    form: str = ""
    untraced: str = ""
    partly: tuple[str, ...] = ()


def smallest(pair: Pair, cases: Sequence[Case]) -> Case:
    """The case with the fewest tensor elements, of those that both parties can do if there are any."""
    able = [case for case in cases if not pair.oracle.unsupported(case) and not pair.candidate.unsupported(case)]
    return min(able or cases, key=lambda case: sum(prod(spec.shape) for spec in pair.layout(case)))


def other_forms(pair: Pair, cases: Sequence[Case], found: Sequence[Traced]) -> tuple[str, ...]:
    """`PARTY FORM: CASE` for each form, declared separately, of a traced party that was not traced: a case that has it.

    Args:
        pair: the pair.
        cases: of the pair, to choose from.
        found: what was traced.
    """
    traced = {(one.party, one.form) for one in found}
    lines = []
    for party in dict.fromkeys(one.party for one in found):
        arches = tuple(dict.fromkeys(one.arch for one in found if one.party == party))
        for form in pair.forms.get(party, ()):
            has = [case for case in cases if form in {pair.form_of(party, case, arch) for arch in arches}]
            if (party, form) not in traced:
                lines.append(f"{party} {form}: {smallest(pair, has).name if has else 'no case has it'}")
    return tuple(lines)


def trace(pair: Pair, party: str, case: Case, arch: str) -> tuple[Traced, ...]:
    """Runs one party on one case and compares every declared order with what it did.

    Raises:
        UnsupportedError: the party cannot be compiled here, or no reduction of this pair is described for tracing.
        PartyError: it failed.
    """
    if pair.terms is None:
        raise UnsupportedError(f"terms:{pair.name}", "no reduction of this pair is described for tracing")
    versions, reductions, partly = _reductions(pair, party, case, arch)
    declared: Declaration | None = pair.declared(party, versions, arch, case)
    said = {} if declared is None else declared.orders
    known = pair.terms()
    tensors = {spec.name for spec in pair.layout(case)}
    found = []
    for name in dict.fromkeys([*known, *said]):
        order, problem, untraced = None, "", _untraced(pair, case, known.get(name))
        if untraced and declared is not None and name not in said:
            continue
        if not untraced:
            terms = known[name]
            fitting = [one for one in reductions if _fits(one, terms, tensors)]
            alike = {said[other].digest for other in said if known.get(other) == terms}
            try:
                order = _order(fitting, terms, said.get(name), alike)
            except DeviceError as error:
                problem = str(error)
            if partly and not fitting:
                problem, untraced = "", f"not found; followed in part: {', '.join(partly)}"
            if order is not None:
                problem = _problem(declared, name, order)
        form = pair.form_of(party, case, arch)
        found.append(Traced(party, arch, versions, name, order, problem, form, untraced, partly))
    return tuple(found)


def _untraced(pair: Pair, case: Case, terms: Terms | None) -> str:
    """Why a reduction is not looked for in a case, "" if it is."""
    if terms is None:
        return "the pair does not describe its terms (`terms`)"
    axes = {axis.name: axis.default for axis in pair.axes} | dict(case.axes)
    other = [f"{axis} = {value}" for axis, value in terms.where.items() if axes.get(axis) != value]
    return terms.unfollowed or (f"this case does not add so; one with {' and '.join(other)} does" if other else "")


def _fits(one: Reduction, terms: Terms, tensors: Collection[str]) -> bool:
    """Whether a traced reduction has the terms described; memory that is no tensor of the pair does not count."""
    buffers = tuple(name for name in one.buffers if name in {*tensors, *terms.buffers} and name not in terms.besides)
    return (one.form, len(one.terms), buffers) == (terms.form, terms.count, terms.buffers)


def _order(fitting: Sequence[Reduction], terms: Terms, own: Order | None, alike: Collection[str]) -> Order:
    """The order of the reductions that fit; where names share one description, each may have one of theirs.

    Args:
        fitting: what was traced of that description.
        terms: the description.
        own: as declared, if it is.
        alike: digests of the orders declared for reductions of the same description, its own among them.

    Raises:
        DeviceError: nothing fits, or there are orders that none of them declares.
    """
    from equiv.emulator.reductions import single

    orders = {one.order.digest: one.order for one in fitting}
    if own is not None and own.digest in orders and set(orders) <= set(alike):
        return orders[own.digest]
    return single(fitting, str(terms)).order


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
    versions, reductions, _ = _reductions(pair, party, case, arch)
    groups: dict[tuple[str, int, tuple[str, ...], str], list[Reduction]] = {}
    for one in reductions:
        groups.setdefault((one.form, len(one.terms), one.buffers, one.order.digest), []).append(one)
    found = [
        Discovered(party, arch, versions, form, terms, buffers, members[0].order, len(members))
        for (form, terms, buffers, _), members in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.terms, one.form, one.buffers)))


def _reductions(
    pair: Pair, party: str, case: Case, arch: str
) -> tuple[Mapping[str, str], list[Reduction], tuple[str, ...]]:
    """Versions of the party's packages, the reductions that it does, and which launches were followed in part."""
    from equiv.emulator.reductions import Finder
    from equiv.emulator.tracing import TracingDevice

    device = TracingDevice(arch)
    versions = run_party(pair, party, case, pair.inputs(case), device).toolchain
    found = Finder(device.tracer.graph).all({**device.tracer.outputs, **device.tracer.sunk})
    return versions, found, tuple(dict.fromkeys(device.partly))


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
