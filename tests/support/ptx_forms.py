"""Makes instructions out of table entries: every spelling, with register operands."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from equiv.emulator.isa.table import TYPE_BITS, Entry, OperandSpec
from equiv.emulator.ptx import Address, Immediate, Instruction, Kernel, Operand, Pair, Register, Special, Symbol, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

TYPES = ("pred", "b8", "b16", "b32", "b64")
REGISTERS = {f"%{kind}_{number}": kind for kind in TYPES for number in range(300)}


def kernel() -> Kernel:
    """A kernel with registers of every width, a label and a branch table."""
    return Kernel("k", (), (), {"here": 0}, REGISTERS, (), {}, {"list": ("here", "here")})


def instructions(entry: Entry) -> Iterator[Instruction]:
    """Every spelling of an entry (hints: the last only; long lists: their ends), its operands in registers."""
    choices = []
    for group in entry.groups:
        spellings = group.choices + (("",) if group.optional else ())
        spellings = spellings if len(spellings) < 20 else (spellings[0], spellings[-1])
        choices.append(spellings[-1:] if group.name in entry.hints else spellings)
    for spelling in itertools.product(*choices):
        mods = {group.name: word for group, word in zip(entry.groups, spelling, strict=True)}
        mods |= entry.derived(mods) if entry.derived else {}
        opcode = ".".join([entry.base, *(word for word in spelling if word)])
        numbers = itertools.count()
        yield Instruction(opcode, tuple(_operand(entry, spec, mods, numbers) for spec in entry.specs))


def _operand(entry: Entry, spec: OperandSpec, mods: dict[str, str], numbers: Iterator[int]) -> Operand:
    kind = entry.resolve(spec.type, mods)
    if spec.kind == "address":
        base = Register(f"%b64_{next(numbers)}")
        if not spec.second:
            return Address(base, 16)
        length = int(entry.resolve(spec.length, mods).removesuffix("d"))
        return Address(base, 0, (Vector(tuple(_register("s32", numbers) for _ in range(length))),))
    if spec.kind in {"imm", "count"}:
        return Immediate(4, "int")
    if spec.kind == "clock":
        return Special("%clock64" if TYPE_BITS[mods["type"]] == 64 else "%clock")
    if spec.kind in {"label", "table"}:
        return Symbol("here" if spec.kind == "label" else "list")
    many = entry.resolve(spec.length, mods)
    if many:
        return Vector(tuple(_register(kind, numbers) for _ in range(int(many.lstrip("vx")))))
    first = _register(kind, numbers)
    return Pair(first, _register("pred", numbers)) if spec.second else first


def _register(kind: str, numbers: Iterator[int]) -> Register:
    bits = TYPE_BITS[kind]
    return Register(f"%{'pred' if bits == 1 else f'b{bits}'}_{next(numbers)}")
