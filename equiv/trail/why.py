"""One wrong element of a party: who stored it, what it was made of, and the row and instruction that depart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv.errors import UsageError
from equiv.trail.between import check_element
from equiv.trail.command import programs
from equiv.trail.played import Played
from equiv.trail.slice import Slice
from equiv.trail.stage import Model, executions, located, missing, stage, unread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.explain import Explanation
    from equiv.mutate.scene import Scene
    from equiv.records import Bits
    from equiv.trail.site import Site
    from equiv.trail.stage import Stage


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a wrong element comes from.

    Attributes:
        bits: what the party left. expected: what its model has.
        stored: the instruction that stored it; None: no store that can be followed reached it.
        size: executions that it was made of. cut: whether there are more.
        inputs: tensors that these read. missing: tensors that the model's value depends on by elements they did not.
        stage: the row that departs, and its instruction. named: whether an explanation had named the row.
        site: that instruction. path: from the store down to it.
        unfollowed: what else it may depend on, in words.
    """

    output: str
    index: tuple[int, ...]
    bits: int
    expected: int
    stored: Site | None
    size: int = 0
    cut: bool = False
    inputs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    stage: Stage | None = None
    named: bool = False
    site: Site | None = None
    path: tuple[Site, ...] = ()
    unfollowed: tuple[str, ...] = ()


def origin(scene: Scene, model: Model, found: Explanation, output: str | None, index: tuple[int, ...] | None) -> Origin:
    """Where the first wrong element of a party, or the one asked for, comes from.

    Args:
        scene: the party's recorded case.
        model: the party's model.
        found: what was found about the party.
        output: name of a logical output, or None: the first wrong one that is computed, or else copied.
        index: of the element, or None: the first wrong one.

    Raises:
        UsageError: no such output or element, or none that is wrong.
    """
    played = Played(scene, programs(scene), scene.case.name, {})
    expected = model.outputs(model.inputs)
    computed = [one for one in found.wrong if one not in found.placed] or list(found.wrong)
    first: Origin | None = None
    for name in [output] if output else computed:
        at = _first(scene, name, index, expected, played.outputs)
        one = _origin(played, model, found, (name, at), int(expected[name][at]))
        first = first or one
        if one.site is not None or not one.cut:
            return one if one.site is not None else first
    assert first is not None  # a party that is found wrong has wrong outputs
    return first


def _origin(
    played: Played, model: Model, found: Explanation, where: tuple[str, tuple[int, ...]], expected: int
) -> Origin:
    name, at = where
    bits = int(played.outputs[name][at])
    try:
        some = Slice(played, name, at)
    except UsageError:  # it was never written: that is the answer
        return Origin(name, at, bits, expected, None)
    others = unread(some)
    kept = executions(model, others)
    there, named = None, False
    for row in _rows(found, model):
        there, named = located(some, kept, model.ledger, row), True
        if there is not None:
            break
    if not found.explained:
        there, named = stage(some, kept, model.ledger), False
    return Origin(
        name,
        at,
        bits,
        expected,
        some.site(0),
        len(some.nodes),
        some.cut,
        _inputs(some),
        missing(model, others, name, at),
        there,
        named,
        None if there is None else some.site(there.node),
        () if there is None else tuple(some.site(number) for number in some.path(there.node)),
        tuple(dict.fromkeys(node.unseen for node in some.nodes if node.unseen)),
    )


def _first(
    scene: Scene, output: str, index: tuple[int, ...] | None, expected: Mapping[str, Bits], got: Mapping[str, Bits]
) -> tuple[int, ...]:
    """The first wrong element of an output, or the one asked for.

    Raises:
        UsageError: no such output or element, or it, or all of them, are right or undefined.
    """
    if output not in expected:
        raise UsageError(f"no output {output!r}; known: {', '.join(expected)}")
    differs = scene.differing(output, expected[output], got[output])
    if index is not None:
        check_element(output, index, differs.shape)
        if expected[output][index] == got[output][index]:
            raise UsageError(f"{output}{list(index)} is as the model has it: 0x{int(got[output][index]):x}")
        if not differs[index]:
            raise UsageError(f"{output}{list(index)}: the contract leaves it undefined")
        return index
    places = np.argwhere(differs)
    if not len(places):
        raise UsageError(f"output {output!r}: every element is as the model has it")
    return tuple(int(one) for one in places[0])


def _rows(found: Explanation, model: Model) -> Sequence[str]:
    """Ledger rows that the best explanation changes."""
    known = {row.id for row in model.ledger}
    return [one for one in found.readings[0].what if one in known] if found.explained and found.readings else ()


def _inputs(some: Slice) -> tuple[str, ...]:
    """Tensors that a slice was made of."""
    names = []
    for address, _ in some.read().tolist():
        names += [one.spec.name for one in some.played.scene.buffers if one.address <= address < one.address + one.span]
    return tuple(sorted(set(names)))
