"""Runs a kernel's PTX on the CPU: `load` turns it into byte code, `launch` executes a grid of it.

The engine executes what it is given: an unmarked multiply and add stay two operations; contraction is done before, on
the PTX.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from equiv.emulator import backend, faults, matrix_unit, races, watched
from equiv.emulator.decode import decode
from equiv.emulator.inline import inline
from equiv.emulator.loading import check_launch, place_variables
from equiv.emulator.memory import Memory, Region
from equiv.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.emulator.bytecode import ByteCode
    from equiv.emulator.ptx import Kernel, Module

DEFAULT_BUDGET = 1 << 36
_BYTES = re.compile(r"(?:ld|st)(?!\.(?:param|global|local|const)\b).*\.[bus]8|st\.bulk\..*")
_COMMUNICATES = re.compile(r"atom\.|ld\.(?:relaxed|acquire|volatile|mmio)\b|ld(?:\.global)?\.(?:cv|cg)\b")


def communicates(kernel: Kernel) -> bool:
    """Whether CTAs may wait for each other through global memory: the kernel has loads that see others' stores."""
    return any(_COMMUNICATES.match(one.opcode) for one in kernel.instructions)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Shape of a launch: CTAs, threads a CTA, CTAs a cluster, each (x, y, z); dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared: int = 0


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """What a launch executed.

    Attributes:
        warp_instructions: instructions by warps; a wait that does not end at once counts each time it is tried.
        lane_instructions: instructions by active lanes.
        seconds: inside the engine.
        order_dependent: float additions to memory (`atom`, `red`, bulk reductions), by lanes or elements. The hardware
            leaves their order open, so that equal bits are not to be expected where several meet at one address.
        notes: what the checker saw that may be right and deserves a look, one an instruction.
        processor: seconds of the processor inside the engine; what other processes take does not count.
        unmeasured: opcodes it executed whose results rest on a published model, no hardware having been compared.
    """

    warp_instructions: int
    lane_instructions: int
    seconds: float
    order_dependent: int = 0
    notes: tuple[str, ...] = ()
    processor: float = 0.0
    unmeasured: tuple[str, ...] = ()


_OP = np.dtype([("run", "<u8"), ("arg", "<u8"), ("guard", "<u4"), ("flip", "<u4")])


