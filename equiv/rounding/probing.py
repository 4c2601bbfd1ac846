"""The order of a sum or dot that cannot be traced, found from outside by masked probes.

Two terms are set to +M and -M, all others to one, with M so large that one added to it is lost (the published idea
behind FPRev). What is added while only one of the two big terms is in the running sum disappears; what comes after they
have met survives. So the result is the number of terms outside the smallest subtree that holds both, and these numbers
for all pairs are a tree. A unit that adds several terms at once (a matrix instruction) shows as a node with as many
children.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from equiv.errors import DeviceError
from equiv.rounding.orders import Order
from equiv.rounding.trees import Add, Leaf, Node, Sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

F32 = npt.NDArray[np.float32]
Total = Callable[[F32], float]
"""The sum under test: float32 terms `[n]` -> their sum."""

BIG = 2.0**96
"""One, and any number of ones up to 2^24, is lost beside it; two of it do not overflow. For float32 and bf16."""
ALL_PAIRS = 96
"""Up to that many terms every pair is probed; beyond it only what builds the tree, and some pairs that check it."""


class ProbeError(DeviceError):
    """The results of the probes belong to no tree: the order is not fixed, or the function is no plain sum."""


@dataclass
class _Probes:
    """Asks the function, each pair once."""

    total: Total
    terms: int
    big: float
    unit: float

    def __post_init__(self) -> None:
        self.known: dict[tuple[int, int], int] = {}

    def meeting(self, i: int, j: int) -> int:
        """The number of terms in the smallest subtree that holds terms i and j.

        Raises:
            ProbeError: the sum is no possible count, or depends on which of the two is negative.
        """
        key = (min(i, j), max(i, j))
        if key not in self.known:
            counts = [self._survivors(key, sign) for sign in (1.0, -1.0)]
            if counts[0] != counts[1]:
                raise ProbeError(
                    f"terms {key[0]} and {key[1]} masked: {counts[0]} or {counts[1]} others survive, by their signs"
                )
            self.known[key] = self.terms - counts[0]
        return self.known[key]

    def _survivors(self, pair: tuple[int, int], sign: float) -> int:
        terms = np.full(self.terms, self.unit, np.float32)
        terms[list(pair)] = sign * self.big, -sign * self.big
        left = float(self.total(terms)) / self.unit
        if not (left.is_integer() and 0 <= left <= self.terms - 2):
            raise ProbeError(
                f"terms {pair[0]} and {pair[1]} masked: the sum is {left!r},"
                f" no number of terms from 0 to {self.terms - 2}"
            )
        return int(left)


def probe(total: Total, terms: int, *, big: float = BIG, unit: float = 1.0, seed: int = 0) -> Order:
    """The order of a plain sum.

    Args:
        total: the sum; called with `unit`, `big` and -`big` only, about `terms` * depth times, or for up to 96 terms
            `terms`^2 times.
        terms: how many, 2 to 2^24.
        big: must swallow `terms` * `unit` whole; narrower formats than float32 and bf16 need a smaller one.
        unit: what the other terms are; `terms` * `unit` must be exact in the sum's format.
        seed: of the pairs that check a large tree, and of where its building begins.

    Returns:
        The tree, with `Sum` nodes where several parts meet at once. A fused product looks like a rounded one.

    Raises:
        ProbeError: the results contradict a fixed tree; the pair and the numbers are named.
    """
    if not 2 <= terms <= 1 << 24:
        raise ProbeError(f"{terms} terms; probes tell orders of 2 to 2^24")
    probes = _Probes(total, terms, big, unit)
    draw = np.random.default_rng(seed)
    order = Order.of(terms, _tree(probes, list(range(terms)), draw))
    _verify(probes, order, draw)
    return order


def probe_dot(
    dot: Callable[[F32, F32], float], terms: int, *, big: float = BIG, unit: float = 1.0, seed: int = 0
) -> Order:
    """The order of a dot: the same probes as one operand, ones as the other; see `probe`.

    Raises:
        ProbeError: the results contradict a fixed tree.
    """
    ones = np.ones(terms, np.float32)
    return probe(lambda x: dot(x, ones), terms, big=big, unit=unit, seed=seed)


def _tree(probes: _Probes, members: Sequence[int], draw: np.random.Generator) -> Node:
    """The subtree over all `members`.

    One member's way to the root passes the subtrees that the others form: those that meet it at one size belong
    together. What joins at one step may be one sibling or, at a multiway node, several. The member is drawn, so that
    long chains do not make deep recursions.
    """
    first = members[int(draw.integers(len(members)))]
    others = [one for one in members if one != first]
    steps: dict[int, list[int]] = {}
    for other in others:
        steps.setdefault(probes.meeting(first, other), []).append(other)
    grown: Node = Leaf(first)
    size = 1
    for meeting, joining in sorted(steps.items()):
        if meeting != size + len(joining):
            raise ProbeError(
                f"term {first} meets terms {joining[:4]} in a subtree of {meeting}, where {size} + {len(joining)} are"
            )
        parts = [_tree(probes, part, draw) for part in _siblings(probes, joining, meeting)]
        grown = Add(grown, parts[0]) if len(parts) == 1 else Sum((grown, *parts))
        size = meeting
    return grown


def _siblings(probes: _Probes, joining: Sequence[int], meeting: int) -> Iterable[list[int]]:
    """Terms that join at one node, by the child that they are in: those of different children meet at the node."""
    left = list(joining)
    while left:
        first = left[0]
        inside = [first, *(other for other in left[1:] if probes.meeting(first, other) < meeting)]
        yield inside
        left = [one for one in left if one not in set(inside)]


def _verify(probes: _Probes, order: Order, draw: np.random.Generator) -> None:
    """Compares meetings that the tree says with probes: all pairs, or of a large sum as many pairs as it has terms."""
    n = order.terms
    if n <= ALL_PAIRS:
        pairs = [(i, j) for i in range(n) for j in range(i)]
    else:
        drawn = draw.integers(0, n, (n, 2)).tolist()
        pairs = [(i, j) for i, j in drawn if i != j]
    covers = [frozenset(cover) for cover in order.covers]
    parents = {child: place for place in range(len(order.nodes)) for child in order.below(place)}
    leaf = {cover[0]: place for place, cover in enumerate(order.covers) if not order.below(place)}
    for i, j in pairs:
        place = leaf[i]
        while j not in covers[place]:
            place = parents[place]
        found = probes.meeting(i, j)
        if found != len(covers[place]):
            said = len(covers[place])
            raise ProbeError(
                f"terms {i} and {j} meet in a subtree of {found} terms, by the other probes in one of {said}"
            )
