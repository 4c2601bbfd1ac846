"""The order of a floating-point reduction as data: a tree over term indices, with roots as seen by its consumers.

Build trees with `equiv.rounding.trees` (its names can be imported from here) and close them with `Order.of`. An `Order`
is flat and free of duplicates: two subtrees that give the same bits are one node (float32 addition commutes), so a
butterfly seen from any lane is one root, unless a fused multiply-add made the lanes differ. It can be executed on bit
patterns, compared by digest, written as JSON and read by a person.
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
from equiv.rounding import conversions, formats
from equiv.rounding.trees import (
    Add,
    Const,
    Fma,
    Leaf,
    Mma,
    Node,
    Sum,
    add,
    butterfly,
    chain,
    leaves,
    matrix_chain,
    pairwise,
    split_k,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Add", "Const", "Fma", "Leaf", "Mma", "Node", "Order", "Sum", "add", "butterfly", "chain", "children",
           "entering", "first_difference", "leaves", "matrix_chain", "pairwise", "spans", "split_k"]  # fmt: skip

U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Order:
    """One reduction order in flat form.

    Attributes:
        terms: number of terms; every root uses each exactly once.
        nodes: `("leaf", i)`, `("const", bits)`, `("add", left, right)`, `("fma", i, right)`, `("mma", variant, indices,
            right)`, `("sum", parts)`; left, right and parts point at earlier nodes.
        roots: nodes that are results.
        owner: for each consumer which root it sees, or () where there is one root for all.
        through: name of a format that every partial sum is rounded to, "" for none; no implementation declares one.
    """

    terms: int
    nodes: tuple[tuple[Any, ...], ...]
    roots: tuple[int, ...]
    owner: tuple[int, ...] = ()
    through: str = ""

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
        trees = [roots] if isinstance(roots, Node) else list(roots)
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
        return [self.covers[root] for root in self.roots]

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
    def keys(self) -> tuple[str, ...]:
        """Of each node a hash of the tree below it: equal, also between orders, where the trees give the same bits."""
        keys: list[str] = []
        for node in self.nodes:
            own = [str(value) for value in node[1 : _OWN[node[0]]]]
            if node[0] == "mma":
                own[1] = str(_added_at_once(node[1], node[2]))
            text = " ".join([str(node[0]), *own, *sorted(keys[i] for i in children(node))])
            keys.append(hashlib.sha256(text.encode()).hexdigest())
        return tuple(keys)

    @cached_property
    def digest(self) -> str:
        """Equal for two orders that give the same bits for all inputs to all consumers, by structure."""
        keys = self.keys
        seen = [keys[self.roots[i]] for i in self.owner] or [keys[self.roots[0]]]
        through = [self.through] if self.through else []
        return hashlib.sha256(" ".join([str(self.terms), *seen, *through]).encode()).hexdigest()[:16]

    @cached_property
    def _program(self) -> list[tuple[str, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
        """Steps over all nodes of one kind and level at once: kind, places, first and second argument."""
        groups: dict[tuple[int, str], list[int]] = {}
        for place, node in enumerate(self.nodes):
            groups.setdefault((self.levels[place], node[0]), []).append(place)
        steps = []
        for (_, kind), places in sorted(groups.items()):
            if kind in {"mma", "sum"}:
                found = [(p, self.nodes[p][-2:]) for p in places]
                steps += [(kind, np.array([p]), np.array(first), np.array(second)) for p, (first, second) in found]
                continue
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
        if any(node[0] in {"fma", "mma"} for node in self.nodes):
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
                values[places] = self._kept(fp.add(values[first], values[second]))
            elif kind == "fma":
                values[places] = self._kept(fp.fma(left[first], right[first], values[second]))
            elif kind == "mma":
                variant = self.nodes[int(places[0])][1]
                values[places[0]] = _matrix(variant, left[first], right[first], values[int(second)])
            else:
                raise ValueError("this order has sums of several terms at once whose arithmetic is not known")
        return np.moveaxis(values[list(self.roots)], 0, -1)

    def _kept(self, sums: U32) -> U32:
        if not self.through:
            return sums
        return conversions.widen(conversions.named(f"{self.through}.f32.rn")(sums), formats.named(self.through))

    def seen(self, results: U32) -> U32:
        """Results `[..., roots]` as consumers see them: `[..., consumers]`, or `[..., 1]` where all see one root."""
        return results[..., list(self.owner)] if self.owner else results

    def to_json(self) -> dict[str, Any]:
        """Plain lists and integers; `from_json` reads them back."""
        return {
            "terms": self.terms,
            "nodes": [[list(x) if isinstance(x, tuple) else x for x in node] for node in self.nodes],
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
        nodes = tuple(tuple(tuple(x) if isinstance(x, list) else x for x in node) for node in data["nodes"])
        return cls(int(data["terms"]), nodes, tuple(data["roots"]), tuple(data["owner"]))

    @cached_property
    def covers(self) -> tuple[tuple[int, ...], ...]:
        """Of each node the terms below it, ascending."""
        found: list[tuple[int, ...]] = []
        for node in self.nodes:
            found.append(tuple(sorted(sum((found[i] for i in children(node)), entering(node)))))
        return tuple(found)

    def below(self, place: int) -> tuple[int, ...]:
        """Places of the nodes that a node adds."""
        return children(self.nodes[place])

    def words(self, place: int) -> str:
        """One node by the terms that it adds: `{0..3} + {4..7}`, `fma(x0, x16)`."""
        node = self.nodes[place]
        if not children(node):
            return spans(self.covers[place])
        text = " + ".join(spans(cover) for cover in sorted(self.covers[i] for i in children(node)))
        return f"{node[0]}({spans(tuple(sorted(entering(node))))}, {text})" if entering(node) else text

    def __str__(self) -> str:
        """One line a level: how many additions, and the first of them by the terms they cover."""
        steps: dict[tuple[int, str], list[str]] = {}
        for place in sorted(range(len(self.nodes)), key=self.covers.__getitem__):
            node = self.nodes[place]
            if children(node):
                steps.setdefault((self.levels[place], node[0]), []).append(self.words(place))
        lines = [f"{self.terms} terms, {max(self.levels)} levels, {len(self.roots)} root(s)"]
        for (level, kind), items in sorted(steps.items()):
            shown = ", ".join(items[:4]) + (", ..." if len(items) > 4 else "")
            lines.append(f"  {level}: {len(items)} {kind}: {shown}")
        return "\n".join(lines)


_OWN = {"leaf": 2, "const": 2, "add": 1, "fma": 2, "mma": 3, "sum": 1}
"""Where in a flat node, its kind first, its children begin."""
_ARITY = {"leaf": 2, "const": 2, "add": 3, "fma": 3, "mma": 4, "sum": 2}
"""Length of a flat node, its kind included."""


def first_difference(declared: Order, traced: Order) -> str:
    """Where two orders part, in words: the lowest node of each that the other does not have; "" if they are equal."""
    if declared.digest == traced.digest:
        return ""
    if declared.terms != traced.terms:
        return f"declared for {declared.terms} terms, traced are {traced.terms}"
    lonely = [_first_alone(one, set(other.keys)) for one, other in ((declared, traced), (traced, declared))]
    if lonely == [None, None]:
        return "the same nodes, but other results or other consumers of them"
    said, found = (
        "nothing else" if place is None else f"at level {order.levels[place]} {order.words(place)}"
        for order, place in zip((declared, traced), lonely, strict=True)
    )
    return f"declared {said}; traced {found}"


def _first_alone(order: Order, known: set[str]) -> int | None:
    alone = [place for place, key in enumerate(order.keys) if key not in known]
    return min(alone, key=lambda place: (order.levels[place], order.covers[place]), default=None)


def children(node: Sequence[Any]) -> tuple[int, ...]:
    """Places of the nodes that a flat node adds."""
    if node[0] == "add":
        return (node[1], node[2])
    if node[0] == "sum":
        return tuple(node[1])
    return (node[-1],) if node[0] in {"fma", "mma"} else ()


def entering(node: Sequence[Any]) -> tuple[int, ...]:
    """Terms that enter at this node itself."""
    if node[0] == "mma":
        return tuple(node[2])
    return (node[1],) if node[0] in {"leaf", "fma"} else ()


def _added_at_once(variant: str, indices: tuple[int, ...]) -> tuple[int, ...]:
    """A matrix instruction's terms, those ascending that one step of it adds: there their places give no other bits."""
    from equiv.rounding import matrix

    model = matrix.variant(*variant.split())
    found = list(indices)
    for block in model.blocks if model.row.group == 1 else ():
        for place, index in zip(block, sorted(indices[k] for k in block), strict=True):
            found[place] = index
    return tuple(found)


