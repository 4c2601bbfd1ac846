"""Approximate functions of constants, and divisions by constants, as ptxas computes them when it compiles.

Found with probes (ptxas 12.9.86 and 13.3.33 agree): `rcp`, `rsqrt`, `sqrt`, `ex2` and `lg2.approx` of a constant become
the function evaluated in double and rounded to float32 (also in the 31 of 40 probes, for `rcp`, where the instruction
itself returns another value); `div.full` and `div.approx` by a constant become a multiplication by the rounded
reciprocal, with the instruction's own scaling ahead of it. `tanh.approx` of a constant stays. Of exact arithmetic only
the product is followed, because neither `x * 1` nor a constant is a product that a sum could fuse.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from equiv.emulator.dataflow import written
from equiv.emulator.ptx import Immediate, Instruction, Kernel, Operand, Register

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "rcp": lambda x: 1.0 / x,
    "rsqrt": lambda x: 1.0 / math.sqrt(x),
    "sqrt": math.sqrt,
    "ex2": lambda x: 2.0**x,
    "lg2": math.log2,
}
_MOVES = frozenset({"mov.b32", "mov.f32", "mov.u32", "mov.s32"})
_ONE, _MINUS_ONE = 0x3F80_0000, 0xBF80_0000
_LARGE, _MIN_NORMAL = 2.0**126, 2.0**-126


def fold(kernel: Kernel) -> tuple[Kernel, list[tuple[Instruction, Instruction]]]:
    """The kernel with such instructions replaced, and the pairs (old, new).

    A constant is an immediate, or a register written once, by a move of an immediate or an instruction replaced here.
    """
    times_written: dict[str, int] = {}
    for one in kernel.instructions:
        for name in written(one):
            times_written[name] = times_written.get(name, 0) + 1
    known: dict[str, int] = {}
    changes: list[tuple[Instruction, Instruction]] = []
    instructions: list[Instruction] = []
    registers = dict(kernel.registers)
    first: list[int] = []
    for one in kernel.instructions:
        first.append(len(instructions))
        new = _replacement(one, known, registers)
        if new:
            changes.append((one, new[-1]))
        last = new[-1] if new else one
        if last.opcode in _MOVES and last.guard is None and isinstance(last.operands[0], Register):
            name, value = last.operands[0].name, _bits(last.operands[1], known)
            if value is not None and times_written[name] == 1:
                known[name] = value
        instructions += new or [one]
    first.append(len(instructions))
    labels = {label: first[index] for label, index in kernel.labels.items()}
    return replace(kernel, instructions=tuple(instructions), labels=labels, registers=registers), changes


def _bits(operand: Operand, known: dict[str, int]) -> int | None:
    if isinstance(operand, Register):
        return known.get(operand.name)
    return operand.bits & 0xFFFF_FFFF if isinstance(operand, Immediate) and operand.kind != "f64" else None


def _value(bits: int) -> float:
    return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def _immediate(value: float) -> Immediate:
    return Immediate(int.from_bytes(struct.pack("<f", value), "little"), "f32")


def _ordinary(value: float) -> bool:
    """Neither zero, subnormal, infinite nor NaN: of those the instruction's own special cases hold."""
    return _MIN_NORMAL <= abs(value) < math.inf


def _fits(value: float) -> bool:
    """Is it, rounded to float32, an ordinary number for certain?"""
    return _MIN_NORMAL <= abs(value) < 2.0**127


def _replacement(one: Instruction, known: dict[str, int], registers: dict[str, str]) -> list[Instruction]:
    head, *modifiers = one.opcode.split(".")
    if one.opcode == "mul.f32":
        return _product(one, [_bits(operand, known) for operand in one.operands[1:]])
    if modifiers[-1:] != ["f32"] or not {"approx", "full"}.intersection(modifiers):
        return []
    bits = _bits(one.operands[-1], known)
    if bits is None:
        return []
    value, ftz = _value(bits), "ftz" in modifiers
    if head == "div":
        return _division(one, value, known, registers, ftz=ftz, full="full" in modifiers)
    if head not in _FUNCTIONS or not _ordinary(value) or (value < 0 and head in {"rsqrt", "sqrt", "lg2"}):
        return []
    if head == "ex2" and not -126.0 <= value < 128.0:
        return []
    result = _FUNCTIONS[head](value)
    if result and not _fits(result):
        return []
    return [replace(one, opcode="mov.f32", operands=(one.operands[0], _immediate(result)))]


def _product(one: Instruction, factors: list[int | None]) -> list[Instruction]:
    """A product of two constants, or of anything by one or minus one."""
    target, *operands = one.operands
    for bits, other in zip(factors, reversed(operands), strict=True):
        if bits == _ONE:
            return [replace(one, opcode="mov.f32", operands=(target, other))]
        if bits == _MINUS_ONE:
            return [replace(one, opcode="neg.f32", operands=(target, other))]
    first, second = (None if bits is None else _value(bits) for bits in factors)
    if first is None or second is None or not _ordinary(first) or not _ordinary(second):
        return []
    product = first * second  # exact: 48 bits
    return [replace(one, opcode="mov.f32", operands=(target, _immediate(product)))] if _fits(product) else []


def _division(
    one: Instruction, divisor: float, known: dict[str, int], registers: dict[str, str], *, ftz: bool, full: bool
) -> list[Instruction]:
    if not _ordinary(divisor) and not (divisor and abs(divisor) < _MIN_NORMAL and not ftz):
        return []
    target, dividend, _ = one.operands
    opcode = "mul.ftz.f32" if ftz else "mul.f32"
    scale = 1.0
    if abs(divisor) > _LARGE:
        if not full:
            return []
        scale = 0.25
    elif abs(divisor) < _MIN_NORMAL:
        scale = 2.0**24
    reciprocal = _immediate(1.0 / (divisor * scale))
    if scale == 1.0:
        multiply = replace(one, opcode=opcode, operands=(target, dividend, reciprocal))
        return ([] if ftz else _product(multiply, [_bits(dividend, known), reciprocal.bits])) or [multiply]
    scaled = Register(f"%scaled{len(registers)}")
    registers[scaled.name] = "f32"
    return [
        replace(one, opcode=opcode, operands=(scaled, dividend, _immediate(scale))),
        replace(one, opcode=opcode, operands=(target, scaled, reciprocal)),
    ]
