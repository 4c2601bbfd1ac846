"""Where a value came from: an expression over loaded elements, shared so that equal expressions are one object.

Moves of whole bytes (packing, shifts by 8 and 16, permutes, bf16 to f32, which is a shift) are kept apart from
arithmetic: a value made only of bytes of others is a `concat` of slices, and slicing one gives the piece back. So a
bf16 that travels as half of a register, through shared memory or as part of a vector is the same node before and after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One expression.

    Attributes:
        op: `element`, `const`, `concat`, `slice`, or what computes it, an opcode with its modifiers.
        args: operands, in the instruction's order.
        data: element: (buffer, byte offset); const: its bits; slice: first byte; else a detail, such as which result.
        size: bytes.
        id: number within its graph, in order of creation: operands come first.
    """

    op: str
    args: tuple[Node, ...]
    data: Any
    size: int
    id: int

    def __str__(self) -> str:
        return describe(self, 4)


class Graph:
    """Makes nodes; the same operation on the same operands is made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Node] = {}

    def __len__(self) -> int:
        return len(self._known)

    def node(self, op: str, args: Sequence[Node] = (), data: Any = None, size: int = 4) -> Node:  # noqa: ANN401
        """The node of an operation; nothing is simplified."""
        key = (op, tuple(one.id for one in args), data, size)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Node(op, tuple(args), data, size, len(self._known))
        return found

    def const(self, bits: int, size: int) -> Node:
        """A constant, or anything whose origin does not matter."""
        return self.node("const", (), bits & (1 << 8 * size) - 1, size)

    def element(self, buffer: str, offset: int, size: int) -> Node:
        """`size` bytes at a byte offset of a buffer, as they were before any launch wrote there."""
        return self.node("element", (), (buffer, offset), size)

    def slice(self, node: Node, at: int, size: int) -> Node:
        """Bytes [at, at + size) of a value."""
        if at == 0 and size == node.size:
            return node
        if node.op == "const":
            return self.const(node.data >> 8 * at, size)
        if node.op == "element":
            return self.element(node.data[0], node.data[1] + at, size)
        if node.op == "slice":
            return self.slice(node.args[0], node.data + at, size)
        if node.op == "concat":
            parts, start = [], 0
            for one in node.args:
                low, high = max(at, start), min(at + size, start + one.size)
                if low < high:
                    parts.append(self.slice(one, low - start, high - low))
                start += one.size
            return self.concat(parts)
        return self.node("slice", (node,), at, size)

    def concat(self, parts: Sequence[Node]) -> Node:
        """Values one behind the other, the first in the low bytes."""
        flat: list[Node] = []
        for part in parts:
            for one in part.args if part.op == "concat" else (part,):
                joined = self._joined(flat[-1], one) if flat else None
                if joined is None:
                    flat.append(one)
                else:
                    flat[-1] = joined
        return flat[0] if len(flat) == 1 else self.node("concat", flat, None, sum(one.size for one in flat))

    def _joined(self, low: Node, high: Node) -> Node | None:
        """Two neighbours as one node, if they are neighbours where they came from."""
        size = low.size + high.size
        if low.op == high.op == "const":
            return self.const(high.data << 8 * low.size | low.data, size)
        if low.op == high.op == "element" and (low.data[0], low.data[1] + low.size) == high.data:
            return self.element(low.data[0], low.data[1], size)
        if low.op == high.op == "slice" and low.args == high.args and low.data + low.size == high.data:
            return self.slice(low.args[0], low.data, size)
        return None

    def resized(self, node: Node, size: int) -> Node:
        """The low bytes of a value, or the value with zeros above."""
        if size <= node.size:
            return self.slice(node, 0, size)
        return self.concat([node, self.const(0, size - node.size)])

    def bytes_of(self, node: Node) -> list[Node]:
        """A value byte by byte, low byte first."""
        return [self.slice(node, at, 1) for at in range(node.size)]


def elements(node: Node) -> frozenset[tuple[str, int, int]]:
    """(buffer, byte offset, bytes) of every loaded element below a node."""
    found, seen, stack = set(), set(), [node]
    while stack:
        one = stack.pop()
        if one.id in seen:
            continue
        seen.add(one.id)
        if one.op == "element":
            found.add((*one.data, one.size))
        stack.extend(one.args)
    return frozenset(found)


def is_bf16(node: Node) -> bool:
    """Whether a 32-bit value is a bf16 widened: two zero bytes below two others."""
    return (
        node.op == "concat"
        and [one.size for one in node.args] == [2, 2]
        and node.args[0].op == "const"
        and not node.args[0].data
    )


def describe(node: Node, depth: int) -> str:
    """An expression in words, cut off below `depth` operations."""
    if node.op == "element":
        return f"{node.data[0]}[{node.data[1]}:{node.data[1] + node.size}]"
    if node.op == "const":
        return f"{node.data:#x}"
    if depth == 0:
        return "..."
    if is_bf16(node):
        return f"bf16({describe(node.args[1], depth)})"
    inner = ", ".join(describe(one, depth - 1) for one in node.args)
    return f"{node.op}({inner})" if node.op != "slice" else f"{inner}.bytes[{node.data}:{node.data + node.size}]"
