"""`Watched` of csrc/watched.h: what a launch looks at beside executing it, instruction by instruction."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.assignment import SHUFFLE, Tracking, origins

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from equiv.emulator.bytecode import ByteCode, Decoded


class Watched(ctypes.Structure):
    """`Watched` of csrc/watched.h."""

    _fields_ = [
        ("run", ctypes.c_void_p), ("shuffle", ctypes.c_void_p), ("at", ctypes.c_void_p),
        ("reads", ctypes.c_uint32), ("writes", ctypes.c_uint32), ("sources", ctypes.c_uint32),
        ("mode", ctypes.c_uint32), ("scratch", ctypes.c_uint32), ("guarded", ctypes.c_uint32),
        ("guard", ctypes.c_uint32), ("flip", ctypes.c_uint32),
    ]  # fmt: skip


def unmeasured(bytecode: ByteCode) -> dict[int, str]:
    """Index -> opcode of the instructions that no hardware has been compared with."""
    pairs = zip(bytecode.kernel.instructions, bytecode.instructions[:-1], strict=True)
    return {
        index: instruction.opcode + (" of three" if one.shape.entry.base in {"min", "max"} else "")
        for index, (instruction, one) in enumerate(pairs)
        if one.shape is not None and not one.shape.entry.measured
    }


def registers(bytecode: ByteCode) -> tuple[str, ...]:
    """The tracked registers in the order of their numbers, in words."""
    words = []
    for name in bytecode.shadows:
        first = [one for one in origins(bytecode.tracking, name) if one != name]
        words.append(f"{name}, made of {', '.join(first)}," if first else name)
    return tuple(words)


def guarded(bytecode: ByteCode, index: int) -> bool:
    """Whether it is in doubt that something was written to the guard of an instruction."""
    tracking = bytecode.tracking.get(index)
    return tracking is not None and bytecode.kernel.instructions[index].guard in tracking.reads


def table(
    bytecode: ByteCode, indices: set[int], runs: npt.NDArray[np.uint64]
) -> tuple[ctypes.Array[Watched], tuple[object, ...]]:
    """An entry for each instruction, those of `indices` filled in, and the memory they point into.

    Args:
        bytecode: the kernel.
        indices: of its instructions, which to fill in.
        runs: addresses of the handlers.
    """
    entries = (Watched * len(bytecode.instructions))()
    keep: list[object] = []
    numbers = {name: number for number, name in enumerate(bytecode.shadows)}
    for index in indices:
        tracking = bytecode.tracking.get(index, Tracking((), ()))
        own = bytecode.kernel.instructions[index].guard
        reads = [name for name in tracking.reads if name != own]
        if len(reads) < len(tracking.reads) and own is not None:
            reads.insert(0, own)
        at = [word for name in reads for word in (bytecode.shadows[name], numbers[name])]
        at += [bytecode.shadows[name] for name in (*tracking.writes, *tracking.sources)]
        words = np.array(at or [0], np.uint32)
        keep.append(words)
        guard, negated = bytecode.guards[index]
        again = None
        if tracking.mode == SHUFFLE and tracking.sources:
            again = _shuffle(bytecode.instructions[index], bytecode.arguments[index], bytecode.scratch)
            keep.append(again)
        shuffle = None if again is None else again.ctypes.data
        flip = 0xFFFF_FFFF if negated else 0
        counts = (len(reads), len(tracking.writes), len(tracking.sources), tracking.mode)
        guarding = (int(guarded(bytecode, index)), guard, flip)
        entries[index] = Watched(int(runs[index]), shuffle, words.ctypes.data, *counts, bytecode.scratch, *guarding)
    return entries, tuple(keep)


def _shuffle(one: Decoded, arguments: tuple[int, ...], scratch: int) -> npt.NDArray[np.uint64]:
    """The arguments of a shuffle with its value at `scratch` and its result behind that."""
    assert one.shape is not None
    slots = [slot for slot in one.shape.slots if slot.kind not in {"sink", "absent"}]
    moved: Mapping[str, int] = {"a": scratch, "d": scratch + 128}
    return np.array([moved.get(slot.name, given) for slot, given in zip(slots, arguments, strict=True)], np.uint64)