def _matrix(variant: str, a: U32, b: U32, c: U32) -> U32:
    """One matrix instruction's share of one output: a, b `[k, ...]` float32 bits, c `[...]`."""
    from equiv.rounding import matrix

    model = matrix.variant(*variant.split())
    shape = c.shape
    left, right = (
        conversions.named(f"{fmt.name}.f32.rn")(np.broadcast_to(x, (len(x), *shape)).reshape(len(x), -1))
        for fmt, x in ((model.a, a), (model.b, b))
    )
    flat = c.reshape(-1)
    found = [
        matrix.fused_dot(model, left[None, :, i], right[:, i, None], flat[None, i, None]) for i in range(len(flat))
    ]
    return np.array(found, dtype=np.uint32).reshape(shape)


def _flatten(tree: Node, flat: dict[tuple[Any, ...], int], seen: dict[int, int]) -> int:
    """Place of a tree in `flat`, adding what is not there; recursion is explicit because chains are deep."""
    stack: list[Node] = [tree]
    while stack:
        node = stack[-1]
        below: tuple[Node, ...] = ()
        if isinstance(node, Add):
            below = (node.left, node.right)
        elif isinstance(node, Sum):
            below = node.parts
        elif isinstance(node, (Fma, Mma)):
            below = (node.right,)
        missing = [child for child in below if id(child) not in seen]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if isinstance(node, Add):
            key: tuple[Any, ...] = ("add", *sorted((seen[id(node.left)], seen[id(node.right)])))
        elif isinstance(node, Fma):
            key = ("fma", node.index, seen[id(node.right)])
        elif isinstance(node, Mma):
            key = ("mma", node.variant, node.indices, seen[id(node.right)])
        elif isinstance(node, Sum):
            key = ("sum", tuple(sorted(seen[id(one)] for one in node.parts)))
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
