"""Everything that an element of an output was made of: a graph of executed instructions, down to what was loaded.

Only values are followed, no addresses and no conditions. A graph has at most `MOST` nodes; the nearest come first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from equiv.errors import UsageError
from equiv.trail.flow import made_of
from equiv.trail.memory import GLOBAL, Bytes
from equiv.trail.place import bytes_of
from equiv.trail.played import Written
from equiv.trail.site import site

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.trail.log import Operand
    from equiv.trail.played import Played, View
    from equiv.trail.site import Site

MOST = 20_000
_GROUP = 4
_CONTENDED = "when other CTAs of the launch store what is read"


@dataclass(slots=True)
class Node:
    """What one execution left in one register of one lane.

    Attributes:
        register: "" of a store.
        bits: its value; width: how many bits.
        made: numbers of the nodes that it was made of. used: of those that were made of it.
        loaded: memory that it was read from and that no recorded store had written.
        unseen: what else it may depend on, in words.
    """

    view: View
    event: int
    lane: int
    register: str
    bits: int
    width: int
    made: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    loaded: list[Bytes] = field(default_factory=list)
    unseen: str = ""


class Slice:
    """What an element was made of.

    Args:
        played: a play.
        output: name of a logical output.
        index: of the element.

    Attributes:
        nodes: number 0, 1, ... are the stores that left the element, then nearest first.
        cut: whether there are more than `MOST`.

    Raises:
        UsageError: no recorded store reached the element.
    """

    def __init__(self, played: Played, output: str, index: tuple[int, ...]) -> None:
        self.played = played
        self.nodes: list[Node] = []
        self.cut = False
        self._known: dict[tuple[int, int, int, int, str], int] = {}
        self._pending: deque[int] = deque()
        played.restore()
        places = bytes_of(played, output, index)
        if not places:
            raise UsageError(f"no store that can be followed reached {output}{list(index)}")
        for at in places:
            for piece in played.written(at, 1):
                if isinstance(piece, Written):
                    self._store(piece, None)
        while self._pending:
            self._expand(self._pending.popleft())

    def site(self, number: int) -> Site:
        """The execution of a node."""
        node = self.nodes[number]
        return site(self.played, node.view, node.event, node.lane)

    def read(self) -> npt.NDArray[np.int64]:
        """Spans of global memory it was made of, (address, bytes), `[n, 2]`; if cut: all that its clusters read."""
        if not self.cut:
            spans = [(one.address, one.size) for node in self.nodes for one in node.loaded if one.space == GLOBAL]
            return np.array(spans, np.int64).reshape(-1, 2)
        views = {id(node.view): node.view for node in self.nodes}
        return np.concatenate([view.memory.read(GLOBAL) for view in views.values()])

    def path(self, number: int) -> list[int]:
        """Nodes from a store down to a node, by the fewest steps."""
        before: dict[int, int] = {number: -1}
        pending = deque([number])
        while pending:
            one = pending.popleft()
            if not self.nodes[one].used:
                found = [one]
                while before[found[-1]] >= 0:
                    found.append(before[found[-1]])
                return found
            for user in self.nodes[one].used:
                if user not in before:
                    before[user] = one
                    pending.append(user)
        return [number]

    def _node(self, view: View, event: int, lane: int, register: str) -> int | None:
        log = view.log
        key = (view.launch, log.thread(event)[0], event, lane, register)
        number = self._known.get(key)
        if number is None:
            if len(self.nodes) >= MOST:
                self.cut = True
                return None
            held = next((one for one in log.operands(event) if not one.before and one.register == register), None)
            width = 0 if held is None else held.lane_bytes * 8 or 1
            bits = 0 if held is None else log.value(event, held, lane)
            number = self._known[key] = len(self.nodes)
            self.nodes.append(Node(view, event, lane, register, bits, width))
            self._pending.append(number)
        return number

    def _link(self, user: int | None, number: int | None) -> None:
        if user is not None and number is not None and number not in self.nodes[user].made:
            self.nodes[user].made.append(number)
            self.nodes[number].used.append(user)

    def _operand(self, user: int, view: View, event: int, operand: Operand, lane: int) -> None:
        before = view.log.definition(event, lane, operand.register) if operand.register else None
        if before is not None:
            self._link(user, self._node(view, before, lane, operand.register))

    def _store(self, piece: Written, user: int | None) -> None:
        """A store that left bytes: what it stored becomes what `user`, or the store itself, was made of."""
        view, event = self.played.whole(piece.view, piece.store.event, piece.store.lane)
        store = piece.store
        if store.source is not None:  # a copy: what it copied
            target = user if user is not None else self._node(view, event, store.lane, "")
            if target is not None:
                self._memory(target, view, event, Bytes(store.source.space, store.source.address, piece.size))
            return
        target = self._node(view, event, store.lane, "") if user is None or store.operand is None else user
        self._link(user if target is not user else None, target)
        if target is not None and store.operand is not None:
            self._operand(target, view, event, store.operand, store.lane)

    def _memory(self, user: int, view: View, event: int, where: Bytes) -> None:
        if where.space == GLOBAL:
            for piece in self.played.written(where.address, where.size, (view, event)):
                if isinstance(piece, Written):
                    self._store(piece, user)
                else:
                    self.nodes[user].loaded.append(Bytes(GLOBAL, where.address + piece[0], piece[1]))
            if self.played.contended(where, view):
                unseen = self.nodes[user].unseen
                self.nodes[user].unseen = f"{unseen}, {_CONTENDED}" if unseen else _CONTENDED
            return
        for first, size, store in view.memory.pieces(where, event):
            if store is None:
                self.nodes[user].loaded.append(Bytes(where.space, where.address + first, size))
            else:
                self._store(Written(first, size, view, store), user)

    def _expand(self, number: int) -> None:
        node = self.nodes[number]
        if not node.register:
            return
        made = made_of(node.view.log, node.event, node.lane, node.register)
        node.unseen = made.unseen
        matrix = node.view.log.instruction(node.event).opcode.startswith("mma.")
        for operand, lane in made.registers:
            if operand.slot.kind != "address" and not (matrix and _apart(operand.slot.name, lane, node.lane)):
                self._operand(number, node.view, node.event, operand, lane)
        for where in made.memory:
            self._memory(number, node.view, node.event, where)


def _apart(name: str, lane: int, result: int) -> bool:
    """Whether a fragment's lane has no part in the results of another: rows of A, columns of B, C's own."""
    if name[0] == "a":
        return lane // _GROUP != result // _GROUP
    if name[0] == "b":
        return lane // _GROUP // 2 != result % _GROUP
    return lane != result
