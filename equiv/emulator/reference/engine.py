"""The slow, portable engine: the same instruction table and scheduler rules as the C engine, without a compiler.

It is a second definition of every instruction, in Python over `equiv.rounding`, to test the C engine against, and it
lets an observer (`equiv.emulator.trace`) follow each value.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator import faults
from equiv.emulator.decode import decode
from equiv.emulator.engine import DEFAULT_BUDGET, LaunchConfig, LaunchStats, communicates
from equiv.emulator.inline import inline
from equiv.emulator.loading import check_launch, place_variables
from equiv.emulator.memory import Region
from equiv.emulator.ptx import Instruction
from equiv.emulator.reference import schedule, tensor_memory
from equiv.emulator.reference.flow import FLOW, flow, members
from equiv.emulator.reference.handlers import find, followed
from equiv.emulator.reference.machine import FULL, LANES, READY, Grid, Warp
from equiv.emulator.reference.operands import Problem
from equiv.emulator.reference.spaces import FaultError, GlobalMemory
from equiv.emulator.reference.steps import Step, mask_of, prepare, unknown
from equiv.errors import DeviceError, UnknownInstructionError

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from equiv.emulator.bytecode import ByteCode
    from equiv.emulator.memory import Memory
    from equiv.emulator.ptx import Kernel, Module
    from equiv.emulator.reference.warps import Observer


@dataclass(frozen=True)
class Program:
    """A kernel ready to run.

    Attributes:
        steps: one per instruction and an exit; None for one without effect on values.
        data: the module's global and constant variables; their bytes live in `storage`.
    """

    kernel: Kernel
    arch: str
    bytecode: ByteCode
    steps: tuple[Step | None, ...]
    data: tuple[Region, ...]
    storage: tuple[npt.NDArray[np.uint8], ...]

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.kernel.name


def load(module: Module, kernel: str, arch: str) -> Program:
    """Decode a kernel.

    Raises:
        DeviceError: no kernel of that name in the module.
        UnknownInstructionError: it uses what the portable engine does not know, or the architecture does not have.
    """
    if kernel not in module.kernels:
        raise DeviceError(f"no kernel `{kernel}` in the module; it has {', '.join(module.kernels) or 'none'}")
    chosen = inline(module, module.kernels[kernel])
    data, storage = place_variables(module, chosen)
    bytecode = decode(module, chosen, arch, {name: region.address for name, region in data.items()})
    listed = (*chosen.instructions, Instruction("exit", ()))
    steps = tuple(prepare(one, decoded) for one, decoded in zip(listed, bytecode.instructions, strict=True))
    for one in steps:
        if one is not None and one.lane is None and one.base not in FLOW and find(one) is None:
            raise unknown(one.instruction)
    return Program(chosen, arch, bytecode, steps, tuple(data.values()), storage)


def launch(
    program: Program,
    config: LaunchConfig,
    params: bytes,
    memory: Memory,
    *,
    budget: int | None = None,
    observer: Observer | None = None,
    clusters: Collection[int] | None = None,
) -> LaunchStats:
    """Execute a grid to its end; arguments, effects and errors are those of `equiv.emulator.engine.launch`.

    The `observer` is told of every value that is made or moved. With `clusters` only those run, by their numbers.
    """
    if observer is not None:
        for one in program.steps:
            if one is not None and not followed(one):
                raise UnknownInstructionError(
                    one.instruction.opcode, "its values are not followed", one.instruction.line
                )
    shared = check_launch(program.kernel, program.arch, program.bytecode.dynamic_at, config, params)
    # As in the C engine the parameters can also be reached through a generic address, where tensor maps are aligned.
    room = np.zeros(len(params) + 257, np.uint8)
    start = -room.ctypes.data % 256
    block = room[start : start + max(len(params), 1)]
    block[: len(params)] = np.frombuffer(params, np.uint8)
    regions = [
        *memory.regions,
        *program.data,
        Region(block.ctypes.data, block.nbytes, "kernel parameters", writable=False),
    ]
    local = program.bytecode.local_size
    grid = Grid(config, program.arch, params, GlobalMemory(regions), shared=shared, local=local, chosen=clusters)
    run = _Run(program, grid, block.ctypes.data, DEFAULT_BUDGET if budget is None else budget, observer)
    began = time.perf_counter()
    run.whole()
    return LaunchStats(
        run.instructions, run.lane_instructions, time.perf_counter() - began, order_dependent=grid.order_dependent
    )


class _Run:
    """Executes steps, counts them, and turns faults into errors."""

    def __init__(self, program: Program, grid: Grid, params_at: int, budget: int, observer: Observer | None) -> None:
        self.program = program
        self.grid = grid
        self.params_at = params_at
        self.budget = budget
        self.observer = observer
        self.handlers = [None if one is None or one.base in FLOW else find(one) for one in program.steps]
        self.instructions = self.lane_instructions = 0

    def whole(self) -> None:
        """Runs the grid.

        Raises:
            EmulatorError: a fault, or nobody can go on.
        """
        spins = communicates(self.program.kernel)
        try:
            schedule.run_grid(self.grid, self.step, self.turned, may_spin=spins)
        except schedule.StuckError:
            self.fail(faults.Fault(kind=faults.DEADLOCK), list(schedule.waits(self.grid)))
        except tensor_memory.LeakError as error:
            leak = FaultError(faults.MATRIX, 0, error.columns, 0, Problem.LEAK)
            self.fault(error.warp, len(self.program.steps) - 1, 0, leak)

    def fail(self, fault: faults.Fault, waits: list[faults.Waiting] | None = None) -> None:
        """Raises the error for a fault, as the C engine words it."""
        regions, kernel = tuple(self.grid.memory.regions), self.program.kernel
        shown = (waits or [])[: faults.WAITING_SHOWN]
        variables = self.program.bytecode.shared
        stop = faults.Stop(fault, shown, len(waits or []), self.grid.shared_size, variables)
        raise faults.describe(kernel, self.grid.config.grid, regions, stop)

    def fault(self, warp: Warp, pc: int, active: int, error: FaultError) -> None:
        """Raises the error for what one lane did."""
        self.fail(
            faults.Fault(
                error.kind, pc, error.lane, error.size, error.address, warp.cta.linear, warp.id, active, error.detail
            )
        )

    def turned(self, warp: Warp) -> None:
        """After a turn of a warp: is the budget used up?"""
        if self.instructions > self.budget:
            ready = [one.pc for one in warp.fragments if one.wait == READY]
            pc = min(ready) if ready else warp.fragments[0].pc if warp.fragments else 0
            self.fault(warp, pc, warp.live, FaultError(faults.BUDGET, 0, self.budget, 0, 0))

    def step(self, warp: Warp, pc: int, active: int) -> bool:
        """Executes one instruction for the lanes at it; whether some of them do not just go on to the next."""
        self.instructions += 1
        warp.clock += 1
        step = self.program.steps[pc]
        mask = active
        if pc < len(self.program.kernel.instructions):
            one = self.program.kernel.instructions[pc]
            if one.guard is not None:
                true = mask_of(warp.registers.get(one.guard, [1] * LANES))
                mask &= ~true if one.guard_negated else true
        self.lane_instructions += mask.bit_count()
        if step is None or not mask:
            warp.put(pc + 1, active)
            return False
        warp.pc = pc
        try:
            return self.execute(warp, step, active, mask)
        except FaultError as error:
            self.fault(warp, pc, active, error)
            raise

    def execute(self, warp: Warp, step: Step, active: int, mask: int) -> bool:
        """Executes a step for `mask`, and says where all lanes of `active` go on."""
        pc = warp.pc
        if step.base in FLOW:
            return flow(warp, step, active, mask, self.program.kernel.labels)
        if step.needs:
            need = members(warp, step, mask) if step.needs == "mask" else FULL
            together = warp.gather(pc, mask, need)
            rest = active & ~mask
            if not together:
                warp.put(pc + 1, rest)
                return True
            mask, active = together, together | rest
        parked = 0
        if step.lane is not None:
            sources = [step.read(warp, one) for one in step.sources]
            if step.base == "cvta" and step.mods["space"] == "param":
                sign = -1 if "to" in step.mods else 1
                results: tuple[list[int], ...] = ([value + sign * self.params_at for value in sources[0]],)
            else:
                results = step.lane(*sources)
            for operand, values in zip(step.results, results, strict=True):
                step.write(warp, operand, values, mask)
            if self.observer is not None:
                self.observer.computed(warp, step, mask, sources, results)
        else:
            handler = self.handlers[pc]
            assert handler is not None  # as `load` has seen
            parked = handler(warp, step, mask, self.observer) or 0
        warp.put(pc + 1, active & ~parked)
        return parked != 0
