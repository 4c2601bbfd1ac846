"""The expression that a lane instruction makes of its sources' expressions.

Float operations get one name each, however they are spelt: `add.rn.f32`, `add.f32` and one half of `add.f32x2` are
`add.f32`, a conversion to `bf16x2` is two to `bf16`, a bf16 operand of a mixed `add` is widened first, and operands of
what commutes are sorted. Moves of whole bytes are no operation at all. Everything else is an opaque node with the
opcode as its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.reference.integers import permutation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from equiv.emulator.provenance import Graph, Node
    from equiv.emulator.reference.steps import Step

_ARITHMETIC = frozenset({"add", "sub", "mul", "fma", "mad", "min", "max"})
COMMUTES = frozenset({"add", "mul", "fma", "mad", "min", "max", "and", "or", "xor"})
"""Opcodes whose first two operands may be exchanged."""
_CHOICES = frozenset({"selp", "slct"})


def of(graph: Graph, step: Step, nodes: Sequence[Node | None], values: Sequence[int]) -> list[Node | None]:
    """One node for each result, from the sources' nodes and values in one lane; at least one source has a node."""
    if step.base in _CHOICES:
        return [nodes[0] if (values[2] if step.base == "selp" else values[2] >= 0) else nodes[1]]
    if all(one.type == "pred" for one in step.results):
        return [None] * len(step.results)
    if step.base == "set":
        return [None]
    given = [
        node or graph.const(value, max(TYPE_BITS.get(source.type, 64) // 8, 1))
        for node, value, source in zip(nodes, values, step.sources, strict=True)
    ]
    sizes = [TYPE_BITS[one.type] // 8 for one in step.results]
    if step.base == "mov":
        return _move(graph, given, sizes)
    moved = _MOVES[step.base](graph, step, given, values, nodes) if step.base in _MOVES else None
    if moved is None:
        moved = _arithmetic(graph, step, given) if step.base in _ARITHMETIC else None
    if moved is not None:
        return [graph.resized(moved, sizes[0])]
    return [graph.node(name(step), given, i, size) for i, size in enumerate(sizes)]


def name(step: Step) -> str:
    """The opcode without what has no effect on values."""
    return ".".join([step.base, *(word for word in step.mods.values() if word)])


def _move(graph: Graph, given: Sequence[Node], sizes: Sequence[int]) -> list[Node | None]:
    if len(given) > 1:
        return [graph.concat(given)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [graph.slice(given[0], at, size) for at, size in zip(starts, sizes, strict=True)]


def _arithmetic(graph: Graph, step: Step, given: Sequence[Node]) -> Node | None:
    """A float32 operation under its canonical name; None if it is another type's."""
    kind = step.mods.get("type", "f32" if "f32" in step.mods and "atype" in step.mods else "")
    if kind not in {"f32", "f32x2"}:
        return None
    if kind == "f32x2":
        halves = [[graph.slice(one, at, 4) for one in given] for at in (0, 4)]
        return graph.concat([_float(graph, step, half) for half in halves])
    if "atype" in step.mods:
        given = [*(_widened(graph, one, step.mods["atype"]) for one in given[:-1]), given[-1]]
    return _float(graph, step, given)


def _float(graph: Graph, step: Step, given: Sequence[Node]) -> Node:
    base = "fma" if step.base == "mad" else step.base
    words = [base, *(word for group, word in step.mods.items() if word and group not in {"type", "atype", "f32"})]
    if base in COMMUTES:
        given = [*sorted(given[:2], key=lambda one: one.id), *given[2:]]
    return graph.node(".".join([*(word for word in words if word != "rn"), "f32"]), given)


def _widened(graph: Graph, node: Node, kind: str) -> Node:
    if kind == "bf16":
        return graph.concat([graph.const(0, 2), node])
    return graph.node(f"cvt.f32.{kind}", (node,))


def _cvt(graph: Graph, step: Step, given: Sequence[Node], *_: object) -> Node | None:
    target, source = step.mods["dtype"], step.mods["atype"]
    if target in {"f16x2", "bf16x2"} and source == "f32":
        opcode = name(step).replace("x2", "")
        return graph.concat([graph.node(opcode, (one,), 0, 2) for one in (given[1], given[0])])
    if target == "f32" and source in {"bf16", "f16"} and not step.mods.get("sat") and not step.mods.get("ftz"):
        return _widened(graph, given[0], source)
    integers = all(one[0] in "us" and one[1:].isdigit() for one in (target, source))
    if not integers or step.mods.get("sat"):
        return None
    size = TYPE_BITS[target] // 8
    if size > given[0].size and source[0] == "s":
        return None
    return graph.resized(given[0], size)


def _shl(
    graph: Graph, _: Step, given: Sequence[Node], values: Sequence[int], nodes: Sequence[Node | None]
) -> Node | None:
    count, size = values[1], given[0].size
    if nodes[1] is not None or count % 8 or not 0 < count < 8 * size:
        return None
    return graph.concat([graph.const(0, count // 8), graph.slice(given[0], 0, size - count // 8)])


def _shr(
    graph: Graph, step: Step, given: Sequence[Node], values: Sequence[int], nodes: Sequence[Node | None]
) -> Node | None:
    count, size = values[1], given[0].size
    if nodes[1] is not None or count % 8 or not 0 < count < 8 * size or step.mods["type"][0] == "s":
        return None
    return graph.concat([graph.slice(given[0], count // 8, size - count // 8), graph.const(0, count // 8)])


def _and(
    graph: Graph, _: Step, given: Sequence[Node], values: Sequence[int], nodes: Sequence[Node | None]
) -> Node | None:
    """A mask of whole bytes keeps some and zeroes the others."""
    if (nodes[0] is None) == (nodes[1] is None):
        return None
    value, mask = (0, 1) if nodes[1] is None else (1, 0)
    kept = [values[mask] >> 8 * i & 255 for i in range(given[value].size)]
    if any(byte not in {0, 255} for byte in kept):
        return None
    pieces = [graph.slice(given[value], i, 1) if byte else graph.const(0, 1) for i, byte in enumerate(kept)]
    return graph.concat(pieces)


def _or(graph: Graph, _: Step, given: Sequence[Node], *__: object) -> Node | None:
    """Two values of which at most one has anything but zero in each byte."""
    pieces = []
    for a, b in zip(graph.bytes_of(given[0]), graph.bytes_of(given[1]), strict=True):
        zero = [one.op == "const" and one.data == 0 for one in (a, b)]
        if not any(zero):
            return None
        pieces.append(b if zero[0] else a)
    return graph.concat(pieces)


def _prmt(
    graph: Graph, step: Step, given: Sequence[Node], values: Sequence[int], nodes: Sequence[Node | None]
) -> Node | None:
    picked = permutation(step.mods["mode"], values[2])
    if nodes[2] is not None or any(sign_only for _, sign_only in picked):
        return None
    source = [*graph.bytes_of(given[0]), *graph.bytes_of(given[1])]
    return graph.concat([source[at] for at, _ in picked])


def _neg(graph: Graph, step: Step, given: Sequence[Node], *_: object) -> Node | None:
    if step.mods["type"] != "f32" or step.mods.get("ftz"):
        return None
    return given[0].args[0] if given[0].op == "neg.f32" else graph.node("neg.f32", given)


_MOVES: dict[str, Callable[..., Node | None]] = {
    "cvt": _cvt, "shl": _shl, "shr": _shr, "and": _and, "or": _or, "prmt": _prmt, "neg": _neg,
}  # fmt: skip
