"""A reduction order in one line: enough of it that a reader can tell two orders apart.

A tree whose nodes all add what lies the same distance away (a butterfly of lanes, pairs of neighbours) is given by its
first step and the distances; any other by the way of one term to the root: `x0 + x1 + {2, 3} + {4..7}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.rounding.orders import children, entering, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.rounding.orders import Order

SHOWN = 6
"""Steps of one term's way that are shown, besides runs of equal ones."""

Cover = frozenset[int]


def phrase(order: Order) -> str:
    """`fma(x0, x16), then 8, 4, 2, 1, 64, 32 apart`, `x0 + x1 + ... + x127`; of several roots the first one.

    Of a step `fma(x0, x16)` the product x0 is not rounded.
    """
    covers: list[Cover] = []
    for node in order.nodes:
        covers.append(frozenset(set(entering(node)).union(*(covers[i] for i in children(node)))))
    root = order.roots[0]
    said = _even(order, covers, root) or _way(order, covers, root)
    return said if len(order.roots) == 1 else f"{len(order.roots)} results for different consumers, one of them {said}"


def phrases(left: Order, right: Order) -> tuple[str, str]:
    """Both in words; where these are the same though the orders are not, with the digests that tell them apart."""
    a, b = phrase(left), phrase(right)
    return (a, b) if a != b or left.digest == right.digest else (f"{a} [{left.digest}]", f"{b} [{right.digest}]")


def _even(order: Order, covers: Sequence[Cover], root: int) -> str:
    """A tree in which all nodes of a level join terms at one distance (index xor), or ""."""
    distances: dict[int, int] = {}
    kinds: set[tuple[str, bool]] = set()
    stack = [root]
    while stack:
        node = order.nodes[place := stack.pop()]
        if node[0] == "leaf":
            continue
        below = children(node)
        if node[0] not in {"add", "fma"}:
            return ""
        parts = [covers[i] for i in below] + ([frozenset({node[1]})] if node[0] == "fma" else [])
        if len(parts) != 2 or not all(parts):
            return ""
        first, second = sorted(parts, key=min)
        distance = min(first) ^ min(second)
        if second != {i ^ distance for i in first} or distances.setdefault(len(covers[place]), distance) != distance:
            return ""
        if len(first) == 1:
            kinds.add((node[0], node[0] == "fma" and {node[1]} == first))
        stack.extend(below)
    if len(kinds) != 1:
        return ""
    (kind, lower), (nearest, *others) = kinds.pop(), [distances[size] for size in sorted(distances)]
    start = f"x0 + x{nearest}" if kind == "add" else f"fma(x0, x{nearest})" if lower else f"fma(x{nearest}, x0)"
    return start + (f", then {', '.join(map(str, others))} apart" if others else "")


def _way(order: Order, covers: Sequence[Cover], root: int) -> str:
    """What is added on the deepest way from a term to the root, in the order in which it happens."""
    steps: list[tuple[str, Cover]] = []
    place = root
    while below := children(order.nodes[place]):
        node = order.nodes[place]
        deepest = max(below, key=lambda i: (order.levels[i], -min(covers[i], default=-1)))
        others = [covers[i] for i in below if i != deepest]
        steps.append(
            (f"{node[0]} ", frozenset(entering(node)))
            if node[0] in {"fma", "mma"}
            else ("", frozenset().union(*others) if others else covers[deepest])
        )
        place = deepest
    steps.append(("", covers[place]))
    steps.reverse()
    shown: list[str] = []
    at = 0
    while at < len(steps):
        if len(shown) >= SHOWN:
            shown += [f"... ({len(steps) - at} more)"]
            break
        run = _run(steps[at:])
        words = [kind + spans(tuple(sorted(cover))) for kind, cover in steps[at : at + run]]
        shown += [words[0], words[1], "...", words[-1]] if run > 3 else words[:1]
        at += run if run > 3 else 1
    return " + ".join(shown)


def _run(steps: Sequence[tuple[str, Cover]]) -> int:
    """How many steps from the first on add single terms at equal distances in the same way."""
    count = 1
    singles = [next(iter(cover)) if len(cover) == 1 else None for _, cover in steps]
    while (
        count < len(steps)
        and None not in singles[: count + 1]
        and steps[count][0] == steps[0][0]
        and (count == 1 or singles[count] - singles[count - 1] == singles[1] - singles[0])  # type: ignore[operator]
    ):
        count += 1
    return count
