"""What went wrong in a launch, as an error that names kernel, line, CTA, warp, lane and address."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.emulator.matrix_problems import PROBLEMS
from equiv.emulator.memory import Region, nearest
from equiv.emulator.variables import describe as describe_shared
from equiv.errors import DeadlockError, EmulatorError, IllegalAccessError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from equiv.emulator.ptx import Kernel
    from equiv.emulator.variables import SharedVariable

WAITING_SHOWN = 64
NOTES = 64
_NEVER = 0xFFFF_FFFF
_PROXY, _LIFETIME = 2, 3
_WORDS = ("read", "write")


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
        ("expect", ctypes.c_uint32), ("complete", ctypes.c_uint32),
    ]  # fmt: skip


class Other(ctypes.Structure):
    """`Other` of csrc/runtime.h: the earlier access of a race."""

    _fields_ = [
        ("pc", ctypes.c_uint32), ("cta", ctypes.c_uint32), ("warp", ctypes.c_uint32), ("wrote", ctypes.c_uint32),
    ]  # fmt: skip


class Note(ctypes.Structure):
    """`Note` of csrc/checks.h."""

    _fields_ = [
        ("kind", ctypes.c_uint32), ("pc", ctypes.c_uint32), ("lane", ctypes.c_uint32), ("size", ctypes.c_uint32),
        ("address", ctypes.c_uint64), ("cta", ctypes.c_uint32), ("warp", ctypes.c_uint32),
    ]  # fmt: skip


# FaultKind of csrc/runtime.h.
(_, OUT_OF_BOUNDS, MISALIGNED, READ_ONLY, SHARED_BOUNDS, LOCAL_BOUNDS, PARAM_BOUNDS, TRAP, BARRIER, BUDGET, DEADLOCK,
 VALUE, MATRIX, MBARRIER, COPY, UNWRITTEN, PEER, RACE, REGISTER) = range(19)  # fmt: skip
_BARRIER, _LANES, _WARP_SYNC, _CLUSTER, _MBARRIER, _TENSOR = range(1, 7)
_SPACES = ("global", "global", "shared", "local", "parameter")
_BARRIER_PROBLEMS = (
    "barrier {0} does not exist (0 to 15)",
    "barrier {0} with {1} threads: not a multiple of 32, or more than the CTA has",
    "barrier {0} with {1} threads, while others wait there with another number",
    "a thread arrives at the cluster barrier again before the phase is over",
)
_MBARRIER_PROBLEMS = (
    "no mbarrier has been initialised at shared address {address:#x} ({offset})",
    "{size} arrivals at the mbarrier at {offset}: 1 to 1048575 are possible",
    "{arrivals} arrivals at the mbarrier at {offset}, which waits for {pending} only",
    "the mbarrier at {offset} counts {bytes} bytes: its limits are -1048575 and 1048575",
    "an mbarrier at {address:#x}, which is not in shared memory",
    "{size} arrivals dropped from the mbarrier at {offset}, which has fewer",
    "{size} bytes have come to the mbarrier at {offset} that nothing expected, and all its arrivals are there",
    "at the end of the CTA the mbarrier at {offset} {left}",
    "the mbarrier at {offset} is initialised once more; it was by {first}",
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
    "{size} bytes were still under way to or from shared memory when the CTA ended: nobody waited for them",
)
_VALUE_PROBLEMS = ("a copy of {0} bytes: cp.async copies 4, 8 or 16", "branch index {0} is beyond the target list",
                   "st.bulk with the value {0}: only 0 is possible",
                   "this lane is not in the membermask {0:#010x} that it executes the instruction with")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stop:
    """How a launch stopped: the fault, what waits after a deadlock (the first of `waiting_count`).

    Then bytes and variables of shared memory, the earlier access of a race, and the tracked registers.
    """

    fault: Fault
    waiting: list[Waiting]
    waiting_count: int
    shared: int
    variables: tuple[SharedVariable, ...] = ()
    other: Other | None = None
    registers: tuple[str, ...] = ()


def describe(kernel: Kernel, grid: tuple[int, int, int], regions: tuple[Region, ...], stop: Stop) -> EmulatorError:
    """The error for a fault that the C engine reported."""
    fault = stop.fault
    if fault.kind == DEADLOCK:
        return DeadlockError(_deadlock(kernel, grid, stop))
    where = f"{kernel.name}: {_at(kernel, fault.pc)}, {_cta(fault.cta, grid)} warp {fault.warp} lane {fault.lane}"
    access = f"{'write' if fault.detail == 1 else 'read'} of {fault.size} bytes at {fault.address:#x}"
    offset = _offset(fault.address, stop.variables)
    signed = ctypes.c_int32(fault.size).value
    texts: dict[int, Callable[[], str]] = {
        OUT_OF_BOUNDS: lambda: f"{access}, {nearest(regions, fault.address, fault.size)}",
        MISALIGNED: lambda: f"{_SPACES[fault.detail]} address {fault.address:#x} is not a multiple of {fault.size}",
        READ_ONLY: lambda: f"{access}, {nearest(regions, fault.address, fault.size)}",
        SHARED_BOUNDS: lambda: (
            f"{fault.size} bytes at shared address {fault.address:#x} (CTA rank {fault.address >> 24},"
            f" {offset}); the CTA has {stop.shared} bytes"
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
            bytes=signed,
            left=f"expects {signed} bytes more" if signed > 0 else f"has got {-signed} bytes that nothing expected",
            first=_at(kernel, fault.size),
        ),
        UNWRITTEN: lambda: f"read of {fault.size} bytes at {_shared(fault.address, stop.variables)}, never written",
        REGISTER: lambda: f"use of register {stop.registers[fault.size]} to which nothing was written in this lane",
        RACE: lambda: _race(kernel, grid, fault, stop),
        PEER: lambda: f"access to {_shared(fault.address, stop.variables)}, a CTA whose threads have all exited",
        COPY: lambda: _COPY_PROBLEMS[fault.detail].format(address=fault.address, size=fault.size, signed=signed),
    }
    illegal = OUT_OF_BOUNDS <= fault.kind <= PARAM_BOUNDS or fault.kind in {UNWRITTEN, PEER, REGISTER}
    kind = IllegalAccessError if illegal else EmulatorError
    return kind(f"{where}: {texts[fault.kind]()}")


def _race(kernel: Kernel, grid: tuple[int, int, int], fault: Fault, stop: Stop) -> str:
    """Both accesses of a race and what is missing between them."""
    why, other = fault.detail >> 1, stop.other
    if why == _LIFETIME or other is None:
        return f"nothing makes CTA rank {fault.address >> 24} of the cluster wait for this access before it exits"
    return (
        f"{_WORDS[fault.detail & 1]} of {_shared(fault.address, stop.variables)} after the {_WORDS[other.wrote]} by"
        f" {_at(kernel, other.pc)}, {_cta(other.cta, grid)} warp {other.warp}: "
        + ("no fence.proxy.async stands between them" if why == _PROXY else "nothing orders the two")
    )


_NOTES = {
    1: "{size} bytes of what is read at {shared} were never written",
    2: "{size} words of what is read of tensor memory at {address:#010x} were never written",
}


def notes(
    kernel: Kernel, grid: tuple[int, int, int], found: Sequence[Note], variables: tuple[SharedVariable, ...]
) -> tuple[str, ...]:
    """What the checker noted, in words."""
    return tuple(
        f"{kernel.name}: {_at(kernel, one.pc)}, {_cta(one.cta, grid)} warp {one.warp} lane {one.lane}: "
        + _NOTES[one.kind].format(size=one.size, address=one.address, shared=_shared(one.address, variables))
        for one in found
    )


def _offset(address: int, variables: tuple[SharedVariable, ...]) -> str:
    return describe_shared(variables, (address & 0xFF_FFFF) - 0x400)


def _shared(address: int, variables: tuple[SharedVariable, ...]) -> str:
    return f"shared address {address:#x} (CTA rank {address >> 24}, {_offset(address, variables)})"


def _at(kernel: Kernel, pc: int) -> str:
    """An instruction by its PTX line and, if known, the line of the kernel's source."""
    if pc >= len(kernel.instructions):
        return "end of the kernel"
    instruction = kernel.instructions[pc]
    source = "" if instruction.source is None else f" ({instruction.source[0]}:{instruction.source[1]})"
    return f"PTX line {instruction.line} `{instruction.opcode}`{source}"


