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
from equiv.emulator.engine import DEFAULT_BUDGET, LaunchConfig, LaunchStats
from equiv.emulator.inline import inline
from equiv.emulator.loading import check_launch, place_variables
from equiv.emulator.memory import Region
from equiv.emulator.ptx import Instruction
from equiv.emulator.reference import matrix, warps
from equiv.emulator.reference.machine import BARRIER, BARRIERS, CLUSTER, FULL, LANES, Grid, Warp
from equiv.emulator.reference.spaces import FaultError, GlobalMemory
from equiv.emulator.reference.steps import Step, lanes_of, mask_of, prepare
from equiv.errors import DeviceError, UnknownInstructionError

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.emulator.decode import ByteCode
    from equiv.emulator.memory import Memory
    from equiv.emulator.ptx import Kernel, Module
    from equiv.emulator.reference.warps import Observer

_TOGETHER = {**warps.TOGETHER, "mma": matrix.multiply, "ldmatrix": matrix.load, "stmatrix": matrix.store}
_FLOW = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier"})


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


def _known(step: Step) -> bool:
    """Whether the portable engine has semantics for what a warp does together."""
    if step.base in {"cp", "bar", "barrier"} and step.mods.keys() & {"bulk", "mbarrier", "red"}:
        return False
    return step.base in _TOGETHER or step.base in _FLOW


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
        if one is not None and one.lane is None and not _known(one):
            problem = "the portable engine has no semantics for it"
            raise UnknownInstructionError(one.instruction.opcode, problem, one.instruction.line)
    return Program(chosen, arch, bytecode, steps, tuple(data.values()), storage)


def launch(
    program: Program,
    config: LaunchConfig,
    params: bytes,
    memory: Memory,
    *,
    budget: int | None = None,
    observer: Observer | None = None,
) -> LaunchStats:
    """Execute a grid to its end; arguments, effects and errors are those of `equiv.emulator.engine.launch`.

    The `observer` is told of every value that is made or moved.
    """
    shared = check_launch(program.kernel, program.arch, program.bytecode.dynamic_at, config, params)
    # As in the C engine the parameters can also be reached through a generic address.
    block = np.frombuffer(params or b"\0", np.uint8).copy()
    regions = [
        *memory.regions,
        *program.data,
        Region(block.ctypes.data, block.nbytes, "kernel parameters", writable=False),
    ]
    grid = Grid(config, program.arch, params, GlobalMemory(regions), shared=shared, local=program.bytecode.local_size)
    run = _Run(program, grid, block.ctypes.data, DEFAULT_BUDGET if budget is None else budget, observer)
    began = time.perf_counter()
    for _ in grid.clusters():
        run.cluster()
    return LaunchStats(run.instructions, run.lane_instructions, time.perf_counter() - began)


