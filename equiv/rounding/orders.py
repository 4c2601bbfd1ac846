"""The order of a floating-point reduction as data: a tree over term indices, with roots as seen by its consumers.

Build trees from `Leaf`, `Add`, `Fma` and `Const` with `chain`, `pairwise`, `butterfly`, and close them with
`Order.of`. An `Order` is flat and free of duplicates: two subtrees that give the same bits are one node (float32
addition commutes), so a butterfly seen from any lane is one root, unless a fused multiply-add made the lanes differ.
It can be executed on bit patterns, compared by digest, written as JSON and read by a person.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from equiv.errors import RecordError
from equiv.rounding import arithmetic as fp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

U32 = npt.NDArray[np.uint32]


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


Node = Leaf | Const | Add | Fma


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


@dataclass(frozen=True)
class Order:
    """One reduction order in flat form.

    Attributes:
        terms: number of terms; every root uses each exactly once.
        nodes: `("leaf", i)`, `("const", bits)`, `("add", left, right)`, `("fma", i, right)`; left and right point at
            earlier nodes.
        roots: nodes that are results.
        owner: for each consumer which root it sees, or () where there is one root for all.
    """

    terms: int
    nodes: tuple[tuple[Any, ...], ...]
    roots: tuple[int, ...]
    owner: tuple[int, ...] = ()

    @classmethod
    def of(cls, terms: int, roots: Node | Sequence[Node], owner: Sequence[int] | None = None) -> Self:
        """Flattens trees.

        Args:
            terms: number of terms.
            roots: one tree, or one per viewpoint.
            owner: for each consumer (channel) the index in `roots` of the tree whose result it gets; needed where the
                trees differ in bits.

        Raises:
            ValueError: a root does not use every term exactly once, or the trees differ and `owner` is not given.
        """
        trees = [roots] if isinstance(roots, (Leaf, Const, Add, Fma)) else list(roots)
        flat: dict[tuple[Any, ...], int] = {}
        seen: dict[int, int] = {}
        places = [_flatten(tree, flat, seen) for tree in trees]
        distinct = tuple(dict.fromkeys(places))
        if len(distinct) > 1 and owner is None:
            raise ValueError(f"{len(distinct)} trees with different bits and no owner: say which consumer sees which")
        seen_by = tuple(distinct.index(places[i]) for i in owner) if owner is not None and len(distinct) > 1 else ()
        order = cls(terms, tuple(flat), distinct, seen_by)
        for root, used in zip(order.roots, order._uses(), strict=True):
            if used != tuple(range(terms)):
                raise ValueError(f"root {root} uses terms {used}, not each of 0..{terms - 1} exactly once")
        return order

    def _uses(self) -> list[tuple[int, ...]]:
        sets: list[tuple[int, ...]] = []
        for node in self.nodes:
            own = (node[1],) if node[0] in {"leaf", "fma"} else ()
            below = [sets[i] for i in children(node)]
            sets.append(tuple(sorted(sum(below, own))))
        return [sets[root] for root in self.roots]

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Of each node, the number of additions on the longest path below and including it."""
        found: list[int] = []
        for node in self.nodes:
            found.append(1 + max(found[i] for i in children(node)) if children(node) else 0)
        return tuple(found)

    def roundings(self, *, products: bool) -> int:
        """The most roundings between a term and a root: d of the bound |error| <= d u / (1 - d u) * sum |term|.

        Args:
            products: the terms are products, so that a leaf that is not fused carries one rounding more.
        """
        most: list[int] = []
        for node in self.nodes:
            own = int(products) if node[0] == "leaf" else 0
            most.append(1 + max(most[i] for i in children(node)) if children(node) else own)
        return max(most[root] for root in self.roots)

    @cached_property
    def digest(self) -> str:
        """Equal for two orders that give the same bits for all inputs to all consumers, by structure."""
        keys: list[str] = []
        for node in self.nodes:
            own = [str(value) for value in node[1 : len(node) - len(children(node))]]
            text = " ".join([str(node[0]), *own, *sorted(keys[i] for i in children(node))])
            keys.append(hashlib.sha256(text.encode()).hexdigest())
        seen = [keys[self.roots[i]] for i in self.owner] or [keys[self.roots[0]]]
        return hashlib.sha256(" ".join([str(self.terms), *seen]).encode()).hexdigest()[:16]

    @cached_property
    def _program(self) -> list[tuple[str, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
        """Steps over all nodes of one kind and level at once: kind, places, first and second argument."""
        groups: dict[tuple[int, str], list[int]] = {}
        for place, node in enumerate(self.nodes):
            groups.setdefault((self.levels[place], node[0]), []).append(place)
        steps = []
        for (_, kind), places in sorted(groups.items()):
            first = np.array([self.nodes[p][1] for p in places])
            second = np.array([self.nodes[p][-1] for p in places])
            steps.append((kind, np.array(places), first, second))
        return steps

    def sum(self, terms: npt.ArrayLike) -> U32:
        """Executes the order on terms.

        Args:
            terms: float32 bits `[..., terms]`.

        Returns:
            Float32 bits `[..., roots]`.

        Raises:
            ValueError: the order holds a fused product.
        """
        if any(node[0] == "fma" for node in self.nodes):
            raise ValueError("this order fuses products; use dot")
        x = np.asarray(terms, dtype=np.uint32)
        return self._run(x, x)

    def dot(self, a: npt.ArrayLike, b: npt.ArrayLike) -> U32:
        """Executes the order on products a_i * b_i, each rounded unless fused.

        Args:
            a: float32 bits `[..., terms]`.
            b: the same shape.

        Returns:
            Float32 bits `[..., roots]`.
        """
        x, y = np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32)
        return self._run(fp.mul(x, y), x, y)

    def _run(self, terms: U32, a: U32, b: U32 | None = None) -> U32:
        if terms.shape[-1] != self.terms:
            raise ValueError(f"terms={terms.shape[-1]}, expected {self.terms}")
        columns = np.moveaxis(terms, -1, 0)
        values = np.empty((len(self.nodes), *columns.shape[1:]), dtype=np.uint32)
        left = np.moveaxis(a, -1, 0)
        right = left if b is None else np.moveaxis(b, -1, 0)
        for kind, places, first, second in self._program:
            if kind == "leaf":
                values[places] = columns[first]
            elif kind == "const":
                values[places] = first.astype(np.uint32).reshape(-1, *[1] * (columns.ndim - 1))
            elif kind == "add":
                values[places] = fp.add(values[first], values[second])
            else:
                values[places] = fp.fma(left[first], right[first], values[second])
        return np.moveaxis(values[list(self.roots)], 0, -1)

    def seen(self, results: U32) -> U32:
        """Results `[..., roots]` as consumers see them: `[..., consumers]`, or `[..., 1]` where all see one root."""
        return results[..., list(self.owner)] if self.owner else results

    def to_json(self) -> dict[str, Any]:
        """Plain lists and integers; `from_json` reads them back."""
        return {
            "terms": self.terms,
            "nodes": [list(n) for n in self.nodes],
            "roots": list(self.roots),
            "owner": list(self.owner),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote.

        Raises:
            RecordError: a key is missing, or a node is of no known kind or points forward.
        """
        missing = [key for key in ("terms", "nodes", "roots", "owner") if key not in data]
        if missing:
            raise RecordError(f"order lacks {', '.join(missing)}")
        for place, node in enumerate(data["nodes"]):
            if node[0] not in _ARITY or len(node) != _ARITY[node[0]] or any(i >= place for i in children(node)):
                raise RecordError(f"order $.nodes[{place}]: {node!r} is no node, or points forward")
        nodes = tuple(tuple(node) for node in data["nodes"])
        return cls(int(data["terms"]), nodes, tuple(data["roots"]), tuple(data["owner"]))

    def __str__(self) -> str:
        """One line a level: how many additions, and the first of them by the terms they cover."""
        cover: list[tuple[int, ...]] = []
        steps: dict[tuple[int, str], list[str]] = {}
        for place, node in enumerate(self.nodes):
            below = [cover[i] for i in children(node)]
            cover.append(tuple(sorted(sum(below, (node[1],) if node[0] in {"leaf", "fma"} else ()))))
            if below:
                shape = "{} + {}" if node[0] == "add" else f"fma(x{node[1]}, {{}})"
                steps.setdefault((self.levels[place], node[0]), []).append(shape.format(*map(spans, below)))
        lines = [f"{self.terms} terms, {max(self.levels)} levels, {len(self.roots)} root(s)"]
        for (level, kind), items in sorted(steps.items()):
            shown = ", ".join(items[:4]) + (", ..." if len(items) > 4 else "")
            lines.append(f"  {level}: {len(items)} {kind}: {shown}")
        return "\n".join(lines)


_ARITY = {"leaf": 2, "const": 2, "add": 3, "fma": 3}
"""Length of a flat node, its kind included."""


def children(node: Sequence[Any]) -> tuple[int, ...]:
    """Places of the nodes that a flat node adds."""
    if node[0] == "add":
        return (node[1], node[2])
    return (node[2],) if node[0] == "fma" else ()


def _flatten(tree: Node, flat: dict[tuple[Any, ...], int], seen: dict[int, int]) -> int:
    """Place of a tree in `flat`, adding what is not there; recursion is explicit because chains are deep."""
    stack: list[Node] = [tree]
    while stack:
        node = stack[-1]
        wanted = {Add: ("left", "right"), Fma: ("right",)}.get(type(node), ())
        missing = [child for child in (getattr(node, name) for name in wanted) if id(child) not in seen]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if isinstance(node, Add):
            key: tuple[Any, ...] = ("add", *sorted((seen[id(node.left)], seen[id(node.right)])))
        elif isinstance(node, Fma):
            key = ("fma", node.index, seen[id(node.right)])
        else:
            key = ("leaf", node.index) if isinstance(node, Leaf) else ("const", node.bits)
        seen[id(node)] = flat.setdefault(key, len(flat))
    return seen[id(tree)]


def spans(indices: tuple[int, ...]) -> str:
    """`{0..3, 64..67}`; a single term is `x5`, none is a constant."""
    if not indices:
        return "const"
    if len(indices) == 1:
        return f"x{indices[0]}"
    runs: list[list[int]] = []
    for i in indices:
        if runs and runs[-1][1] + 1 == i:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    shown = [f"{a}..{b}" if b > a else str(a) for a, b in runs[:4]]
    return "{" + ", ".join(shown) + (", ..." if len(runs) > 4 else "") + "}"