class _Launch(ctypes.Structure):
    """`Launch` of csrc/runtime.h."""

    _fields_ = [
        ("code", ctypes.c_void_p), ("regions", ctypes.c_void_p), ("region_count", ctypes.c_uint64),
        ("hint", ctypes.c_void_p), ("window", ctypes.c_void_p), ("params", ctypes.c_void_p),
        ("param_size", ctypes.c_uint32), ("shared_size", ctypes.c_uint32),
        ("local_size", ctypes.c_uint32), ("cluster_size", ctypes.c_uint32),
        ("block", ctypes.c_uint32 * 3), ("grid", ctypes.c_uint32 * 3), ("cluster", ctypes.c_uint32 * 3),
        ("ctas", ctypes.c_void_p), ("cluster_phase", ctypes.c_uint32), ("instructions", ctypes.c_uint64),
        ("lane_instructions", ctypes.c_uint64), ("budget", ctypes.c_uint64), ("matrix", ctypes.c_void_p),
        ("fault", faults.Fault),
        ("late", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("order_dependent", ctypes.c_uint64),
        ("events", ctypes.c_uint64), ("queue", ctypes.c_void_p), ("watch", ctypes.c_void_p),
        ("notes", ctypes.POINTER(faults.Note)), ("note_count", ctypes.c_uint32), ("reserved2", ctypes.c_uint32),
        ("observer", ctypes.c_void_p), ("info", ctypes.c_void_p), ("race", ctypes.c_void_p), ("other", faults.Other),
        ("watched", ctypes.c_void_p), ("seen", ctypes.c_void_p),
    ]  # fmt: skip


class _Request(ctypes.Structure):
    """`Request` of csrc/engine.c."""

    _fields_ = [
        ("launch", ctypes.POINTER(_Launch)), ("specials", ctypes.c_void_p), ("special_count", ctypes.c_uint32),
        ("regs_size", ctypes.c_uint32), ("dynamic_shared", ctypes.c_uint32), ("shuffled", ctypes.c_uint32),
        ("code_length", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
        ("seed", ctypes.c_uint64), ("waiting", ctypes.POINTER(faults.Waiting)), ("waiting_capacity", ctypes.c_uint32),
        ("waiting_count", ctypes.c_uint32), ("checks", ctypes.c_uint32), ("may_spin", ctypes.c_uint32),
    ]  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A kernel ready to run; immutable, so threads may launch it at once.

    Attributes:
        code: array of `Op`; it and its arguments point into `keep`.
        data: the module's global and constant variables, as regions of every launch.
        uses_matrix: whether it needs the matrix unit.
        watched: what a launch looks at beside executing it; None: nothing.
        unmeasured: index -> opcode of the instructions that no hardware has been compared with.
    """

    kernel: Kernel
    arch: str
    bytecode: ByteCode
    code: npt.NDArray[np.void]
    specials: npt.NDArray[np.uint32]
    data: tuple[Region, ...]
    keep: tuple[object, ...] = field(repr=False, default=())
    uses_matrix: bool = False
    watched: ctypes.Array[watched.Watched] | None = field(default=None, repr=False)
    unmeasured: Mapping[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    @cached_property
    def may_spin(self) -> bool:
        """Whether CTAs may wait for each other through global memory."""
        return communicates(self.kernel)

    @cached_property
    def unit(self) -> int:
        """Bytes of shared memory that accesses never split: 1 if some are of single bytes, else 2."""
        return 1 if any(_BYTES.fullmatch(one.opcode) for one in self.kernel.instructions) else 2

    @cached_property
    def observed(self) -> tuple[npt.NDArray[np.void], ctypes.Array[races.Info]]:
        """For a launch that looks for races: the code with its handlers in place, and what each instruction means."""
        code = self.code.copy()
        known = [races.describe(one, int(run)) for one, run in zip(self.kernel.instructions, code["run"], strict=False)]
        known.append(races.Info(int(code["run"][-1]), 0, 0, 0, 0))
        own = ctypes.cast(backend.scheduler().equiv_observed, ctypes.c_void_p).value
        code["run"] = [own if races.wrapped(one) else one.run for one in known]
        return code, (races.Info * len(known))(*known)

    @property
    def param_bytes(self) -> int:
        """Size of the parameter block that `launch` wants."""
        return max((param.offset + param.size for param in self.kernel.params), default=0)


_MEMO: OrderedDict[tuple[int, str, str], tuple[Module, Program]] = OrderedDict()
_MEMO_SIZE = 512
_MEMO_LOCK = threading.Lock()


def load(module: Module, kernel: str, arch: str) -> Program:
    """Decode a kernel and load its handlers; the same module object is decoded once.

    Args:
        module: the PTX; contracted already where the assembler would.
        kernel: name of the kernel.
        arch: `sm_90a` or `sm_100a`: what the instructions are checked against.

    Raises:
        DeviceError: no kernel of that name in the module.
        UnknownInstructionError: it uses what the emulator does not know, or the architecture does not have.
        UnsupportedError: handlers must be compiled and there is no gcc.
    """
    key = (id(module), kernel, arch)
    with _MEMO_LOCK:
        found = _MEMO.get(key)
        if found is not None:
            _MEMO.move_to_end(key)
            return found[1]
    if kernel not in module.kernels:
        raise DeviceError(f"no kernel `{kernel}` in the module; it has {', '.join(module.kernels) or 'none'}")
    program = build(module, inline(module, module.kernels[kernel]), arch)
    with _MEMO_LOCK:
        _MEMO[key] = (module, program)  # keeps the module alive, so that its id stays its own
        while len(_MEMO) > _MEMO_SIZE:
            _MEMO.popitem(last=False)
    return program


def build(module: Module, kernel: Kernel, arch: str) -> Program:
    """As `load`, of a kernel without calls that need not be the module's own; nothing is remembered."""
    data, storage = place_variables(module, kernel)
    bytecode = decode(module, kernel, arch, {name: region.address for name, region in data.items()})
    addresses = backend.handlers({one.shape for one in bytecode.instructions if one.shape is not None})
    nothing = ctypes.cast(backend.scheduler().equiv_nothing, ctypes.c_void_p).value
    starts = np.cumsum([0, *(len(one) for one in bytecode.arguments)])
    pool = np.array([value for one in bytecode.arguments for value in one] or [0], np.uint64)
    code = np.zeros(len(bytecode.instructions), _OP)
    code["run"] = [nothing if one.shape is None else addresses[one.shape.name] for one in bytecode.instructions]
    code["arg"] = pool.ctypes.data + 8 * starts[:-1].astype(np.uint64)
    code["guard"] = [offset for offset, _ in bytecode.guards]
    code["flip"] = [0xFFFF_FFFF if negated else 0 for _, negated in bytecode.guards]
    specials = np.array(bytecode.specials, np.uint32).reshape(-1, 4)
    uses = any(one.shape is not None and "launch->matrix->" in one.shape.body for one in bytecode.instructions)
    named = watched.unmeasured(bytecode)
    looked_at = {*named, *bytecode.tracking}
    entries, keep = watched.table(bytecode, looked_at, code["run"]) if looked_at else (None, ())
    own = ctypes.cast(backend.scheduler().equiv_watched, ctypes.c_void_p).value
    for index in looked_at:
        code["run"][index] = own
        if watched.guarded(bytecode, index):
            code["guard"][index], code["flip"][index] = bytecode.guards[-1][0], 0
    kept = (pool, *storage, *keep)
    return Program(kernel, arch, bytecode, code, specials, tuple(data.values()), kept, uses, entries, named)


def launch(
    program: Program,
    config: LaunchConfig,
    params: bytes,
    memory: Memory,
    *,
    budget: int | None = None,
    seed: int | None = None,
    completion: str = "eager",
    checks: bool = True,
    check: str | None = None,
) -> LaunchStats:
    """Execute a grid to its end.

    Args:
        program: from `load`.
        config: shape of the launch.
        params: the parameter block, laid out as the kernel's `.param` list says.
        memory: what the kernel may access.
        budget: most warp instructions it may execute, so that a kernel that loops for ever ends.
        seed: run the warps in an order drawn from it, and switch between them at random; None: in order.
        completion: when asynchronous copies land: `eager`, as they are issued; `late`, as late as PTX allows, their
            destinations holding 0xff bytes until then. A correct kernel gives the same bits, and waits for copies that
            need shared memory before its CTA ends.
        checks: whether shared memory is watched: reads of what was never written, mbarriers, CTAs that are gone.
        check: `race`: look for accesses to shared memory that nothing orders, in any schedule; slow.

    Raises:
        ValueError: another `completion` or `check`.
        DeviceError: the launch itself is not possible on the architecture.
        IllegalAccessError: an access outside registered, shared, local or parameter memory, misaligned, a write where
            only reads are allowed, a read of shared memory that was never written, or the use of such a register.
        DeadlockError: every warp waits.
        EmulatorError: a trap, a misused barrier, a copy that shared memory is gone for, the budget is used up.
    """
    if completion not in {"eager", "late"}:
        raise ValueError(f"completion {completion!r} is neither 'eager' nor 'late'")
    if check not in {None, "race"}:
        raise ValueError(f"check {check!r} is neither None nor 'race'")
    code, info = program.observed if check else (program.code, None)
    shared = check_launch(program.kernel, program.arch, program.bytecode.dynamic_at, config, params)
    block = np.zeros(len(params) + 512, np.uint8)
    start = -block.ctypes.data % 256
    block[start : start + len(params)] = np.frombuffer(params, np.uint8)
    regions = [*memory.regions, *program.data]
    if params:
        regions.append(Region(block.ctypes.data + start, len(params), "kernel parameters", writable=False))
    regions.sort(key=lambda region: region.address)
    table = np.array([(one.address, one.end, int(one.writable)) for one in regions] or [(0, 0, 0)], np.uint64)
    hints = np.zeros(len(program.code), np.uint32)
    executed = np.zeros(len(program.code), np.uint8)
    waiting = (faults.Waiting * faults.WAITING_SHOWN)()
    notes = (faults.Note * faults.NOTES)()
    state = _Launch(
        code=code.ctypes.data, regions=table.ctypes.data, region_count=len(regions), hint=hints.ctypes.data,
        params=block.ctypes.data + start, param_size=len(params), shared_size=shared,
        local_size=program.bytecode.local_size, cluster_size=int(np.prod(config.cluster)), block=config.block,
        grid=config.grid, cluster=config.cluster, budget=DEFAULT_BUDGET if budget is None else budget,
        matrix=matrix_unit.address() if program.uses_matrix else None,
        late=int(completion == "late"), notes=notes, info=None if info is None else ctypes.addressof(info),
        watched=None if program.watched is None else ctypes.addressof(program.watched), seen=executed.ctypes.data,
    )  # fmt: skip
    request = _Request(
        launch=ctypes.pointer(state), specials=program.specials.ctypes.data, special_count=len(program.specials),
        regs_size=program.bytecode.registers_size, dynamic_shared=config.dynamic_shared, shuffled=int(seed is not None),
        code_length=len(program.code),
        seed=(seed or 0) & 0xFFFF_FFFF_FFFF_FFFF, waiting=waiting, waiting_capacity=faults.WAITING_SHOWN,
        checks=program.unit if checks else 0, may_spin=int(program.may_spin),
    )  # fmt: skip
    run = backend.scheduler().equiv_launch
    began, processor_began = time.perf_counter(), time.thread_time()
    result = run(ctypes.byref(request))
    seconds, processor = time.perf_counter() - began, time.thread_time() - processor_began
    if result < 0:
        raise DeviceError(f"{program.name}: no host memory for {config}")
    if result:
        stop = faults.Stop(
            state.fault,
            list(waiting[: request.waiting_count]),
            request.waiting_count,
            shared,
            program.bytecode.shared,
            state.other,
            watched.registers(program.bytecode),
        )
        raise faults.describe(program.kernel, config.grid, tuple(regions), stop)
    seen = faults.notes(program.kernel, config.grid, notes[: state.note_count], program.bytecode.shared)
    named = tuple(dict.fromkeys(opcode for index, opcode in program.unmeasured.items() if executed[index]))
    return LaunchStats(
        state.instructions, state.lane_instructions, seconds, state.order_dependent, seen, processor, named
    )
