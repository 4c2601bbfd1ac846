"""What a result was made of: registers of which lanes, and memory.

Registers are followed whole: of a result packed from two values both count. What is not followed is said to be so:
tensor memory, operands of `wgmma` and `tcgen05.mma` in shared memory, tensor copies, the carry flag, what a barrier
reduces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.emulator.layout import LANES
from equiv.trail.memory import mods, named, reads, vector
from equiv.trail.site import line_of

if TYPE_CHECKING:
    from equiv.trail.log import Log, Operand
    from equiv.trail.memory import Bytes

_ALL_LANES = frozenset({"redux", "vote", "match", "mma", "movmatrix"})
_FILL_TENSOR = ("tcgen05.mma.", "tcgen05.cp.", "tcgen05.st.")
_UNSEEN = {
    "wgmma": "operands in shared memory",
    "tcgen05": "tensor memory",
    "mbarrier": "when others arrive",
    "elect": "which lanes are there",
    "activemask": "which lanes are there",
    "bar": "what a barrier reduces",
    "barrier": "what a barrier reduces",
    "addc": "the carry",
    "subc": "the carry",
    "madc": "the carry",
    "atom": "memory before it",
}


@dataclass(frozen=True, slots=True)
class Made:
    """What an instruction read for a result in one lane.

    Attributes:
        registers: (operand, lane) of what it read, registers and special values.
        memory: bytes that it read.
        unseen: what else it may depend on, in words, or "".
    """

    registers: tuple[tuple[Operand, int], ...]
    memory: tuple[Bytes, ...] = ()
    unseen: str = ""


def made_of(log: Log, event: int, lane: int, result: str = "") -> Made:
    """What the results of an event in a lane were made of; `result`: only the one of this register."""
    operands = [one for one in log.operands(event) if one.before]
    decoded = log.decoded(event)
    assert decoded.shape is not None
    base = decoded.shape.entry.base
    held = [one for one in operands if one.at >= 0]
    if base == "shfl":
        return Made(((named(operands, "a"), _partner(log, event, lane)), *_same(held, lane, "b", "c")))
    if base in _ALL_LANES:
        mask = log.mask(event)
        values = [one for one in held if one.slot.name != "mask"]
        return Made(tuple((one, other) for one in values for other in range(LANES) if mask >> other & 1))
    if base in {"ld", "ldmatrix"}:
        return _loaded(log, event, lane, result)
    return Made(tuple((one, lane) for one in held), (), _unseen(log, base))


def _unseen(log: Log, base: str) -> str:
    """What else a result may depend on; of tensor memory also the instructions that wrote it."""
    known = _UNSEEN.get(base, "")
    if base != "tcgen05":
        return known
    kernel = log.program.kernel
    makers = [one for pc in sorted(log.by_pc) if (one := kernel.instructions[pc]).opcode.startswith(_FILL_TENSOR)]
    return f"{known}, written at {', '.join(dict.fromkeys(map(line_of, makers)))}" if makers else known


def _loaded(log: Log, event: int, lane: int, result: str) -> Made:
    operands = log.operands(event)
    pieces = reads(log, event, lane)
    results = vector(operands, "d", before=False)
    decoded = log.decoded(event)
    assert decoded.shape is not None
    if decoded.shape.entry.base == "ldmatrix":
        chosen = [i for i, one in enumerate(results) if result in {"", one.register}]
        base = named(operands, "a")
        addresses = [(base, 8 * i + row) for i in chosen for row in range(8)] if base.at >= 0 else []
        return Made(tuple(addresses), tuple(pieces[2 * i + half] for i in chosen for half in (0, 1)))
    slots = [slot for slot in decoded.shape.slots if slot.out]
    names = {one.slot.name for one in results if result in {"", one.register}}
    memory = tuple(piece for slot, piece in zip(slots, pieces, strict=True) if slot.name in names)
    held = [one for one in operands if one.before and one.at >= 0]
    return Made(tuple((one, lane) for one in held), memory)


def _same(held: list[Operand], lane: int, *names: str) -> list[tuple[Operand, int]]:
    return [(one, lane) for one in held if one.slot.name in names]


def _partner(log: Log, event: int, lane: int) -> int:
    """The lane that a shuffle took the value from."""
    operands = log.operands(event)
    by = log.value(event, named(operands, "b"), lane) & 31
    clamp = log.value(event, named(operands, "c"), lane)
    segment = clamp >> 8 & 31
    limit = lane & segment | clamp & 31 & ~segment
    mode = mods(log.decoded(event))["mode"]
    if mode == "up":
        other, fits = lane - by, lane - by >= limit
    else:
        other = {"down": lane + by, "bfly": lane ^ by, "idx": lane & segment | by & ~segment & 31}[mode]
        fits = other <= limit
    return other & 31 if fits else lane
