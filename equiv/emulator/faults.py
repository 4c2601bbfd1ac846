"""What went wrong in a launch, as an error that names kernel, line, CTA, warp, lane and address."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.emulator.matrix_problems import PROBLEMS
from equiv.emulator.memory import Region, nearest
from equiv.errors import DeadlockError, EmulatorError, IllegalAccessError

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.emulator.ptx import Kernel

WAITING_SHOWN = 64


class Fault(ctypes.Structure):
    """`Fault` of csrc/runtime.h."""

    _fields_ = [
        ("kind", ctypes.c_uint32), ("pc", ctypes.c_uint32), ("lane", ctypes.c_uint32), ("size", ctypes.c_uint32),
        ("address", ctypes.c_uint64), ("cta", ctypes.c_uint32), ("warp", ctypes.c_uint32), ("mask", ctypes.c_uint32),
        ("detail", ctypes.c_uint32),
    ]  # fmt: skip


class Waiting(ctypes.Structure):
    """`Waiting` of csrc/engine.c: one fragment of a warp that waits."""

    _fields_ = [
        ("cta", ctypes.c_uint32), ("warp", ctypes.c_uint32), ("pc", ctypes.c_uint32), ("mask", ctypes.c_uint32),
        ("wait", ctypes.c_uint32), ("id", ctypes.c_uint32), ("need", ctypes.c_uint32), ("arrived", ctypes.c_uint32),
        ("missing", ctypes.c_uint32), ("expected", ctypes.c_uint32), ("bytes", ctypes.c_int32),
    ]  # fmt: skip


# FaultKind of csrc/runtime.h.
(_, OUT_OF_BOUNDS, MISALIGNED, READ_ONLY, SHARED_BOUNDS, LOCAL_BOUNDS, PARAM_BOUNDS, TRAP, BARRIER, BUDGET, DEADLOCK,
 VALUE, MATRIX, MBARRIER, COPY) = range(15)  # fmt: skip
_BARRIER, _LANES, _WARP_SYNC, _CLUSTER, _MBARRIER = range(1, 6)
_SPACES = ("global", "global", "shared", "local", "parameter")
_BARRIER_PROBLEMS = (
    "barrier {0} does not exist (0 to 15)",
    "barrier {0} with {1} threads: not a multiple of 32, or more than the CTA has",
    "barrier {0} with {1} threads, while others wait there with another number",
    "a thread arrives at the cluster barrier again before the phase is over",
)
_MBARRIER_PROBLEMS = (
    "no mbarrier has been initialised at shared address {address:#x} (offset {offset})",
    "{size} arrivals at the mbarrier at offset {offset}: 1 to 1048575 are possible",
    "{arrivals} arrivals at the mbarrier at offset {offset}, which waits for {pending} only",
    "the mbarrier at offset {offset} counts {bytes} bytes: its limits are -1048575 and 1048575",
    "an mbarrier at {address:#x}, which is not in shared memory",
    "{size} arrivals dropped from the mbarrier at offset {offset}, which has fewer",
)
_COPY_PROBLEMS = (
    "a bulk copy of {size} bytes: must be a multiple of 16",
    "the tensor map at {address:#x} has an element type that is not supported",
    "the tensor map at {address:#x} is interleaved, which is not supported",
    "the tensor map at {address:#x} has a base address that is no multiple of 16",
    "the tensor map at {address:#x} has boxes with rows that are no multiple of 16 bytes",
    "the tensor map at {address:#x} has rank {size}, not that of the instruction",
    "the tensor map at {address:#x} has boxes with rows longer than its swizzle",
    "multicast to CTAs {size:#x}, but the cluster has fewer",
    "{size} bytes of elements cannot be reduced in that way (tensor map at {address:#x})",
    "a tensor map has no dimension {size}",
    "tensormap.cp_fenceproxy of {size} bytes: only 128 are possible",
    "the tensor map at {address:#x} rounds to tf32, which is not supported",
    "the tensor map at {address:#x} fills integers with NaN",
    "the first coordinate {signed} of a tensor copy: its bytes must be a multiple of 16",
    "a store to coordinate {signed} of a tensor: it must not be negative",
)
_VALUE_PROBLEMS = ("a copy of {0} bytes: cp.async copies 4, 8 or 16", "branch index {0} is beyond the target list",
                   "st.bulk with the value {0}: only 0 is possible")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stop:
    """How a launch stopped: the fault; after a deadlock what waits (the first of `waiting_count`); bytes of shared."""

    fault: Fault
    waiting: list[Waiting]
    waiting_count: int
    shared: int


def describe(kernel: Kernel, grid: tuple[int, int, int], regions: tuple[Region, ...], stop: Stop) -> EmulatorError:
    """The error for a fault that the C engine reported."""
    fault = stop.fault
    if fault.kind == DEADLOCK:
        return DeadlockError(_deadlock(kernel, grid, stop.waiting, stop.waiting_count))
    where = f"{kernel.name}: {_at(kernel, fault.pc)}, {_cta(fault.cta, grid)} warp {fault.warp} lane {fault.lane}"
    access = f"{'write' if fault.detail == 1 else 'read'} of {fault.size} bytes at {fault.address:#x}"
    offset = (fault.address & 0xFF_FFFF) - 0x400
    texts: dict[int, Callable[[], str]] = {
        OUT_OF_BOUNDS: lambda: f"{access}, {nearest(regions, fault.address, fault.size)}",
        MISALIGNED: lambda: f"{_SPACES[fault.detail]} address {fault.address:#x} is not a multiple of {fault.size}",
        READ_ONLY: lambda: f"{access}, {nearest(regions, fault.address, fault.size)}",
        SHARED_BOUNDS: lambda: (
            f"{fault.size} bytes at shared address {fault.address:#x} (CTA rank {fault.address >> 24},"
            f" offset {offset}); the CTA has {stop.shared} bytes"
        ),
        LOCAL_BOUNDS: lambda: f"{fault.size} bytes at offset {fault.address} are outside local memory",
        PARAM_BOUNDS: lambda: f"{fault.size} bytes at offset {fault.address} are outside the kernel's parameters",
        TRAP: lambda: "the kernel trapped",
        BARRIER: lambda: _BARRIER_PROBLEMS[fault.detail].format(fault.address, fault.size),
        BUDGET: lambda: f"still running after {fault.address} warp instructions, the budget of this launch",
        VALUE: lambda: _VALUE_PROBLEMS[fault.detail].format(fault.address),
        MATRIX: lambda: PROBLEMS[fault.detail].format(fault.address, fault.size),
        MBARRIER: lambda: _MBARRIER_PROBLEMS[fault.detail].format(
            address=fault.address,
            offset=offset,
            size=fault.size,
            arrivals=fault.size >> 16,
            pending=fault.size & 0xFFFF,
            bytes=ctypes.c_int32(fault.size).value,
        ),
        COPY: lambda: _COPY_PROBLEMS[fault.detail].format(
            address=fault.address, size=fault.size, signed=ctypes.c_int32(fault.size).value
        ),
    }
    kind = IllegalAccessError if OUT_OF_BOUNDS <= fault.kind <= PARAM_BOUNDS else EmulatorError
    return kind(f"{where}: {texts[fault.kind]()}")


def _at(kernel: Kernel, pc: int) -> str:
    """An instruction by its PTX line and, if known, the line of the kernel's source."""
    if pc >= len(kernel.instructions):
        return "end of the kernel"
    instruction = kernel.instructions[pc]
    source = "" if instruction.source is None else f" ({instruction.source[0]}:{instruction.source[1]})"
    return f"PTX line {instruction.line} `{instruction.opcode}`{source}"


