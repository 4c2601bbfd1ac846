"""Two ways of playing one case: the first instruction whose result departs though what it read does not.

From an element that differs the way back leads through what differs: from a result to those operands that are not
alike, to the instructions that made these, in both plays side by side. It ends where an instruction read the same and
gave something else, where bytes of memory were last written by other stores, or where the plays took other ways
through the code. Of all ends the first one executed is the departure.

Plays of the same code (schedules, one changed instruction) are compared thread by thread and turn by turn. Plays of two
images (versions, architectures) are compared operand by operand, wherever an instruction stands and whoever executes
it; two instructions of different names end the way: there the two versions part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from equiv.errors import UsageError
from equiv.trail.flow import made_of
from equiv.trail.memory import GLOBAL, SPACES
from equiv.trail.place import bytes_of
from equiv.trail.played import Written
from equiv.trail.site import Site, site

if TYPE_CHECKING:
    from equiv.trail.log import Operand
    from equiv.trail.memory import Bytes
    from equiv.trail.played import Played, View

MOST_STEPS = 50_000


@dataclass(frozen=True, slots=True)
class Point:
    """An event of one play in one lane."""

    view: View
    event: int
    lane: int

    @property
    def key(self) -> tuple[int, int, int, int, bool]:
        """What tells it from other points of its play."""
        cta, _ = self.view.log.thread(self.event)
        return self.view.launch, cta, self.event, self.lane, self.view.whole


@dataclass(frozen=True, slots=True)
class End:
    """Where the way back ends.

    Attributes:
        why: in words.
        sites: in each of the plays; None where there is no instruction.
        order: of execution in the first play.
    """

    why: str
    sites: tuple[Site | None, Site | None]
    order: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Departure:
    """What was found about one differing element.

    Attributes:
        output, index, bits: the element and its two patterns. count, total: elements of that output that differ.
        stores: the instructions that stored it.
        ends: of the way back, first executed first; the first one is the departure.
        steps: pairs of executions looked at. cut: whether there were more than `MOST_STEPS`.
    """

    output: str
    index: tuple[int, ...]
    bits: tuple[int, int]
    count: int
    total: int
    stores: tuple[Site | None, Site | None]
    ends: tuple[End, ...]
    steps: int
    cut: bool = False


def element(one: Played, other: Played, output: str | None, index: tuple[int, ...] | None) -> tuple[str, tuple[int, ...]] | None:
    """The first differing element, of the output and at the index asked for; None: nothing differs.

    Raises:
        UsageError: no such output, or no such element.
    """
    known = one.outputs
    if output is not None and output not in known:
        raise UsageError(f"no output {output!r}; known: {', '.join(known)}")
    undefined = one.scene.pair.undefined(one.scene.case, one.scene.inputs)
    for name in known if output is None else (output,):
        differs = np.asarray(known[name] != other.outputs[name])
        if name in undefined:
            differs &= ~np.asarray(undefined[name], np.bool_)
        if index is not None:
            _check(name, index, known[name].shape)
            return name, index
        found = np.argwhere(differs)
        if len(found):
            return name, tuple(int(at) for at in found[0])
    return None


def _check(name: str, index: tuple[int, ...], shape: tuple[int, ...]) -> None:
    inside = len(index) == len(shape) and all(0 <= at < size for at, size in zip(index, shape, strict=True))
    if not inside:
        raise UsageError(f"output {name!r} has shape {shape}: no element {index}")


def departure(one: Played, other: Played, output: str, index: tuple[int, ...]) -> Departure:
    """The way back from an element in two plays of one case, or of two versions of it.

    Args:
        one: a play; its scene holds what it left (it is the last one played, or the only one of its scene).
        other: the one to compare it with.
        output: name of a logical output. index: of the element.

    Raises:
        UsageError: no recorded store reached the element in one of the plays.
    """
    walk = _Walk(one, other)
    stores = walk.begin(output, index)
    walk.run()
    differs = np.asarray(one.outputs[output] != other.outputs[output])
    ends = tuple(sorted(walk.ends, key=lambda end: end.order))
    bits = (int(one.outputs[output][index]), int(other.outputs[output][index]))
    return Departure(
        output, index, bits, int(differs.sum()), differs.size, stores, ends, len(walk.seen), bool(walk.pending)
    )


class _Walk:
    """The way back through two plays."""

    def __init__(self, one: Played, other: Played) -> None:
        self.plays = (one, other)
        self.strict = _same_code(one, other)
        self.pending: list[tuple[Point, Point]] = []
        self.seen: set[object] = set()
        self.ends: list[End] = []

    def begin(self, output: str, index: tuple[int, ...]) -> tuple[Site | None, Site | None]:
        """Starts at the stores that left an element."""
        places = [_places(play, output, index) for play in self.plays]
        if not any(places):
            raise UsageError(f"no store that can be followed reached {output}{list(index)}, in neither play")
        if not all(places):
            number = 0 if places[0] else 1
            point = self._point(number, self._stored(number, places[number])[0])
            self._alone(number, point)
            found = self._site(number, point)
            return (found, None) if number == 0 else (None, found)
        left = [self._stored(number, some) for number, some in enumerate(places)]
        for ours, theirs in zip(*left, strict=False):
            self._stores(ours, theirs)
        return tuple(self._site(number, self._point(number, found[0])) for number, found in enumerate(left))  # type: ignore[return-value]

    def run(self) -> None:
        """Goes back until nothing is left that differs, or too much was looked at."""
        while self.pending and len(self.seen) < MOST_STEPS:
            self._step(*self.pending.pop())

    def _stored(self, number: int, places: list[int]) -> list[Written]:
        play = self.plays[number]
        return [piece for at in places for piece in play.written(at, 1) if isinstance(piece, Written)]

    def _point(self, number: int, one: Written) -> Point:
        """The store's execution within all that its cluster did."""
        point = Point(one.view, one.store.event, one.store.lane)
        if one.view.whole:
            return point
        found = self._twin(number, point)
        assert found is not None  # plays repeat each other
        return found

    def _twin(self, number: int, point: Point) -> Point | None:
        """The same step in one of the plays, if that comes to it."""
        log = point.view.log
        cta, warp = log.thread(point.event)
        view = self.plays[number].cluster(point.view.launch, cta)
        turn = log.turn(point.event, point.lane)
        event = view.log.nth(log.pc(point.event), cta, warp, point.lane, turn)
        return None if event is None else Point(view, event, point.lane)

    def _site(self, number: int, point: Point | None) -> Site | None:
        return None if point is None else site(self.plays[number], point.view, point.event, point.lane)

    def _end(self, why: str, one: Point | None, other: Point | None) -> None:
        at = one or other
        order = (0, 0) if at is None else (at.view.launch, at.event)
        self.ends.append(End(why, (self._site(0, one), self._site(1, other)), order))

    def _aligned(self, one: Point, other: Point) -> bool:
        """Whether two points are the same step of the two plays."""
        logs = one.view.log, other.view.log
        if not self.strict:
            return logs[0].instruction(one.event).opcode == logs[1].instruction(other.event).opcode
        if (one.view.launch, one.lane) != (other.view.launch, other.lane):
            return False
        if logs[0].pc(one.event) != logs[1].pc(other.event) or logs[0].thread(one.event) != logs[1].thread(other.event):
            return False
        return logs[0].turn(one.event, one.lane) == logs[1].turn(other.event, other.lane)

    def _push(self, one: Point, other: Point) -> None:
        key = (one.key, other.key)
        if key not in self.seen:
            self.seen.add(key)
            self.pending.append((one, other))

    def _step(self, one: Point, other: Point) -> None:
        """From two results that differ to what of their operands does."""
        points = one, other
        made = [made_of(point.view.log, point.event, point.lane) for point in points]
        changed = _changed(one, other, spelling=self.strict)
        same_form = all(len(getattr(made[0], name)) == len(getattr(made[1], name)) for name in ("registers", "memory"))
        if not same_form or (self.strict and changed):
            self._changed(one, other)
            return
        pairs = list(zip(made[0].registers, made[1].registers, strict=True))
        values = [tuple(point.view.log.value(point.event, *side) for point, side in zip(points, pair, strict=True)) for pair in pairs]
        differ = [pair for pair, (ours, theirs) in zip(pairs, values, strict=True) if ours != theirs]
        if _commutes(one) and sorted(ours for ours, _ in values) == sorted(theirs for _, theirs in values):
            differ = []
        for ours, theirs in differ:
            self._back(points, (ours, theirs))
        if differ:
            return
        if not made[0].memory:
            unseen = f"; it also depends on what is not followed: {made[0].unseen}" if made[0].unseen else ""
            self._end(f"reads the same and makes another result{unseen}", one, other)
        for ours, theirs in zip(made[0].memory, made[1].memory, strict=True):
            self._memory(points, (ours, theirs))

    def _changed(self, one: Point, other: Point) -> None:
        """Two instructions at one place that are not alike: is what they read, register by register?"""
        differ = False
        for operand, lane in made_of(one.view.log, one.event, one.lane).registers if self.strict else ():
            if not operand.register:
                continue
            before = [_before(point, operand.register, lane) for point in (one, other)]
            if before[0] is None or before[1] is None or not self._aligned(before[0], before[1]):
                continue
            values = [_result(point, operand.register) for point in before if point is not None]
            if values[0] != values[1]:
                differ = True
                self._push(before[0], before[1])
        if not differ:
            self._end("another instruction", one, other)

    def _back(self, points: tuple[Point, Point], operands: tuple[tuple[Operand, int], tuple[Operand, int]]) -> None:
        """From operands that differ to the instructions that made them."""
        (ours, lane), (theirs, their_lane) = operands
        if not ours.register and not theirs.register:
            self._end("other constants or places", *points)
            return
        before = [
            _before(point, one.register, side) if one.register else None
            for point, (one, side) in zip(points, ((ours, lane), (theirs, their_lane)), strict=True)
        ]
        if before[0] is None or before[1] is None:
            self._end(f"{ours.register or ours.place.name} is made in one of the two only", *points)
        elif self._aligned(before[0], before[1]):
            self._push(before[0], before[1])
        elif self.strict:
            self._parted(before[0], before[1])
        else:
            self._end("made by other instructions", before[0], before[1])

    def _memory(self, points: tuple[Point, Point], places: tuple[Bytes, Bytes]) -> None:
        """From bytes that differ to the stores that left them."""
        left = [self._left(number, point, where) for number, (point, where) in enumerate(zip(points, places, strict=True))]
        space = SPACES[places[0].space]
        if not any(left):
            log = points[0].view.log
            opaque = [log.program.kernel.instructions[pc] for pc in points[0].view.memory.opaque]
            how = ", ".join(dict.fromkeys(f"{one.opcode} (PTX line {one.line})" for one in opaque)) or "no store that was recorded"
            self._end(f"reads {space} memory that differs, written by what is not followed: {how}", *points)
        elif not all(left):
            self._end(f"reads {space} memory that only one of the two has written by then", *points)
        else:
            for ours, theirs in zip(*left, strict=False):
                self._stores(ours, theirs)

    def _left(self, number: int, point: Point, where: Bytes) -> list[Written]:
        if where.space == GLOBAL:
            found = self.plays[number].written(where.address, where.size, (point.view, point.event))
            return sorted((one for one in found if isinstance(one, Written)), key=lambda one: one.first)
        pieces = point.view.memory.pieces(where, point.event)
        return [Written(first, size, point.view, store) for first, size, store in pieces if store is not None]

    def _stores(self, ours: Written, theirs: Written) -> None:
        """From two stores of bytes that differ to what they stored."""
        points = self._point(0, ours), self._point(1, theirs)
        if not self._aligned(*points):
            if not self.strict:
                self._end("stored by other instructions", *points)
            elif not self._alone(0, points[0]) and not self._alone(1, points[1]):
                self._end("the same bytes, last written by different stores", *points)
            return
        sources = ours.store.source, theirs.store.source
        if sources[0] is not None and sources[1] is not None:  # copies: on to where they read
            self._memory(points, (replace(sources[0], size=ours.size), replace(sources[1], size=theirs.size)))
            return
        operands = ours.store.operand, theirs.store.operand
        if operands[0] is None or operands[1] is None:
            self._push(*points)
            return
        both = (operands[0], ours.store.lane), (operands[1], theirs.store.lane)
        values = [point.view.log.value(point.event, *one) for point, one in zip(points, both, strict=True)]
        if values[0] == values[1] or (self.strict and _changed(*points, spelling=True)):
            self._push(*points)
        else:
            self._back(points, both)

    def _alone(self, number: int, point: Point) -> bool:
        """A store that left bytes in one play only: does it go elsewhere in the other, or never happen?"""
        twin = self._twin(1 - number, point) if self.strict else None
        pair = (point, twin) if number == 0 else (twin, point)
        if pair[0] is None or pair[1] is None:
            self._end("only one of the two stores here", *pair)
            return False
        bases = [[one for one in made_of(side.view.log, side.event, side.lane).registers if one[0].slot.kind == "address"] for side in pair if side]
        values = [[side.view.log.value(side.event, *one) for one in some] for side, some in zip(pair, bases, strict=True) if side]
        if values[0] == values[1] and not _changed(pair[0], pair[1], spelling=True):
            return False
        self._push(pair[0], pair[1])
        return True

    def _parted(self, one: Point, other: Point) -> None:
        """A register was last written at other places: where did the lane's ways part?"""
        for number, point in enumerate((one, other)):
            theirs = self.plays[1 - number].programs
            pc, log = point.view.log.pc(point.event), (other, one)[number].view.log
            if theirs and log.program.kernel.instructions[pc] != point.view.log.instruction(point.event):
                twin = self._twin(1 - number, point)
                self._end("another instruction", *((point, twin) if number == 0 else (twin, point)))
                return
        split = _split(one, other)
        if split is None:
            self._end("made by other instructions", one, other)
            return
        pc, events = split
        instructions = [point.view.log.program.kernel.instructions[pc] for point in (one, other)]
        places = [replace(point, event=event) for point, event in zip((one, other), events, strict=True)]
        guard = instructions[0].guard
        before = [None if guard is None else _before(point, guard, point.lane) for point in places]
        if instructions[0] == instructions[1] and before[0] is not None and before[1] is not None and self._aligned(before[0], before[1]):
            self._push(before[0], before[1])
        else:
            self._end("the two take other ways through the code", places[0], places[1])


