"""Trees of a reduction, and the shapes that compilers make of them: chains, pairs, butterflies, slices of K.

A tree is made of terms by index; `equiv.rounding.orders` flattens it into an `Order`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Term `index`; in a sum of products the product, rounded."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A float32 constant by its bits, `Const(0)` for an accumulator that starts at +0."""

    bits: int


@dataclass(frozen=True, slots=True, eq=False)
class Add:
    """Rounded sum of two nodes."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Fma:
    """`fma(a_index, b_index, right)`: the unrounded product of term `index` plus a node; in sums of products only."""

    index: int
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Mma:
    """One matrix instruction's part in one output: `right` plus the products of terms `indices`, in its order of k.

    `variant` names the instruction as `equiv.rounding.matrix.variant` takes it, with the architecture behind a blank.
    """

    indices: tuple[int, ...]
    right: Node
    variant: str


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """Nodes added at once by a unit of which nothing is known but that: what probes find of a matrix instruction."""

    parts: tuple[Node, ...]


Node = Leaf | Const | Add | Fma | Mma | Sum


def leaves(indices: Iterable[int]) -> list[Node]:
    """One leaf per term index."""
    return [Leaf(i) for i in indices]


def add(left: Node, right: Node, *, fused: bool = False) -> Node:
    """`Add`; with `fused`, a leaf on the left (else one on the right) is contracted into `Fma`."""
    if fused and isinstance(left, Leaf):
        return Fma(left.index, right)
    if fused and isinstance(right, Leaf):
        return Fma(right.index, left)
    return Add(left, right)


def chain(nodes: Sequence[Node], start: Node | None = None, *, fused: bool = False) -> Node:
    """((n0 + n1) + n2) + ..., from `start` if given; with `fused` every leaf after the first value is contracted.

    Raises:
        ValueError: nothing to add.
    """
    items = list(nodes) if start is None else [start, *nodes]
    if not items:
        raise ValueError("chain of no nodes")
    total = items[0]
    for node in items[1:]:
        total = Fma(node.index, total) if fused and isinstance(node, Leaf) else Add(total, node)
    return total


def pairwise(nodes: Sequence[Node], *, fused: bool = False) -> Node:
    """Neighbours in pairs, then pairs of pairs: (n0 + n1) + (n2 + n3).

    With `fused` the left leaf of a pair is contracted.

    Raises:
        ValueError: the number of nodes is not a power of two.
    """
    count = len(nodes)
    if count == 0 or count & (count - 1):
        raise ValueError(f"pairwise over {count} nodes: not a power of two")
    row = list(nodes)
    while len(row) > 1:
        row = [add(row[i], row[i + 1], fused=fused) for i in range(0, len(row), 2)]
    return row[0]


def butterfly(lanes: Sequence[Node], strides: Sequence[int], *, fused: bool = False) -> list[Node]:
    """Shuffle-xor reduction: at each stride every lane adds the value of lane ^ stride to its own.

    With `fused`, a lane that still holds a leaf contracts its own product into that addition: fma(a, b, other).
    Returns what each lane holds at the end; take `[lane]` for one viewpoint.

    Raises:
        ValueError: a stride reaches outside the lanes.
    """
    row = list(lanes)
    for stride in strides:
        if any((lane ^ stride) >= len(row) for lane in range(len(row))):
            raise ValueError(f"stride {stride} reaches outside {len(row)} lanes")
        row = [add(row[lane], row[lane ^ stride], fused=fused) for lane in range(len(row))]
    return row


def split_k(terms: int, slices: int) -> list[range]:
    """The terms of each of `slices` equal parts of consecutive terms.

    Raises:
        ValueError: they do not divide.
    """
    if slices < 1 or terms % slices:
        raise ValueError(f"{terms} terms in {slices} slices: they do not divide")
    size = terms // slices
    return [range(i * size, (i + 1) * size) for i in range(slices)]


def matrix_chain(indices: Sequence[int], k: int, variant: str, start: Node | None = None) -> Node:
    """A chain of matrix instructions of `k` products over `indices`, each taking the one before as its C.

    Raises:
        ValueError: the number of indices is no multiple of k.
    """
    if not indices or len(indices) % k:
        raise ValueError(f"{len(indices)} terms in matrix instructions of {k}")
    total: Node = Const(0) if start is None else start
    for at in range(0, len(indices), k):
        total = Mma(tuple(indices[at : at + k]), total, variant)
    return total
