"""Finds reductions in the origins of values: which terms a sum has, and in which order they were added.

An expression is a sum where `add.f32`, `fma.f32` or a matrix instruction adds; its terms are what is below. A reduction
is a largest sum whose terms are all of one kind: equal expressions but for the elements that they read. A sum of more
kinds (a bias among the products, `var + eps`) is no reduction, and counts as one term of a sum that it enters. Zero
constants, with which accumulators start, are no terms.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equiv.emulator.provenance import Graph, Node, describe
from equiv.errors import DeviceError
from equiv.rounding import trees
from equiv.rounding.orders import Order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ADD, FMA, MMA, PRODUCT = "add.f32", "fma.f32", "mma", "mul.f32"
_SORTED = frozenset({ADD, FMA, PRODUCT, "max.f32", "min.f32"})
Element = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Reduction:
    """One sum.

    Attributes:
        form: `values`, `squares` or `products`.
        terms: of each term the elements that tell it from the others, (buffer, byte offset, bytes), ascending; terms
            are in ascending order of these.
        roots: the distinct results; more than one where lanes keep different ones.
        example: the first term, in words.
    """

    form: str
    terms: tuple[tuple[Element, ...], ...]
    roots: tuple[Node, ...]
    example: str
    order: Order

    @property
    def buffers(self) -> tuple[str, ...]:
        """The buffers that the terms differ in, sorted."""
        return tuple(sorted({buffer for buffer, _, _ in self.terms[0]}))

    @property
    def start(self) -> Element:
        """The first element of the first term."""
        return self.terms[0][0]


class Finder:
    """Looks through a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._kinds: dict[int, int] = {}
        self._shapes: dict[Any, int] = {}
        self._sums: dict[int, int | None] = {}
        self._places: dict[tuple[Node, ...], tuple[tuple[Node, ...], ...]] = {}

    def kind(self, node: Node) -> int:
        """A number that two expressions share if they differ only in which elements of the same buffers they read."""
        for one in _below(node, self._kinds):
            args = [self._kinds[arg.id] for arg in one.args]
            if one.op in _SORTED:
                args = [*sorted(args[:2]), *args[2:]]
            data = (one.data[0], one.size) if one.op == "element" else (one.data, one.size)
            self._kinds[one.id] = self._shapes.setdefault((one.op, data, *args), len(self._shapes))
        return self._kinds[node.id]

    def parts(self, node: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """(products that enter unrounded, other summands) of a sum; both empty for anything else."""
        if node.op == ADD:
            return (), node.args
        if node.op == FMA:
            return (self.graph.node(PRODUCT, node.args[:2]),), node.args[2:]
        if node.op == MMA:
            depth = (len(node.args) - 1) // 2
            factors = zip(node.args[1 : 1 + depth], node.args[1 + depth :], strict=True)
            return tuple(self.graph.node(PRODUCT, _ordered(pair)) for pair in factors), node.args[:1]
        return (), ()

    def of_terms(self, node: Node) -> int | None:
        """The kind of the terms of a sum with terms of one kind only; None for any other expression."""
        todo = [node]
        while todo:
            one = todo[-1]
            if one.id in self._sums:
                todo.pop()
                continue
            products, others = self.parts(one)
            missing = [other for other in others if other.id not in self._sums]
            if missing:
                todo += missing
                continue
            todo.pop()
            kinds = {self.kind(product) for product in products}
            for other in others:
                if not is_zero(other):
                    inner = self._sums[other.id]
                    kinds.add(self.kind(other) if inner is None else inner)
            self._sums[one.id] = kinds.pop() if len(kinds) == 1 else None
        return self._sums[node.id]

    def leaves(self, root: Node) -> list[Node]:
        """The terms of a sum, one for each time it enters."""
        found: list[Node] = []
        todo = [root]
        kind = self.of_terms(root)
        while todo:
            products, others = self.parts(todo.pop())
            found += products
            for other in others:
                if self.of_terms(other) == kind:
                    todo.append(other)
                elif not is_zero(other):
                    found.append(other)
        return found

    def roots(self, nodes: Iterable[Node]) -> list[Node]:
        """Every largest sum below some values, in order of creation."""
        inner: set[int] = set()
        sums: dict[int, Node] = {}
        for node in nodes:
            for one in _below(node, {}):
                kind = self.of_terms(one)
                if kind is not None:
                    sums[one.id] = one
                    inner.update(other.id for other in self.parts(one)[1] if self.of_terms(other) == kind)
        return [one for number, one in sorted(sums.items()) if number not in inner]

    def all(self, outputs: Mapping[Any, Node], *, least: int = 3) -> list[Reduction]:
        """The reductions of at least `least` terms that the outputs depend on; those are values by whatever key."""
        together = self._together(outputs.values())
        groups: dict[tuple[Any, ...], list[tuple[Node, dict[int, int]]]] = defaultdict(list)
        facts: dict[tuple[Any, ...], tuple[str, str]] = {}
        for root in self.roots([together]):
            terms = self.leaves(root)
            if len(terms) < least or len({one.id for one in terms}) < len(terms):
                continue
            keys = self._telling_apart(terms)
            if keys is None:
                continue
            ranked = sorted(zip(keys, terms, strict=True), key=lambda pair: pair[0])
            group = (self.of_terms(root), tuple(key for key, _ in ranked))
            groups[group].append((root, {term.id: i for i, (_, term) in enumerate(ranked)}))
            facts[group] = (_form(ranked[0][1]), describe(ranked[0][1], 4))
        return [
            Reduction(
                facts[key][0], key[1], tuple(root for root, _ in found), facts[key][1], self._order(key[1], found)
            )
            for key, found in groups.items()
        ]

    def _together(self, nodes: Iterable[Node]) -> Node:
        return self.graph.node("outputs", list({one.id: one for one in nodes}.values()), None, 0)

    def _telling_apart(self, terms: list[Node]) -> list[tuple[Element, ...]] | None:
        """Of each term the elements that it reads and that not all of them read; None if they do not tell them apart.

        What is computed once for all terms, a mean for example, is not looked into.
        """
        read: list[set[Element]] = [set() for _ in terms]
        for column in self._columns(tuple(terms)):
            for own, one in zip(read, column, strict=True):
                own.add((*one.data, one.size))
        shared = set.intersection(*read)
        keys = [tuple(sorted(own - shared)) for own in read]
        return keys if all(keys) and len(set(keys)) == len(keys) else None

    def _columns(self, nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], ...]:
        """Elements below expressions of one kind, by their place: each time one of every expression, not all the same.

        Places that are neighbours in all of them count as one. Expressions share much of what is below them, also with
        others of the same launch, so each place is kept.
        """
        todo = [nodes]
        while todo:
            column = todo[-1]
            if column in self._places:
                todo.pop()
                continue
            below = self._operands(column)
            missing = [one for one in below if one not in self._places]
            if missing:
                todo += missing
                continue
            todo.pop()
            if column[0].op == "element":
                self._places[column] = (column,)
            else:
                self._places[column] = _joined(found for one in below for found in self._places[one])
        return self._places[nodes]

    def _operands(self, column: tuple[Node, ...]) -> list[tuple[Node, ...]]:
        """The operands of expressions of one kind, place by place, without those that are one node for all."""
        operands = zip(*(self._sorted(one) for one in column), strict=True)
        return [one for one in operands if any(node is not one[0] for node in one)]

    def _sorted(self, node: Node) -> list[Node]:
        """Its operands, those that may be exchanged in the order of their kinds."""
        exchanged = sorted(node.args[:2], key=self.kind) if node.op in _SORTED else node.args[:2]
        return [*exchanged, *node.args[2:]]

    def _order(self, terms: tuple[Any, ...], found: list[tuple[Node, dict[int, int]]]) -> Order:
        made = [self.tree(root, index) for root, index in found]
        return Order.of(len(terms), made, range(len(made)))

    def tree(self, root: Node, index: Mapping[int, int]) -> trees.Node:
        """A sum as a tree; `index` gives for the id of each term's node its number."""
        kind = self.of_terms(root)
        made: dict[int, trees.Node] = {}

        def summand(node: Node) -> trees.Node:
            if self.of_terms(node) == kind:
                return made[node.id]
            return trees.Const(node.data) if is_zero(node) else trees.Leaf(index[node.id])

        for node in _below(root, {}, lambda one: [arg for arg in self.parts(one)[1] if self.of_terms(arg) == kind]):
            products, others = self.parts(node)
            below = [summand(other) for other in others]
            if node.op == ADD:
                made[node.id] = trees.Add(*below)
            elif node.op == FMA:
                made[node.id] = trees.Fma(index[products[0].id], below[0])
            else:
                made[node.id] = trees.Mma(tuple(index[one.id] for one in products), below[0], node.data[0])
        return made[root.id]


