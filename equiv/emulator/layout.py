"""Where registers lie in a warp's register file.

A register that lives inside one basic block shares its place with others that live there at other times; that keeps
the file of a warp small enough for the processor's caches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from equiv.emulator.isa.table import TYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.emulator.bytecode import Decoded
    from equiv.emulator.ptx import Kernel

LANES = 32
_LINE = 64


@dataclass
class Layout:
    """Offsets in bytes: of used registers, of special values by (name, value, bits), of the always-true predicate."""

    offset: dict[str, int] = field(default_factory=dict)
    specials: dict[tuple[str, int, int], int] = field(default_factory=dict)
    always: int = 0
    size: int = _LINE

    def take(self, nbytes: int) -> int:
        """The place of another register; each begins a cache line."""
        at = self.size
        self.size += (nbytes + _LINE - 1) // _LINE * _LINE
        return at


def register_bytes(ptx_type: str) -> int:
    """Bytes of 32 lanes of a register of a PTX type; a predicate is one mask."""
    bits = TYPE_BITS[ptx_type]
    return 4 if bits == 1 else bits // 8 * LANES


def assign_registers(kernel: Kernel, instructions: Sequence[Decoded]) -> Layout:
    """Give every register and special value that is used a place."""
    layout = Layout()
    for one in instructions:
        for place in one.places:
            key = (place.name, place.value, place.bits)
            if place.kind == "special" and key not in layout.specials:
                layout.specials[key] = layout.take(place.bits // 8 * LANES)
    guards = [one.guard for one in kernel.instructions] + [None]
    uses = [[*one.inputs, *([guard] if guard else [])] for one, guard in zip(instructions, guards, strict=True)]
    blocks = _blocks(kernel, instructions)
    block_of: dict[str, int] = {}
    defined_first: dict[str, bool] = {}
    last: dict[str, int] = {}
    for at, one in enumerate(instructions):
        for name in uses[at]:
            defined_first.setdefault(name, False)
        for name in one.outputs:
            defined_first.setdefault(name, True)
        for name in (*uses[at], *one.outputs):
            last[name] = at
            block_of[name] = blocks[at] if block_of.get(name, blocks[at]) == blocks[at] else -1
    # What is written later than the instruction says (wgmma's accumulators) must not share its place with anything.
    held = {name for one in instructions for name in one.outputs & one.inputs if one.writes_late}
    local = {name for name, block in block_of.items() if block >= 0 and defined_first[name]} - held
    predicates = [name for name in block_of if kernel.registers[name] == "pred"]
    at = layout.take(4 * len(predicates))
    layout.offset.update({name: at + 4 * number for number, name in enumerate(predicates)})
    for name in block_of:
        if name not in local and name not in layout.offset:
            layout.offset[name] = layout.take(register_bytes(kernel.registers[name]))
    free: dict[int, list[int]] = {}
    for at, one in enumerate(instructions):
        for name in one.outputs:
            if name not in layout.offset:
                size = register_bytes(kernel.registers[name])
                pool = free.setdefault(size, [])
                layout.offset[name] = pool.pop() if pool else layout.take(size)
        # Freed after the instruction: its destinations must not lie on its sources.
        for name in {*uses[at], *one.outputs}:
            if last[name] == at and name in local and kernel.registers[name] != "pred":
                free.setdefault(register_bytes(kernel.registers[name]), []).append(layout.offset[name])
    return layout


def _blocks(kernel: Kernel, instructions: Sequence[Decoded]) -> list[int]:
    """Number of the basic block of every instruction."""
    leaders = set(kernel.labels.values())
    blocks, number = [], 0
    for at, one in enumerate(instructions):
        if at in leaders:
            number += 1
        blocks.append(number)
        if one.flow:
            number += 1
    return blocks
