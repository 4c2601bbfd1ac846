"""Branches, exits, and barriers of a CTA, a warp and a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator import faults
from equiv.emulator.reference.machine import BARRIER, BARRIERS, CLUSTER, LANES, give_reduction
from equiv.emulator.reference.spaces import FaultError
from equiv.emulator.reference.steps import lanes_of, mask_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.steps import Step

FLOW = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier"})
"""Base names of what changes which lanes go on where."""


def flow(warp: Warp, step: Step, active: int, mask: int, labels: Mapping[str, int]) -> bool:
    """Executes such an instruction for `mask`, says where all lanes of `active` go on.

    Returns:
        Whether some lanes go elsewhere than to the next instruction, or wait.
    """
    pc = warp.pc
    warp.put(pc + 1, active & ~mask)
    if step.base == "bra":
        label = next(one.register for one in step.sources if one.kind == "const")
        warp.put(labels[label], mask)
        return True
    if step.base == "brx":
        chosen = step.source(warp, "a")
        for lane in lanes_of(mask):
            if chosen[lane] >= len(step.targets):
                raise FaultError(faults.VALUE, lane, chosen[lane], 0, 1)
            warp.put(labels[step.targets[chosen[lane]]], 1 << lane)
        return True
    if step.base in {"ret", "exit"}:
        warp.exit(mask)
        return True
    if step.base == "trap":
        raise FaultError(faults.TRAP, lanes_of(mask)[0], 0, 0, 0)
    if "warp" in step.mods:
        need = members(warp, step, mask)
        going = warp.sync(pc, mask, need)
        warp.put(pc + 1, mask if going else 0)
        return not going
    return _cluster_barrier(warp, step, mask) if "cluster" in step.mods else _barrier(warp, step, mask)


def members(warp: Warp, step: Step, mask: int) -> int:
    """The membermask of the lowest executing lane; every lane must be in its own."""
    given = step.source(warp, "mask")
    for lane in lanes_of(mask):
        if not given[lane] >> lane & 1:
            raise FaultError(faults.VALUE, lane, given[lane], 0, 3)
    return given[lanes_of(mask)[0]]


def _barrier(warp: Warp, step: Step, mask: int) -> bool:
    """`bar.sync`, `bar.arrive` and `bar.red`, by their number and count in the lowest lane."""
    first, pc = lanes_of(mask)[0], warp.pc
    number = step.source(warp, "a")[first]
    threads = step.source(warp, "b")[first] if step.operand("b") is not None else 0
    whole = len(warp.cta.warps) * LANES
    threads = threads or whole
    if number >= BARRIERS:
        raise FaultError(faults.BARRIER, 0, number, threads, 0)
    barrier = warp.cta.barriers[number]
    if threads % LANES or threads > whole:
        raise FaultError(faults.BARRIER, 0, number, threads, 1)
    if barrier.threads and barrier.threads != threads:
        raise FaultError(faults.BARRIER, 0, number, threads, 2)
    reduces = "red" in step.mods
    barrier.threads = threads
    barrier.arrived[warp.id] = barrier.arrived.get(warp.id, 0) | mask
    if reduces:
        true = mask_of(step.source(warp, "p"))
        barrier.trues += (mask & true).bit_count()
        barrier.falses += (mask & ~true).bit_count()
    warp.grid.events += 1
    if warp.cta.complete(barrier):
        if reduces:
            give_reduction(warp, step, mask, barrier)
        warp.cta.release(number)
        warp.put(pc + 1, mask)
        return False
    if not reduces and step.mods["what"] == "arrive":
        warp.put(pc + 1, mask)
        return False
    warp.put(pc + 1, mask, BARRIER, number, threads)
    warp.fragments[-1].reduce = step if reduces else None
    return True


def _cluster_barrier(warp: Warp, step: Step, mask: int) -> bool:
    """`barrier.cluster`: phases are counted, because a warp may arrive, run on, and wait later."""
    grid = warp.grid
    if "arrive" in step.mods:
        for lane in lanes_of(mask):
            if warp.phase[lane] > grid.cluster_phase:
                raise FaultError(faults.BARRIER, lane, 0, 0, 3)
            warp.phase[lane] += 1
        grid.events += 1
        grid.check_cluster_barrier()
        warp.put(warp.pc + 1, mask)
        return False
    need = max(warp.phase[lane] for lane in lanes_of(mask))
    if grid.cluster_phase >= need:
        warp.put(warp.pc + 1, mask)
        return False
    warp.put(warp.pc + 1, mask, CLUSTER, 0, need)
    return True
