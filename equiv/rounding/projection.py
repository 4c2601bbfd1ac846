"""A declared order of a projection's products, executed on whole matrices instead of one output at a time.

An `Order` over K products whose nodes are matrix instructions and additions is taken apart into chains of instructions
(`Chain`) and sums of their results (`Plus`). Every output of the projection goes through the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from equiv.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.rounding.orders import Order


T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Chain:
    """Matrix instructions over `indices` in that order of k, each taking the one before as its C, the first +0.

    Attributes:
        variant: the instruction and the architecture, as `equiv.rounding.trees.Mma` names it.
    """

    indices: tuple[int, ...]
    variant: str

    def of(self, operand: npt.NDArray[T]) -> npt.NDArray[T]:
        """The chain's columns of an operand `[..., K]`, in its order; a view where they are neighbours."""
        first, last = self.indices[0], self.indices[-1]
        if self.indices == tuple(range(first, last + 1)):
            return operand[..., first : last + 1]
        return operand[..., np.array(self.indices)]


@dataclass(frozen=True, slots=True)
class Plus:
    """Two float32 results added to nearest."""

    left: Part
    right: Part


Part = Chain | Plus


@cache
def part_of(order: Order) -> Part:
    """The order of a projection as chains and sums of them.

    Raises:
        UsageError: it has several results, or holds anything but chains of one matrix instruction that start from +0
            and additions of them.
    """
    if len(order.roots) != 1:
        raise UsageError(f"the order of a projection has {len(order.roots)} results, not one for all outputs")
    made: dict[int, Part] = {}
    for place, node in enumerate(order.nodes):
        if node[0] == "mma":
            _, variant, indices, below = node
            before = made.get(below)
            if isinstance(before, Chain) and before.variant == variant:
                made[place] = Chain((*before.indices, *indices), variant)
                continue
            if order.nodes[below] == ("const", 0):
                made[place] = Chain(tuple(indices), variant)
                continue
        elif node[0] == "add" and node[1] in made and node[2] in made:
            made[place] = Plus(made[node[1]], made[node[2]])
            continue
        elif node == ("const", 0):
            continue
        raise UsageError(f"the order of a projection holds {node[0]} {order.words(place)}, not matrix chains from +0")
    return made[order.roots[0]]


def chains(part: Part) -> tuple[Chain, ...]:
    """The chains of an order, from left to right."""
    return (part,) if isinstance(part, Chain) else (*chains(part.left), *chains(part.right))