def coordinates(linear: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """(x, y, z) of a CTA by its number in a grid."""
    return linear % grid[0], linear // grid[0] % grid[1], linear // grid[0] // grid[1]


def _cta(linear: int, grid: tuple[int, int, int]) -> str:
    return f"CTA {coordinates(linear, grid)}"


def _deadlock(kernel: Kernel, grid: tuple[int, int, int], stop: Stop) -> str:
    waiting, count = stop.waiting, stop.waiting_count
    lines = []
    for one in waiting[:WAITING_SHOWN]:
        # A barrier is behind the instruction at which its lanes resume.
        pc = one.pc if one.wait in {_LANES, _MBARRIER, _TENSOR} else one.pc - 1
        what = {
            _BARRIER: f"at barrier {one.id} for {one.need} threads, {one.arrived} have arrived",
            _LANES: f"for lanes {one.need & ~one.mask:#010x} to execute it with them",
            _WARP_SYNC: f"for lanes {one.need & ~one.mask:#010x} to reach bar.warp.sync",
            _CLUSTER: f"for phase {one.need} of the cluster barrier",
            _MBARRIER: _mbarrier(kernel, one, stop.variables) if one.wait == _MBARRIER else "",
            _TENSOR: f"for {one.id} columns of tensor memory in a row, {one.need} are free",
        }[one.wait]
        lines.append(f"  {_cta(one.cta, grid)} warp {one.warp} lanes {one.mask:#010x} wait {what}: {_at(kernel, pc)}")
    more = [f"  and {count - WAITING_SHOWN} more"] if count > WAITING_SHOWN else []
    return "\n".join([f"{kernel.name}: deadlock, every warp waits", *lines, *more])


def _mbarrier(kernel: Kernel, one: Waiting, variables: tuple[SharedVariable, ...]) -> str:
    """What an mbarrier still waits for, in words."""
    missing = []
    if one.missing:
        missing.append(f"{one.missing} of {one.expected} arrivals are missing")
    if one.bytes > 0:
        missing.append(f"{one.bytes} bytes are expected and have not come")
    if one.bytes < 0:
        missing.append(f"{-one.bytes} bytes have come that nothing expected")
    if one.bytes and one.expect != _NEVER:
        missing.append(f"bytes were last announced by {_at(kernel, one.expect)}")
    if one.bytes and one.complete != _NEVER:
        missing.append(f"bytes last came from {_at(kernel, one.complete)}")
    where = f"CTA rank {one.id >> 24}, {_offset(one.id, variables)}"
    return f"for parity {one.need} of the mbarrier at {where}: {', '.join(missing) or 'nothing is missing'}"
