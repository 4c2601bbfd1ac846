"""Single executions of instructions, and the ways of lanes through the code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.origins import COMMUTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from equiv.emulator.ptx import Instruction
    from equiv.trail.log import Operand
    from equiv.trail.played import View


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


def unlike(one: Point, other: Point, *, spelling: bool) -> bool:
    """Whether two instructions are not the same; `spelling`: operands count."""
    ours, theirs = one.view.log.instruction(one.event), other.view.log.instruction(other.event)
    return ours.opcode != theirs.opcode or (spelling and ours.operands != theirs.operands)


def alike(one: Instruction, other: Instruction) -> bool:
    """Whether two instructions do the same to the same registers, wherever they stand."""
    ours, theirs = ((each.opcode, each.operands, each.guard, each.guard_negated) for each in (one, other))
    return ours == theirs


def exchanged(point: Point, registers: Sequence[tuple[Operand, int]], values: Sequence[tuple[int, int]]) -> list[int]:
    """Places of the operands in which two executions differ by their order only, an order that does not matter.

    Args:
        point: one of the two.
        registers: what it read.
        values: of each of these the bits in both.
    """
    if point.view.log.instruction(point.event).opcode.split(".")[0] not in COMMUTES:
        return []
    places = [number for number, (one, _) in enumerate(registers) if one.slot.name in {"a", "b"}]
    ours, theirs = (sorted(values[number][side] for number in places) for side in (0, 1))
    return places if ours == theirs else []


def definition(point: Point, register: str, lane: int, thread: tuple[int, int] | None = None) -> Point | None:
    """The execution that last wrote a register ahead of a point."""
    event = point.view.log.definition(point.event, lane, register, thread)
    return None if event is None else replace(point, event=event, lane=lane)


def results(point: Point) -> set[int]:
    """All that an execution left in registers."""
    log = point.view.log
    return {log.value(point.event, one, point.lane) for one in log.operands(point.event) if not one.before}


def result(point: Point, register: str) -> int | None:
    """What an execution left in a register."""
    log = point.view.log
    operand = next((one for one in log.operands(point.event) if not one.before and one.register == register), None)
    return None if operand is None else log.value(point.event, operand, point.lane)


def split(one: Point, other: Point) -> tuple[int, tuple[int, int], tuple[int, int]] | None:
    """Where a lane's ways part: the instruction that only one executed, the next event in each, CTA and warp."""
    thread = next(point.view.log.thread(point.event) for point in (one, other) if point.event < len(point.view.log))
    ways = [way(point, *thread) for point in (one, other)]
    pcs = [point.view.log.column("pc")[way] for point, way in zip((one, other), ways, strict=True)]
    count = min(map(len, pcs))
    parts = np.flatnonzero(pcs[0][:count] != pcs[1][:count])
    if not len(parts) and len(pcs[0]) == len(pcs[1]):
        return None
    at = int(parts[0]) if len(parts) else count
    pc = min(int(some[at]) for some in pcs if at < len(some))
    first, second = (
        int(way[at]) if at < len(way) else len(point.view.log) for point, way in zip((one, other), ways, strict=True)
    )
    return pc, (first, second), thread


def way(point: Point, cta: int, warp: int) -> npt.NDArray[np.int64]:
    """Events of a lane, in order."""
    log = point.view.log
    mine = (log.column("cta") == cta) & (log.column("warp") == warp)
    mine &= (log.column("mask") >> np.uint32(point.lane) & 1).astype(bool)
    return np.flatnonzero(mine)
