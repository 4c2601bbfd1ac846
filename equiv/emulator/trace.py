"""Follows every value of a launch: the portable engine runs it, and each register and byte gets its origin.

Values, addresses and branches are the concrete ones; what a value was made of is an expression over the elements that
the launch loaded (`equiv.emulator.provenance`). Predicates have no origin: a `selp` has that of the operand it chose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator import origins
from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.provenance import Graph, Node
from equiv.emulator.reference import spaces
from equiv.emulator.reference.machine import FULL, LANES
from equiv.emulator.reference.steps import lanes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.matrix import Fragment, Multiplication
    from equiv.emulator.reference.spaces import Place
    from equiv.emulator.reference.steps import Operand, Step, Values

_ANONYMOUS = ("variable ", "kernel parameters")
Key = tuple[str, int, int, int]


class Tracer:
    """An observer of the portable engine. One tracer may follow several launches, and what one leaves for the next.

    Attributes:
        outputs: (buffer, byte offset, bytes) of every store to global memory -> what was stored last.
        sunk: what was stored to shared memory ahead of results that are hidden, which may be made of it; by id.
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self.outputs: dict[tuple[str, int, int], Node] = {}
        self.sunk: dict[int, Node] = {}
        self._shared: dict[int, Node] = {}
        self._bytes: dict[Key, tuple[Node, int, int]] = {}

    def begin(self) -> None:
        """A launch begins: shared and local memory hold nothing of the one before."""
        self._bytes = {key: one for key, one in self._bytes.items() if key[0] == "global"}
        self._shared = {}

    def computed(self, warp: Warp, step: Step, mask: int, sources: Sequence[Values], results: Sequence[Values]) -> None:
        """Makes a node of the operation where a source has an origin."""
        notes = [self._notes(warp, one) for one in step.sources]
        found: list[list[Node | None]] = [[None] * LANES for _ in results]
        if any(one is not None for one in notes):
            for lane in lanes_of(mask):
                mine = [None if one is None else one[lane] for one in notes]
                if any(one is not None for one in mine):
                    values = [source[lane] for source in sources]
                    for i, node in enumerate(origins.of(self.graph, step, mine, values)):
                        found[i][lane] = node
        for operand, nodes in zip(step.results, found, strict=True):
            self._set(warp, operand, nodes, mask)

    def shuffled(self, warp: Warp, step: Step, mask: int, origin: Sequence[int]) -> None:
        """A value keeps its origin in another lane."""
        nodes = self._notes(warp, next(one for one in step.sources if one.name == "a"))
        moved = [None] * LANES if nodes is None else [nodes[other] for other in origin]
        self._set(warp, next(one for one in step.results if one.name == "d"), moved, mask)

    def reduced(self, warp: Warp, step: Step, mask: int, source: Values) -> None:
        """One node over all lanes."""
        operand = step.sources[0]
        nodes = self._notes(warp, operand)
        node = None
        if nodes is not None and any(nodes[lane] is not None for lane in lanes_of(mask)):
            size = TYPE_BITS[operand.type] // 8
            given = [nodes[lane] or self.graph.const(source[lane], size) for lane in lanes_of(mask)]
            node = self.graph.node(origins.name(step), sorted(given, key=lambda one: one.id), None, size)
        self._set(warp, step.results[0], [node] * LANES, mask)

    def loaded(self, warp: Warp, step: Step, lane: int, where: Place, data: bytes) -> None:
        """A register gets the origin of the bytes read."""
        size = len(data) // len(step.results)
        for i, operand in enumerate(step.results):
            node = self._origin(warp, where, i * size, data[i * size : (i + 1) * size])
            if node is not None and operand.bits > 8 * size:
                node = self.graph.resized(node, operand.bits // 8) if not operand.signed else None
            self._set_lane(warp, operand, lane, node)

    def stored(self, warp: Warp, step: Step, lane: int, where: Place, data: bytes) -> None:
        """Memory gets the origin of the registers written."""
        values = [one for one in step.sources if one.name.startswith("v" if "async" in step.mods else "b")]
        size = len(data) // len(values)
        for i, operand in enumerate(values):
            nodes = self._notes(warp, operand)
            node = None if nodes is None else nodes[lane]
            node = None if node is None else self.graph.resized(node, size)
            self._keep(warp, where, i * size, node, data[i * size : (i + 1) * size])

    def updated(self, warp: Warp, step: Step, lane: int, where: Place, change: tuple[bytes, bytes]) -> None:
        """An atomic's node is of its own kind: in which order atomics come is no property of the code."""
        old, new = change
        before = self._origin(warp, where, 0, old) or self.graph.const(int.from_bytes(old, "little"), len(old))
        if step.results:
            self._set_lane(warp, step.results[0], lane, before)
        args = [before]
        for operand in step.sources:
            if operand.name in {"b", "c"}:
                nodes = self._notes(warp, operand)
                value = step.read(warp, operand)[lane] if operand.register != _written(step) else 0
                args.append((nodes[lane] if nodes else None) or self.graph.const(value, len(old)))
        self._keep(warp, where, 0, self.graph.node(origins.name(step), args, None, len(new)), new)

    def copied(self, warp: Warp, where: Place, source: Place, count: int, size: int) -> None:
        """Bytes keep their origin from one memory to another."""
        if count:
            data = spaces.read(warp, source, count)
            self._keep(warp, where, 0, self._origin(warp, source, 0, data), data)
        if count < size:
            self._keep(warp, where, count, None, bytes(size - count))

    def assembled(
        self, warp: Warp, operand: Operand, lane: int, pieces: Sequence[tuple[Place, int]], data: bytes
    ) -> None:
        """A register gets the origins of its halves."""
        size = len(data) // len(pieces)
        parts = []
        for i, (where, at) in enumerate(pieces):
            read = data[i * size : (i + 1) * size]
            parts.append(self._origin(warp, where, at, read) or self.graph.const(int.from_bytes(read, "little"), size))
        known = any(one.op != "const" for one in parts)
        self._set_lane(warp, operand, lane, self.graph.concat(parts) if known else None)

    def scattered(self, warp: Warp, operand: Operand, lane: int, where: Place, data: bytes, *, at: int) -> None:
        """Memory gets the origin of a part of a register."""
        notes = self._notes(warp, operand)
        whole = None if notes is None else notes[lane]
        self._keep(warp, where, 0, None if whole is None else self.graph.slice(whole, at, len(data)), data)

    def multiplied(self, warp: Warp, one: Multiplication) -> None:
        """Each element of D is a node over C's element, a row of A and a column of B, both in the order of k."""
        a, b, c = (self._fragment(warp, fragment) for fragment in (one.a, one.b, one.c))
        (rows, depth), columns = one.a.bits.shape, one.b.bits.shape[1]
        found: list[list[list[Node]]] = [[[] for _ in range(LANES)] for _ in one.results]
        for number, (register, lane, _) in enumerate(one.c.places):
            row, column = divmod(number, columns)
            args = [c[number], *a[row * depth : (row + 1) * depth], *b[column::columns]]
            # two halves of one register come in ascending order of their column, which is that of their bits
            found[register][lane].append(self.graph.node("mma", args, (one.variant,), one.c.width // 8))
        assert rows * columns == len(one.c.places)
        for operand, lanes in zip(one.results, found, strict=True):
            self._set(warp, operand, [self.graph.concat(parts) for parts in lanes], FULL)

    def hidden(self, warp: Warp, step: Step, mask: int) -> None:
        """Results get one origin of which nothing is known, so that they are no constants either."""
        self.sunk |= self._shared
        self._shared = {}
        for operand in step.results:
            self._set(warp, operand, [self._unknown(TYPE_BITS[operand.type] // 8)] * LANES, mask)

    def lost(self, buffer: str, address: int, written: Mapping[int, int]) -> None:
        """Bytes of a buffer were written by what was not followed.

        Args:
            buffer: its name.
            address: of its first byte.
            written: offset -> the byte that is there now.
        """
        unknown = self._unknown(1)
        for offset, byte in written.items():
            self._bytes["global", 0, 0, address + offset] = (unknown, 0, byte)
        for place in [one for one in self.outputs if one[0] == buffer and written.keys() & range(one[1], sum(one[1:]))]:
            del self.outputs[place]

    def _unknown(self, size: int) -> Node:
        return self.graph.node("not followed", (), None, size)

    def _fragment(self, warp: Warp, fragment: Fragment) -> list[Node]:
        notes = [self._notes(warp, one) for one in fragment.operands]
        size, nodes = fragment.width // 8, []
        for bits, (register, lane, bit) in zip(fragment.bits.reshape(-1).tolist(), fragment.places, strict=True):
            known = notes[register]
            whole = None if known is None else known[lane]
            nodes.append(self.graph.const(bits, size) if whole is None else self.graph.slice(whole, bit // 8, size))
        return nodes

    def _notes(self, warp: Warp, operand: Operand) -> list[Node | None] | None:
        """Origins of a source in all lanes, cut to its type; None if it has none in any."""
        if operand.kind != "reg":
            return None
        nodes: list[Node | None] | None = warp.notes.get(operand.register)
        if nodes is None:
            return None
        size = TYPE_BITS[operand.type] // 8
        return [None if one is None else self.graph.resized(one, size) if one.size != size else one for one in nodes]

    def _set(self, warp: Warp, operand: Operand, nodes: Sequence[Node | None], mask: int) -> None:
        for lane in lanes_of(mask):
            self._set_lane(warp, operand, lane, nodes[lane])

    def _set_lane(self, warp: Warp, operand: Operand, lane: int, node: Node | None) -> None:
        if not operand.register or operand.type == "pred":
            return
        known = warp.notes.get(operand.register)
        if known is None:
            if node is None:
                return
            known = warp.notes[operand.register] = [None] * LANES
        known[lane] = node

    @staticmethod
    def _key(warp: Warp, where: Place, at: int) -> Key:
        owner = (
            0
            if where.owner == "global"
            else warp.grid.ctas[where.number].linear
            if where.owner == "shared"
            else warp.cta.linear
        )
        lane = warp.id * LANES + where.number if where.owner == "local" else 0
        return where.owner, owner, lane, where.at + at

    def _keep(self, warp: Warp, where: Place, at: int, node: Node | None, data: bytes) -> None:
        if node is not None and where.owner == "shared":
            self._shared[node.id] = node
        for i, byte in enumerate(data):
            key = self._key(warp, where, at + i)
            if node is None:
                self._bytes.pop(key, None)
            else:
                self._bytes[key] = (node, i, byte)
        region = warp.grid.memory.find(where.at + at) if where.owner == "global" else None
        if region is not None:
            place = (region.name, where.at + at - region.address, len(data))
            self.outputs[place] = node or self.graph.const(int.from_bytes(data, "little"), len(data))

    def _origin(self, warp: Warp, where: Place, at: int, data: bytes) -> Node | None:
        """The origin of bytes just read; None where nothing is known of any of them."""
        known = [self._bytes.get(self._key(warp, where, at + i)) for i in range(len(data))]
        # A host may have written to global memory between two launches: then the byte is no longer what was noted.
        known = [one if one is not None and one[2] == byte else None for one, byte in zip(known, data, strict=True)]
        first = known[0]
        if (
            first is not None
            and first[0].size == len(data)
            and all(one is not None and one[0] is first[0] and one[1] == i for i, one in enumerate(known))
        ):
            return first[0]
        region = warp.grid.memory.find(where.at + at) if where.owner == "global" else None
        named = region is not None and not region.name.startswith(_ANONYMOUS)
        if not named and all(one is None for one in known):
            return None
        parts = []
        for i, (one, byte) in enumerate(zip(known, data, strict=True)):
            if one is not None:
                parts.append(self.graph.slice(one[0], one[1], 1))
            elif named and region is not None:
                parts.append(self.graph.element(region.name, where.at + at + i - region.address, 1))
            else:
                parts.append(self.graph.const(byte, 1))
        return self.graph.concat(parts)


def _written(step: Step) -> str:
    return step.results[0].register if step.results else ""