class _Run:
    """Executes steps, counts them, and turns faults into errors."""

    def __init__(self, program: Program, grid: Grid, params_at: int, budget: int, observer: Observer | None) -> None:
        self.program = program
        self.grid = grid
        self.params_at = params_at
        self.budget = budget
        self.observer = observer
        self.instructions = self.lane_instructions = 0

    def cluster(self) -> None:
        """Runs the warps of a cluster in turn until all have exited.

        Raises:
            EmulatorError: a fault, or nobody can go on.
        """
        while True:
            alive = [warp for warp in self.grid.warps if warp.live]
            if not alive:
                return
            progress = False
            for warp in alive:
                while warp.live and (chosen := warp.select()) is not None:
                    progress = True
                    self.step(warp, chosen.pc, chosen.mask)
            if not progress:
                waits = [one for warp in alive for one in warp.waits()]
                self.fail(faults.Fault(kind=faults.DEADLOCK), waits)

    def fail(self, fault: faults.Fault, waits: list[faults.Waiting] | None = None) -> None:
        """Raises the error for a fault, as the C engine words it."""
        regions, kernel = tuple(self.grid.memory.regions), self.program.kernel
        shown = (waits or [])[: faults.WAITING_SHOWN]
        stop = faults.Stop(fault, shown, len(waits or []), self.grid.shared_size)
        raise faults.describe(kernel, self.grid.config.grid, regions, stop)

    def fault(self, warp: Warp, pc: int, active: int, error: FaultError) -> None:
        """Raises the error for what one lane did."""
        self.fail(
            faults.Fault(
                error.kind, pc, error.lane, error.size, error.address, warp.cta.linear, warp.id, active, error.detail
            )
        )

    def step(self, warp: Warp, pc: int, active: int) -> None:
        """Executes one instruction for the lanes at it."""
        self.instructions += 1
        if self.instructions > self.budget:
            self.fault(warp, pc, active, FaultError(faults.BUDGET, 0, self.budget, 0, 0))
        step = self.program.steps[pc]
        mask = active
        if pc < len(self.program.kernel.instructions):
            one = self.program.kernel.instructions[pc]
            if one.guard is not None:
                true = mask_of(warp.registers.get(one.guard, [1] * LANES))
                mask &= ~true if one.guard_negated else true
        if mask:
            self.lane_instructions += mask.bit_count()
        if step is None or not mask:
            warp.put(pc + 1, active)
            return
        try:
            self.execute(warp, step, pc, active, mask)
        except FaultError as error:
            self.fault(warp, pc, active, error)

    def execute(self, warp: Warp, step: Step, pc: int, active: int, mask: int) -> None:
        """Executes a step for `mask`, and says where all lanes of `active` go on."""
        if step.base in _FLOW:
            self.flow(warp, step, pc, active, mask)
            return
        if step.needs:
            need = step.source(warp, "mask")[lanes_of(mask)[0]] if step.needs == "mask" else FULL
            together = warp.gather(pc, mask, need)
            warp_rest = active & ~mask
            if not together:
                warp.put(pc + 1, warp_rest)
                return
            mask, active = together, together | warp_rest
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
            _TOGETHER[step.base](warp, step, mask, self.observer)
        warp.put(pc + 1, active)

    def flow(self, warp: Warp, step: Step, pc: int, active: int, mask: int) -> None:
        """Branches, exits and barriers."""
        rest = active & ~mask
        if step.base in {"bra", "brx"}:
            warp.put(pc + 1, rest)
            if step.base == "bra":
                label = next(one.register for one in step.sources if one.kind == "const")
                warp.put(self.program.kernel.labels[label], mask)
                return
            chosen = step.source(warp, "a")
            for lane in lanes_of(mask):
                if chosen[lane] >= len(step.targets):
                    raise FaultError(faults.VALUE, lane, chosen[lane], 0, 1)
                warp.put(self.program.kernel.labels[step.targets[chosen[lane]]], 1 << lane)
        elif step.base in {"ret", "exit"}:
            warp.put(pc + 1, rest)
            warp.exit(mask)
        elif step.base == "trap":
            raise FaultError(faults.TRAP, lanes_of(mask)[0], 0, 0, 0)
        elif "warp" in step.mods:
            need = step.source(warp, "mask")[lanes_of(mask)[0]]
            warp.put(pc + 1, rest)
            if warp.sync(pc, mask, need):
                warp.put(pc + 1, mask)
        elif "cluster" in step.mods:
            self.cluster_barrier(warp, step, pc, mask)
            warp.put(pc + 1, rest)
        else:
            self.barrier(warp, step, pc, mask)
            warp.put(pc + 1, rest)

    def barrier(self, warp: Warp, step: Step, pc: int, mask: int) -> None:
        """`bar.sync` and `bar.arrive`, by their number and count in the lowest lane."""
        first = lanes_of(mask)[0]
        number, threads = step.source(warp, "a")[first], step.source(warp, "b")[first]
        whole = len(warp.cta.warps) * LANES
        threads = threads or whole
        if number >= BARRIERS:
            raise FaultError(faults.BARRIER, 0, number, threads, 0)
        barrier = warp.cta.barriers[number]
        if threads % LANES or threads > whole:
            raise FaultError(faults.BARRIER, 0, number, threads, 1)
        if barrier.threads and barrier.threads != threads:
            raise FaultError(faults.BARRIER, 0, number, threads, 2)
        barrier.threads = threads
        barrier.arrived[warp.id] = barrier.arrived.get(warp.id, 0) | mask
        if warp.cta.complete(barrier):
            warp.cta.release(number)
            warp.put(pc + 1, mask)
        elif step.mods["what"] == "sync":
            warp.put(pc + 1, mask, BARRIER, number, threads)
        else:
            warp.put(pc + 1, mask)

    def cluster_barrier(self, warp: Warp, step: Step, pc: int, mask: int) -> None:
        """`barrier.cluster`: phases are counted, because a warp may arrive, run on, and wait later."""
        if "arrive" in step.mods:
            for lane in lanes_of(mask):
                if warp.phase[lane] > self.grid.cluster_phase:
                    raise FaultError(faults.BARRIER, lane, 0, 0, 3)
                warp.phase[lane] += 1
            self.grid.check_cluster_barrier()
            warp.put(pc + 1, mask)
            return
        need = max(warp.phase[lane] for lane in lanes_of(mask))
        if self.grid.cluster_phase >= need:
            warp.put(pc + 1, mask)
        else:
            warp.put(pc + 1, mask, CLUSTER, 0, need)