def _cta(linear: int, grid: tuple[int, int, int]) -> str:
    return f"CTA ({linear % grid[0]}, {linear // grid[0] % grid[1]}, {linear // grid[0] // grid[1]})"


def _deadlock(kernel: Kernel, grid: tuple[int, int, int], waiting: list[Waiting], count: int) -> str:
    lines = []
    for one in waiting[:WAITING_SHOWN]:
        # A barrier is behind the instruction at which its lanes resume.
        pc = one.pc if one.wait in {_LANES, _MBARRIER} else one.pc - 1
        what = {
            _BARRIER: f"at barrier {one.id} for {one.need} threads, {one.arrived} have arrived",
            _LANES: f"for lanes {one.need & ~one.mask:#010x} to execute it with them",
            _WARP_SYNC: f"for lanes {one.need & ~one.mask:#010x} to reach bar.warp.sync",
            _CLUSTER: f"for phase {one.need} of the cluster barrier",
            _MBARRIER: _mbarrier(one),
        }[one.wait]
        lines.append(f"  {_cta(one.cta, grid)} warp {one.warp} lanes {one.mask:#010x} wait {what}: {_at(kernel, pc)}")
    more = [f"  and {count - WAITING_SHOWN} more"] if count > WAITING_SHOWN else []
    return "\n".join([f"{kernel.name}: deadlock, every warp waits", *lines, *more])


def _mbarrier(one: Waiting) -> str:
    """What an mbarrier still waits for, in words."""
    missing = []
    if one.missing:
        missing.append(f"{one.missing} of {one.expected} arrivals are missing")
    if one.bytes > 0:
        missing.append(f"{one.bytes} bytes are expected and have not come")
    if one.bytes < 0:
        missing.append(f"{-one.bytes} bytes have come that nothing expected")
    where = f"CTA rank {one.id >> 24}, offset {(one.id & 0xFF_FFFF) - 0x400}"
    return f"for parity {one.need} of the mbarrier at {where}: {' and '.join(missing) or 'nothing is missing'}"
