"""What instructions mean to the search for races (csrc/race.h), read off their opcodes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from equiv.emulator.ptx import Immediate

if TYPE_CHECKING:
    from equiv.emulator.ptx import Instruction

# In the order of Action in csrc/observer.h.
ACTIONS = (
    "none", "read", "write", "atomic", "copy", "mbarrier init", "mbarrier use", "wgmma", "tensor", "tensor commit",
    "fence", "proxy fence", "copy commit", "copy wait", "copy wait all", "bulk commit", "bulk wait", "wgmma commit",
    "wgmma wait",
)  # fmt: skip
_FIRST_WRAPPED, _WRITE = ACTIONS.index("fence"), ACTIONS.index("write")
# By the start of the opcode; the first that fits counts.
_PREFIXES = (
    ("ldmatrix.", "read"), ("stmatrix.", "write"), ("tensormap.replace.", "write"), ("tcgen05.alloc.", "write"),
    ("mbarrier.init.", "mbarrier init"), ("mbarrier.inval.", "write"), ("mbarrier.pending_count.", "none"),
    ("mbarrier.", "mbarrier use"), ("tcgen05.commit.", "tensor commit"),
    ("tcgen05.mma.", "tensor"), ("tcgen05.cp.", "tensor"), ("wgmma.mma_async.", "wgmma"),
    ("wgmma.commit_group.", "wgmma commit"), ("wgmma.wait_group.", "wgmma wait"),
    ("cp.async.bulk.commit_group", "bulk commit"), ("cp.async.bulk.wait_group", "bulk wait"),
    ("cp.async.bulk.", "none"),
    ("cp.async.commit_group", "copy commit"), ("cp.async.wait_group", "copy wait"),
    ("cp.async.wait_all", "copy wait all"),
    ("cp.async.mbarrier.arrive.", "mbarrier use"), ("cp.async.", "copy"),
    ("fence.proxy.async", "proxy fence"), ("fence.proxy.", "none"), ("fence.", "fence"), ("membar.", "fence"),
    ("st.async.", "none"), ("red.async.", "none"), ("atom.", "atomic"), ("red.", "atomic"),
)  # fmt: skip
_ORDERING = {"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"}


class Info(ctypes.Structure):
    """`Info` of csrc/observer.h."""

    _fields_ = [
        ("run", ctypes.c_void_p), ("action", ctypes.c_uint32), ("relaxed", ctypes.c_uint32), ("value", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]  # fmt: skip


def action(opcode: str) -> str:
    """What an instruction does to shared memory or to the order of accesses; one of `ACTIONS`.

    Loads and stores that can order others' accesses (`volatile`, `acquire`, `release`, `relaxed`) count as atomic.
    """
    for prefix, meaning in _PREFIXES:
        if opcode.startswith(prefix):
            return meaning
    base, *mods = opcode.split(".")
    if base in {"ld", "st"}:
        return "atomic" if _ORDERING.intersection(mods) else "read" if base == "ld" else "write"
    return "none"


def describe(instruction: Instruction, run: int) -> Info:
    """An instruction for the search; `run`: address of its handler."""
    meaning = action(instruction.opcode)
    first = instruction.operands[0] if instruction.operands else None
    value = first.bits if meaning.endswith("wait") and isinstance(first, Immediate) else 0
    relaxed = int(meaning != "atomic" and "relaxed" in instruction.opcode.split("."))
    return Info(run, ACTIONS.index(meaning), relaxed, value, 0)


def wrapped(info: Info) -> bool:
    """Whether the search runs the instruction through a handler of its own."""
    return bool(info.action >= _FIRST_WRAPPED or info.action == _WRITE)
