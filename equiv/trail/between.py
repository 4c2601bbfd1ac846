"""Two ways of playing one case: the first instruction whose result departs though what it read does not.

From an element that differs the way back leads through what differs: from a result to those operands that are not
alike, to the instructions that made these, in both plays side by side. It ends where an instruction read the same and
gave something else, where bytes of memory were last written by other stores, or where the plays took other ways
through the code. Of all ends the first one executed is the departure.

Plays of the same code (schedules, one changed instruction) are compared thread by thread and turn by turn. Plays of two
images (versions, architectures) are compared operand by operand, wherever an instruction stands and whoever executes
it; two instructions of different names end the way: there the two versions part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv.errors import UsageError
from equiv.trail.walk import Walk

if TYPE_CHECKING:
    from equiv.trail.played import Played
    from equiv.trail.site import Site
    from equiv.trail.walk import End


@dataclass(frozen=True, slots=True)
class Departure:
    """What was found about one differing element.

    Attributes:
        output, index, bits: the element and its two patterns. count, total: elements of that output that differ.
        stores: the instructions that stored it.
        ends: of the way back, first executed first; the first one is the departure.
        steps: pairs of executions looked at. cut: whether there were more than `MOST_STEPS`.
    """

    output: str
    index: tuple[int, ...]
    bits: tuple[int, int]
    count: int
    total: int
    stores: tuple[Site | None, Site | None]
    ends: tuple[End, ...]
    steps: int
    cut: bool = False


def element(
    one: Played, other: Played, output: str | None, index: tuple[int, ...] | None
) -> tuple[str, tuple[int, ...]] | None:
    """The first differing element, of the output and at the index asked for; None: nothing differs.

    Raises:
        UsageError: no such output or element, or both plays leave the same there, or nothing defined.
    """
    known = one.outputs
    if output is not None and output not in known:
        raise UsageError(f"no output {output!r}; known: {', '.join(known)}")
    for name in known if output is None else (output,):
        differs = one.scene.differing(name, known[name], other.outputs[name])
        if index is not None:
            check_element(name, index, known[name].shape)
            if known[name][index] == other.outputs[name][index]:
                raise UsageError(f"{name}{list(index)}: both plays leave 0x{int(known[name][index]):x}")
            if not differs[index]:
                raise UsageError(f"{name}{list(index)}: the contract leaves it undefined")
            return name, index
        found = np.argwhere(differs)
        if len(found):
            return name, tuple(int(at) for at in found[0])
    return None


def check_element(name: str, index: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuses an index that an output of that shape does not have.

    Raises:
        UsageError: saying so.
    """
    inside = len(index) == len(shape) and all(0 <= at < size for at, size in zip(index, shape, strict=True))
    if not inside:
        raise UsageError(f"output {name!r} has shape {shape}: no element {index}")


def departure(one: Played, other: Played, output: str, index: tuple[int, ...]) -> Departure:
    """The way back from an element in two plays of one case, or of two versions of it.

    Args:
        one: a play.
        other: the one to compare it with.
        output: name of a logical output.
        index: of the element.

    Raises:
        UsageError: no recorded store reached the element in one of the plays.
    """
    walk = Walk(one, other)
    stores = walk.begin(output, index)
    walk.run()
    differs = one.scene.differing(output, one.outputs[output], other.outputs[output])
    ends = tuple(sorted(walk.ends, key=lambda end: end.order))
    bits = (int(one.outputs[output][index]), int(other.outputs[output][index]))
    return Departure(
        output, index, bits, int(differs.sum()), differs.size, stores, ends, len(walk.seen), bool(walk.pending)
    )
