"""Other orders of the same terms than a declared one: what a kernel may have done instead.

Used to explain a mismatch: a model is run again under each of them until it gives the bits that were found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.rounding.orders import Order
from equiv.rounding.trees import Add, Const, Fma, Leaf, Mma, Sum, chain, leaves, pairwise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from equiv.rounding.trees import Node


def alternatives(order: Order) -> Iterator[tuple[str, Order]]:
    """(in words, order) of other ways to add the same terms, none of which gives the bits of `order` by structure.

    The parts that its last additions bring together, in reverse and in pairs; and, where no matrix instruction takes
    part, all terms one after the other, from either end, and in pairs. Orders of several roots are left alone.
    """
    if len(order.roots) > 1:
        return
    parts = _parts(order)
    found = [("its last additions taken in reverse", chain(parts[::-1]))]
    if len(parts) > 2 and not len(parts) & (len(parts) - 1):
        found.append(("its last additions taken in pairs", pairwise(parts)))
    if not any(node[0] in {"mma", "sum"} for node in order.nodes):
        terms = leaves(range(order.terms))
        found.append(("one term after the other", chain(terms)))
        found.append(("one term after the other, from the last", chain(terms[::-1])))
        if not order.terms & (order.terms - 1):
            found.append(("neighbours in pairs, then pairs of pairs", pairwise(terms)))
    seen = {order.digest}
    for words, other in found:
        made = Order.of(order.terms, other)
        if made.digest not in seen:
            seen.add(made.digest)
            yield words, made


def _trees(order: Order) -> list[Node]:
    """Of each node of the order the tree below it."""
    made: list[Node] = []
    for node in order.nodes:
        if node[0] == "leaf":
            made.append(Leaf(node[1]))
        elif node[0] == "const":
            made.append(Const(node[1]))
        elif node[0] == "add":
            made.append(Add(made[node[1]], made[node[2]]))
        elif node[0] == "fma":
            made.append(Fma(node[1], made[node[2]]))
        elif node[0] == "mma":
            made.append(Mma(node[2], made[node[3]], node[1]))
        else:
            made.append(Sum(tuple(made[part] for part in node[1])))
    return made


def _parts(order: Order) -> list[Node]:
    """What the last additions bring together, in their order: from the root along the side with more terms.

    Where both sides have as many, they are the first two parts, the one with the first term first.
    """
    trees, place, parts = _trees(order), order.roots[0], []
    while order.nodes[place][0] == "add":
        few, many = sorted(
            order.below(place), key=lambda side: (len(order.covers[side]), *(-i for i in order.covers[side]))
        )
        parts.append(trees[few])
        place = many
        if len(order.covers[few]) == len(order.covers[many]):
            break
    return [trees[place], *reversed(parts)]