def _places(play: Played, output: str, index: tuple[int, ...]) -> list[int]:
    play.restore()
    return bytes_of(play, output, index)


def _same_code(one: Played, other: Played) -> bool:
    """Whether the launches of both are of the same code, but for single instructions."""
    return one.scene is other.scene


def _changed(one: Point, other: Point, *, spelling: bool) -> bool:
    """Whether two instructions are not the same; `spelling`: operands count."""
    ours, theirs = one.view.log.instruction(one.event), other.view.log.instruction(other.event)
    return ours.opcode != theirs.opcode or (spelling and ours.operands != theirs.operands)


def _commutes(point: Point) -> bool:
    return point.view.log.instruction(point.event).opcode.split(".")[0] in {"add", "mul", "min", "max", "and", "or", "xor"}


def _before(point: Point, register: str, lane: int) -> Point | None:
    """The execution that last wrote a register ahead of a point."""
    event = point.view.log.definition(point.event, lane, register)
    return None if event is None else replace(point, event=event, lane=lane)


def _result(point: Point, register: str) -> int | None:
    """What an execution left in a register."""
    log = point.view.log
    operand = next((one for one in log.operands(point.event) if not one.before and one.register == register), None)
    return None if operand is None else log.value(point.event, operand, point.lane)


def _split(one: Point, other: Point) -> tuple[int, tuple[int, int]] | None:
    """Where a lane's ways part: the instruction that only one of them executed, and the event that follows in each."""
    ways = [_way(one), _way(other)]
    count = min(len(way) for way in ways)
    pcs = [point.view.log.column("pc")[way[:count]] for point, way in zip((one, other), ways, strict=True)]
    parts = np.flatnonzero(pcs[0] != pcs[1])
    if not len(parts):
        return None
    at = int(parts[0])
    pc = min(int(pcs[0][at]), int(pcs[1][at]))
    return pc, (int(ways[0][at]), int(ways[1][at]))


def _way(point: Point) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    log = point.view.log
    cta, warp = log.thread(point.event)
    mine = (log.column("cta") == cta) & (log.column("warp") == warp)
    mine &= (log.column("mask") >> np.uint32(point.lane) & 1).astype(bool)
    return np.flatnonzero(mine)

