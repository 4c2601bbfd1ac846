"""Decoded instructions as the portable engine executes them: operands by register name, and what each lane computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.reference.exact import find as find_exact
from equiv.emulator.reference.floats import FLOATS, is_float, known
from equiv.emulator.reference.integers import INTEGERS
from equiv.emulator.reference.machine import FULL, LANES
from equiv.errors import UnknownInstructionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.emulator.bytecode import Decoded
    from equiv.emulator.ptx import Instruction
    from equiv.emulator.reference.machine import Warp

    Values = list[int]
    """One integer a lane: a bit pattern of the operand's type, or for a signed integer type its value."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One scalar operand.

    Attributes:
        kind: as in `equiv.emulator.shapes.Slot`, and `special`.
        type: PTX type, or the state space of an address.
        bits: width of the register.
        register: its name; of a `special` that of the special register; else empty.
        value: a constant, or the offset of a shared variable.
    """

    name: str
    kind: str
    type: str
    bits: int
    register: str = ""
    value: int = 0

    @property
    def signed(self) -> bool:
        """Whether its values are those of a signed integer type."""
        return self.type[0] == "s" and self.type[1:].isdigit()


@dataclass(frozen=True)
class Step:
    """One instruction, ready to execute.

    Attributes:
        mods: spelling of each group of modifiers.
        sources: operands that are read, addresses and their offsets among them; results: those that are written.
        targets: where a `brx` may go.
        lane: of a `lane` entry, all sources -> all results; None for what a warp does together.
        needs: name of the operand that says which lanes execute it together, or empty.
    """

    instruction: Instruction
    base: str
    mods: Mapping[str, str]
    sources: tuple[Operand, ...]
    results: tuple[Operand, ...]
    targets: tuple[str, ...] = ()
    lane: Callable[..., tuple[Values, ...]] | None = None
    needs: str = ""

    def operand(self, name: str) -> Operand | None:
        """The operand of that name, or None."""
        return next((one for one in (*self.sources, *self.results) if one.name == name), None)

    def source(self, warp: Warp, name: str) -> Values:
        """Values of a source by name.

        Raises:
            KeyError: there is none.
        """
        return self.read(warp, next(one for one in self.sources if one.name == name))

    @staticmethod
    def read(warp: Warp, operand: Operand) -> Values:
        """Values of a source in all lanes."""
        kind = operand.kind
        if kind in {"imm", "const", "offset", "absent"}:
            return [_typed([operand.value], operand)[0]] * LANES
        if kind == "special":
            return _typed(_special(warp, operand), operand)
        values = warp.registers.get(operand.register)
        if values is None:
            ones = (1 << max(operand.bits, 1)) - 1
            values = [1 if kind in {"pred", "not"} else ones] * LANES
        if kind == "not":
            return [1 - value for value in values]
        return values if kind in {"pred", "address"} else _typed(values, operand)

    @staticmethod
    def write(warp: Warp, operand: Operand, values: Values, mask: int) -> None:
        """Sets a result in the lanes of `mask`, cut to its type and extended to its register."""
        if not operand.register:
            return
        width = 1 if operand.type == "pred" else operand.bits
        bits = TYPE_BITS[operand.type]
        narrow = (1 << bits) - 1
        new = [int(value) & narrow for value in values]
        if bits < width and operand.signed:
            wide = (1 << width) - 1
            new = [(value ^ 1 << bits - 1) - (1 << bits - 1) & wide for value in new]
        if mask != FULL:
            old = warp.registers.get(operand.register) or [(1 << width) - 1] * LANES
            new = [value if mask >> lane & 1 else old[lane] for lane, value in enumerate(new)]
        warp.registers[operand.register] = new


def _typed(values: Values, operand: Operand) -> Values:
    """Register contents as values of the operand's type."""
    bits = TYPE_BITS.get(operand.type, 64)
    if operand.signed:
        top = 1 << bits - 1
        ones = (1 << bits) - 1
        return [((value & ones) ^ top) - top for value in values]
    if operand.kind == "reg" and bits >= operand.bits:
        return values
    ones = (1 << bits) - 1
    return [value & ones for value in values]