def _joined(columns: Iterable[tuple[Node, ...]]) -> tuple[tuple[Node, ...], ...]:
    """Elements by their place, those that lie one behind the other in every expression as one."""
    found: list[tuple[Node, ...]] = []
    for column in sorted(set(columns), key=lambda one: [(node.data, node.size) for node in one]):
        last = found[-1] if found else ()
        ends = [(low.data[0], low.data[1] + low.size) for low in last]
        if ends == [high.data for high in column]:
            found[-1] = tuple(
                Node("element", (), low.data, low.size + high.size, -1) for low, high in zip(last, column, strict=True)
            )
        else:
            found.append(column)
    return tuple(found)


def is_zero(node: Node) -> bool:
    """Whether a node is the constant +0 or -0."""
    return node.op == "const" and not node.data & 0x7FFF_FFFF


def _ordered(pair: tuple[Node, Node]) -> list[Node]:
    return sorted(pair, key=lambda one: one.id)


def _form(term: Node) -> str:
    if term.op != PRODUCT:
        return "values"
    return "squares" if term.args[0] is term.args[1] else "products"


def _below(node: Node, done: Mapping[int, Any], args: Any = None) -> list[Node]:  # noqa: ANN401  a function Node -> its operands
    """A node and what is below it, operands first, each once; not what `done` has, nor what is below that."""
    found: list[Node] = []
    seen: set[int] = set()
    stack = [(node, False)]
    while stack:
        one, entered = stack.pop()
        if entered:
            found.append(one)
        elif one.id not in seen and one.id not in done:
            seen.add(one.id)
            stack.append((one, True))
            stack += [(arg, False) for arg in (one.args if args is None else args(one))]
    return found


def single(reductions: Iterable[Reduction], what: str) -> Reduction:
    """The one of several reductions if all have one order.

    Raises:
        DeviceError: there is none, or their orders differ.
    """
    found = list(reductions)
    if not found:
        raise DeviceError(f"no traced reduction is {what}")
    digests = {one.order.digest for one in found}
    if len(digests) > 1:
        raise DeviceError(f"{len(found)} traced reductions are {what}, in {len(digests)} orders")
    return found[0]
