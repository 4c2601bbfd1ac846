"""One instruction as one lane executed it, in words: where it is, what it read and made."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from equiv.emulator.faults import coordinates
from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.ptx_emitter import spelt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from equiv.emulator.ptx import Instruction
    from equiv.trail.log import Log, Operand
    from equiv.trail.played import Played, View


@dataclass(frozen=True, slots=True)
class Value:
    """An operand's value.

    Attributes:
        name: register or special register, or the constant itself. lane: whose it is.
        bits: pattern; width: how many of them count. type: PTX type.
        result: whether the instruction made it.
    """

    name: str
    lane: int
    bits: int
    width: int
    type: str
    result: bool

    @property
    def number(self) -> float | int | None:
        """The value of a float or an integer; None where the type says nothing."""
        if self.type in {"f32", "b32", "f16x2", "bf16x2"} and self.width == 32:
            return float(struct.unpack("<f", self.bits.to_bytes(4, "little"))[0])
        if self.type == "f64":
            return float(struct.unpack("<d", self.bits.to_bytes(8, "little"))[0])
        if self.type == "bf16":
            return float(struct.unpack("<f", (self.bits << 16).to_bytes(4, "little"))[0])
        return None


@dataclass(frozen=True, slots=True)
class Site:
    """One execution of an instruction by one lane.

    Attributes:
        launch: number of the launch. cta: (x, y, z). turn: how often the lane had executed it before.
        line: of the PTX. source: (file, line) of the kernel, or None.
        text: the instruction. values: of operands and results.
    """

    launch: int
    kernel: str
    cta: tuple[int, int, int]
    warp: int
    lane: int
    turn: int
    line: int
    source: tuple[str, int] | None
    text: str
    values: tuple[Value, ...]

    @property
    def code(self) -> str:
        """The kernel's source line, or "" where the PTX or the file does not say."""
        if self.source is None:
            return ""
        path, line = Path(self.source[0]), self.source[1]
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def site(played: Played, view: View, event: int, lane: int, others: Iterable[tuple[Operand, int]] = ()) -> Site:
    """The execution of an event in a lane; `others`: operands of other lanes that also count."""
    log, launch = view.log, played.launch(view.launch)
    cta, warp = log.thread(event)
    operands = [one for one in log.operands(event) if one.slot.kind not in {"offset", "const"}]
    values = [value_of(log, event, one, lane) for one in operands]
    values += [value_of(log, event, one, other) for one, other in others if other != lane]
    one = log.instruction(event)
    return Site(
        view.launch, launch.kernel, coordinates(cta, launch.grid), warp, lane, log.turn(event, lane), one.line,
        source_of(log, one), spelt(one), tuple(values),
    )  # fmt: skip


def source_of(log: Log, one: Instruction) -> tuple[str, int] | None:
    """Where an instruction is from; of a branch, where its condition is."""
    if one.opcode.startswith("bra") and one.guard:
        makers = log.writers.get(one.guard, ())
        if len(makers) == 1:
            return log.program.kernel.instructions[makers[0]].source
    return one.source


def line_of(one: Site | Instruction) -> str:
    """File and line of the kernel, or what is known instead."""
    return f"{one.source[0].rsplit('/', 1)[-1]}:{one.source[1]}" if one.source else f"PTX line {one.line}"


def value_of(log: Log, event: int, operand: Operand, lane: int) -> Value:
    """The value of an operand in a lane."""
    width = 1 if operand.slot.type == "pred" else min(TYPE_BITS.get(operand.slot.type, 64), operand.slot.bits or 64)
    bits = log.value(event, operand, lane) & (1 << width) - 1
    name = operand.register or operand.place.name or "constant"
    return Value(name, lane, bits, width, operand.slot.type, not operand.before)