def _special(warp: Warp, operand: Operand) -> Values:
    key = (operand.register, operand.value)
    if key not in warp.special:
        grid = warp.grid
        warp.special[key] = [
            warp.value_of(operand.register, lane, operand.value, grid.shared_size, grid.config.dynamic_shared)
            for lane in range(LANES)
        ]
    return warp.special[key]


def prepare(instruction: Instruction, decoded: Decoded) -> Step | None:
    """A decoded instruction as a step; None for one without effect on values.

    Raises:
        UnknownInstructionError: the portable engine has no semantics for it.
    """
    if decoded.shape is None:
        return None
    entry, mods = decoded.shape.entry, dict(decoded.shape.mods)
    places = iter(decoded.places)
    sources: list[Operand] = []
    results: list[Operand] = []
    for slot in decoded.shape.slots:
        kind, register, value = slot.kind, "", 0
        if kind not in {"sink", "absent"}:
            place = next(places)
            if place.kind == "special":
                kind, register, value = "special", place.name, place.value
            else:
                register, value = place.name, place.value
                if kind == "address" and place.kind != "register":
                    register = ""
        elif slot.type == "pred" and kind == "absent":
            value = 1
        operand = Operand(slot.name, kind, slot.type, slot.bits, register, value)
        (results if slot.out else sources).append(operand)
    targets = tuple(place.name for place in places)
    needs = "mask" if entry.needs_lanes and "mask_" in entry.needs_lanes else "FULL" if entry.needs_lanes else ""
    lane = None
    if entry.kind == "lane":
        lane = _lane(instruction, entry.base, mods, tuple(results))
    return Step(instruction, entry.base, mods, tuple(sources), tuple(results), targets, lane, needs)


def unknown(instruction: Instruction) -> UnknownInstructionError:
    """The error for an instruction that the portable engine lacks."""
    return UnknownInstructionError(instruction.opcode, "the portable engine has no semantics for it", instruction.line)


def _lane(
    instruction: Instruction, base: str, mods: Mapping[str, str], results: tuple[Operand, ...]
) -> Callable[..., tuple[Values, ...]]:
    if base == "mov":
        return _move(results)
    if is_float(mods) and base not in {"selp", "slct"}:
        if base not in FLOATS or not known(base, mods):
            exact = find_exact(base, mods)
            if exact is None:
                raise unknown(instruction)
            return _by_lane(exact)
        vector = FLOATS[base](mods)

        def floats(*sources: Values) -> tuple[Values, ...]:
            found = vector(*(np.array(source, object if min(source) < 0 else np.uint64) for source in sources))
            several = found if isinstance(found, tuple) else (found,)
            return tuple(np.broadcast_to(one, (LANES,)).tolist() for one in several[: len(results)])

        return floats
    if base in INTEGERS:
        return _by_lane(INTEGERS[base](mods))
    raise unknown(instruction)


def _by_lane(scalar: Callable[..., Any]) -> Callable[..., tuple[Values, ...]]:
    """What one lane computes, in all lanes."""

    def lanes(*sources: Values) -> tuple[Values, ...]:
        if not sources:
            return ([scalar()] * LANES,)
        found: list[Any] = [scalar(*lane) for lane in zip(*sources, strict=True)]
        return tuple(map(list, zip(*found, strict=True))) if isinstance(found[0], tuple) else (found,)

    return lanes


def _move(results: tuple[Operand, ...]) -> Callable[..., tuple[Values, ...]]:
    """`mov`: a copy, or packing (first source in the low bits), or unpacking."""
    widths = [TYPE_BITS[one.type] for one in results]

    def move(*sources: Values) -> tuple[Values, ...]:
        if len(sources) > 1:
            bits = widths[0] // len(sources)
            packed = [
                sum((value & (1 << bits) - 1) << bits * i for i, value in enumerate(lane))
                for lane in zip(*sources, strict=True)
            ]
            return (packed,)
        return tuple([value >> width * i for value in sources[0]] for i, width in enumerate(widths))

    return move


def lanes_of(mask: int) -> list[int]:
    """The lanes of a mask, ascending."""
    return [lane for lane in range(LANES) if mask >> lane & 1]


def mask_of(predicate: Values) -> int:
    """A predicate's lanes as a mask."""
    return sum(1 << lane for lane, value in enumerate(predicate) if value) & FULL
