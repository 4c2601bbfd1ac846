"""The way back through two plays, side by side; what it means is in `equiv.trail.between`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from equiv.errors import UsageError
from equiv.trail.flow import made_of
from equiv.trail.memory import GLOBAL, SPACES, writes
from equiv.trail.place import bytes_of
from equiv.trail.played import Written
from equiv.trail.point import Point, alike, definition, exchanged, result, results, split, unlike
from equiv.trail.site import Site, site

if TYPE_CHECKING:
    from equiv.trail.log import Operand
    from equiv.trail.memory import Bytes
    from equiv.trail.played import Played

MOST_STEPS = 5000
"""Pairs of executions that are looked at."""
MOST_ENDS = 300


@dataclass(frozen=True, slots=True)
class End:
    """Where the way back ends.

    Attributes:
        why: in words.
        sites: in each of the plays; None where there is no instruction.
        order: of execution in the first play.
        of: the play whose instruction is the departure, where only one has it.
    """

    why: str
    sites: tuple[Site | None, Site | None]
    order: tuple[int, int]
    of: int = 0

    @property
    def site(self) -> Site | None:
        """The instruction that departs."""
        return self.sites[self.of] or self.sites[1 - self.of]


class Walk:
    """The way back through two plays."""

    def __init__(self, one: Played, other: Played) -> None:
        self.plays = (one, other)
        self.strict = _same_code(one, other)
        self.pending: list[
            tuple[tuple[int, int, int], Point, Point]
        ] = []  # a heap: what was executed first comes first
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
        while self.pending and len(self.seen) < MOST_STEPS and len(self.ends) < MOST_ENDS:
            self._step(*heapq.heappop(self.pending)[1:])

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

    def _end(self, why: str, one: Point | None, other: Point | None, of: int = 0) -> None:
        at = one or other
        order = (0, 0) if at is None else (at.view.launch, at.event)
        self.ends.append(End(why, (self._site(0, one), self._site(1, other)), order, of))

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
            heapq.heappush(self.pending, ((one.view.launch, one.event, len(self.seen)), one, other))

    def _step(self, one: Point, other: Point) -> None:
        """From two results that differ to what of their operands does."""
        points = one, other
        made = [made_of(point.view.log, point.event, point.lane) for point in points]
        changed = unlike(one, other, spelling=self.strict)
        same_form = all(len(getattr(made[0], name)) == len(getattr(made[1], name)) for name in ("registers", "memory"))
        if not same_form or (self.strict and changed):
            self._unlike(one, other)
            return
        pairs = list(zip(made[0].registers, made[1].registers, strict=True))
        values = [
            (one.view.log.value(one.event, *ours), other.view.log.value(other.event, *theirs)) for ours, theirs in pairs
        ]
        same = exchanged(one, made[0].registers, values)
        differ = [
            pair for number, (pair, (ours, theirs)) in enumerate(zip(pairs, values, strict=True))
            if ours != theirs and number not in same
        ]  # fmt: skip
        for ours, theirs in differ:
            self._back(points, (ours, theirs))
        if differ:
            return
        if not made[0].memory:
            unseen = f"; it also depends on what is not followed: {made[0].unseen}" if made[0].unseen else ""
            self._end(f"reads the same and makes another result{unseen}", one, other)
        for places in zip(made[0].memory, made[1].memory, strict=True):
            self._memory(points, places)

    def _unlike(self, one: Point, other: Point) -> None:
        """Two instructions at one place that are not alike: is what they read, register by register?"""
        differ = False
        for operand, lane in made_of(one.view.log, one.event, one.lane).registers if self.strict else ():
            if not operand.register:
                continue
            before = [definition(point, operand.register, lane) for point in (one, other)]
            if before[0] is None or before[1] is None or not self._aligned(before[0], before[1]):
                continue
            values = [result(point, operand.register) for point in before if point is not None]
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
            definition(point, one.register, side) if one.register else None
            for point, (one, side) in zip(points, ((ours, lane), (theirs, their_lane)), strict=True)
        ]
        if before[0] is None or before[1] is None:
            self._end(f"{ours.register or ours.place.name} is made in one of the two only", *points)
        elif self._aligned(before[0], before[1]):
            self._push(before[0], before[1])
        elif self.strict:
            self._parted(before[0], before[1])
        else:
            self._more(before[0], before[1])

    def _more(self, one: Point, other: Point) -> None:
        """Other instructions made values that differ: is one of them made of the other, by an instruction more?"""
        made = [results(point) for point in (one, other)]
        read = [
            {
                point.view.log.value(point.event, *side)
                for side in made_of(point.view.log, point.event, point.lane).registers
            }
            for point in (one, other)
        ]
        more = [bool((read[number] - read[1 - number]) & made[1 - number]) for number in (0, 1)]
        if more[0] == more[1]:
            self._end("made by other instructions", one, other)
        else:
            number = 0 if more[0] else 1
            self._end(f"an instruction that only the {('first', 'second')[number]} has", one, other, number)

    def _memory(self, points: tuple[Point, Point], places: tuple[Bytes, Bytes]) -> None:
        """From bytes that differ to the stores that left them."""
        left = [
            self._left(number, point, where) for number, (point, where) in enumerate(zip(points, places, strict=True))
        ]
        space = SPACES[places[0].space]
        if not any(left):
            log = points[0].view.log
            opaque = [log.program.kernel.instructions[pc] for pc in points[0].view.memory.opaque]
            how = (
                ", ".join(dict.fromkeys(f"{one.opcode} (PTX line {one.line})" for one in opaque))
                or "no store that was recorded"
            )
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
        if self.strict and self._filled(points[0], ours) != self._filled(points[1], theirs):
            self._push(*points)  # copies of other lengths
            return
        sources = ours.store.source, theirs.store.source
        if sources[0] is not None and sources[1] is not None:  # copies: on to where they read
            if self.strict and sources[0].address != sources[1].address:
                self._push(*points)
                return
            self._memory(points, (replace(sources[0], size=ours.size), replace(sources[1], size=theirs.size)))
            return
        operands = ours.store.operand, theirs.store.operand
        if operands[0] is None or operands[1] is None:
            if sources[0] is not None or sources[1] is not None or self._filled(points[0], ours)[0] != "copy":
                self._push(*points)
            return  # else both filled it with zeros: this piece of what differs does not
        both = (operands[0], ours.store.lane), (operands[1], theirs.store.lane)
        values = [point.view.log.value(point.event, *one) for point, one in zip(points, both, strict=True)]
        if self.strict and unlike(*points, spelling=True):
            self._push(*points)
        elif values[0] != values[1]:  # else this piece of what differs does not
            self._back(points, both)

    @staticmethod
    def _filled(point: Point, one: Written) -> tuple[str, int]:
        """How a store writes, and of a copy the bytes behind the first that it copied, or filled with zeros."""
        how = writes(point.view.log.decoded(point.event))
        return how, one.store.byte + one.store.size if how in {"copy", "bulk"} else 0

    def _alone(self, number: int, point: Point) -> bool:
        """A store that left bytes in one play only: does it go elsewhere in the other, or never happen?"""
        twin = self._twin(1 - number, point) if self.strict else None
        pair = (point, twin) if number == 0 else (twin, point)
        if pair[0] is None or pair[1] is None:
            if not self.strict:
                self._end("only one of the two stores here", *pair)
                return True
            cta, _ = point.view.log.thread(point.event)
            view = self.plays[1 - number].cluster(point.view.launch, cta)
            missing = Point(view, len(view.log), point.lane)
            ways = (point, missing) if number == 0 else (missing, point)
            self._ways(*ways, "only one of the two stores here")
            return True
        bases = [
            [one for one in made_of(side.view.log, side.event, side.lane).registers if one[0].slot.kind == "address"]
            for side in pair
            if side
        ]
        values = [
            [side.view.log.value(side.event, *one) for one in some]
            for side, some in zip(pair, bases, strict=True)
            if side
        ]
        if values[0] == values[1] and not unlike(pair[0], pair[1], spelling=True):
            return False
        self._push(pair[0], pair[1])
        return True

    def _parted(self, one: Point, other: Point) -> None:
        """A register was last written at other places: where did the lane's ways part?"""
        for number, point in enumerate((one, other)):
            pc, log = point.view.log.pc(point.event), (other, one)[number].view.log
            if not alike(log.program.kernel.instructions[pc], point.view.log.instruction(point.event)):
                twin = self._twin(1 - number, point)
                self._end("another instruction", *((point, twin) if number == 0 else (twin, point)))
                return
        self._ways(one, other, "made by other instructions")

    def _ways(self, one: Point, other: Point, otherwise: str) -> None:
        """From two points of one lane to where its ways through the code part; `otherwise`: said if they do not."""
        parted = split(one, other)
        if parted is None:
            self._end(otherwise, one, other)
            return
        pc, events, thread = parted
        programs = [point.view.log.program.kernel.instructions for point in (one, other)]
        before = [
            None
            if programs[0][pc].guard is None
            else definition(replace(point, event=event), str(programs[0][pc].guard), point.lane, thread)
            for point, event in zip((one, other), events, strict=True)
        ]
        if (
            alike(programs[0][pc], programs[1][pc])
            and before[0] is not None
            and before[1] is not None
            and self._aligned(before[0], before[1])
        ):
            self._push(before[0], before[1])
            return
        sides = [
            replace(point, event=event) if event < len(point.view.log) else None
            for point, event in zip((one, other), events, strict=True)
        ]
        self._end("the two take other ways through the code", sides[0], sides[1])


def _places(play: Played, output: str, index: tuple[int, ...]) -> list[int]:
    play.restore()
    return bytes_of(play, output, index)


def _same_code(one: Played, other: Played) -> bool:
    """Whether the launches of both are of the same code, but for single instructions."""
    if one.scene is not other.scene:
        return False
    return all(len(one.programs[key].code) == len(other.programs[key].code) for key in one.programs)
