"""In which order warps run, and what happens when none can: the rules of csrc/engine.c.

A warp runs until it waits. When nobody of a cluster can go on, polled mbarriers give false, and after `EXPIRIES` times
of that it is a deadlock. When warps only spin, the same, and then more clusters are started and run in turns, because a
grid may communicate through global memory.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from equiv.emulator import faults
from equiv.emulator.reference import mbarriers, tensor_memory
from equiv.emulator.reference.machine import BARRIER, CLUSTER, MBARRIER, READY, TENSOR, Barrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from equiv.emulator.reference.machine import Cluster, Grid, Warp

    Step = Callable[[Warp, int, int], bool]
    """Executes the instruction at a pc for some lanes; whether the warp's list of fragments changed."""

QUANTUM = 100_000
SPIN_QUANTUM = 2000
EXPIRIES = 8


class StuckError(Exception):
    """Every warp of the cluster at hand waits."""


class Round(Enum):
    """What came of letting every warp of a cluster run once."""

    DONE = auto()
    MOVING = auto()
    SPINNING = auto()


def run_grid(grid: Grid, step: Step, finish: Callable[[Warp], None], *, may_spin: bool) -> None:
    """Runs all clusters: one at a time, or, once warps spin, more and more of them in turns.

    Args:
        grid: the launch.
        step: executes one instruction.
        finish: called after every turn of a warp.
        may_spin: whether the kernel may wait for other CTAs through global memory.

    Raises:
        StuckError: nobody of a cluster can go on.
    """
    waiting = grid.clusters()
    active: list[Cluster] = []
    more, wanted = True, 1
    while more or active:
        while more and len(active) < wanted:
            cluster = next(waiting, None)
            if cluster is None:
                more = False
            else:
                active.append(cluster)
        spinning, left = 0, []
        for cluster in active:
            grid.enter(cluster)
            outcome = _round(grid, cluster, step, finish)
            cluster.phase = grid.cluster_phase
            spinning += outcome is Round.SPINNING
            if outcome is not Round.DONE:
                left.append(cluster)
        active = left
        if spinning and spinning == len(active) and may_spin:
            wanted = 2 * len(active)


def _round(grid: Grid, cluster: Cluster, step: Step, finish: Callable[[Warp], None]) -> Round:
    quantum, before = SPIN_QUANTUM if cluster.spinning else QUANTUM, grid.events
    ran, spin = False, True
    alive = [warp for warp in grid.warps if warp.live]
    for warp in alive:
        if not _can_run(grid, warp):
            continue
        ran = True
        spin &= _turn(warp, step, quantum)
        finish(warp)
    if not alive:
        tensor_memory.check_leaks(cluster.ctas)
        return Round.DONE
    if grid.events != before:
        cluster.expiries, cluster.spinning = 0, False
        return Round.MOVING
    if ran and not spin:
        return Round.MOVING
    cluster.spinning = ran
    if (ran or cluster.expiries < EXPIRIES) and _expire(grid):
        cluster.expiries += 1
        return Round.SPINNING if ran else Round.MOVING
    if not ran:
        raise StuckError
    return Round.SPINNING


def _can_run(grid: Grid, warp: Warp) -> bool:
    """Wakes fragments whose wait is a condition on state rather than an event."""
    for one in warp.fragments:
        if (
            (one.wait == CLUSTER and grid.cluster_phase >= one.need)
            or (one.wait == MBARRIER and mbarriers.over(grid, one))
            or (one.wait == TENSOR and tensor_memory.has_room(warp.cta, one.id))
        ):
            one.wait = READY
    return any(one.wait == READY for one in warp.fragments)


def _turn(warp: Warp, step: Step, quantum: int) -> bool:
    """Runs a warp until it waits, is done, or has used its quantum, which is looked at where control may change."""
    count = 0
    while (chosen := warp.select()) is not None:
        changed = step(warp, chosen.pc, chosen.mask)
        count += 1
        if count >= quantum:
            ready = sorted(one.pc for one in warp.fragments if one.wait == READY)
            if (changed and ready) or (len(ready) > 1 and ready[1] <= chosen.pc + 1):
                break
    return count >= quantum


def _expire(grid: Grid) -> bool:
    """Every wait for an mbarrier ends without it; whether there was one."""
    found = False
    for warp in grid.warps:
        for one in warp.fragments:
            if one.wait == MBARRIER:
                warp.expired |= one.mask
                one.wait = READY
                found = True
    return found


def waits(grid: Grid) -> Iterator[faults.Waiting]:
    """What every fragment of the cluster at hand waits for, as the deadlock report wants it."""
    for warp in grid.warps:
        for one in warp.fragments:
            barrier = warp.cta.barriers[one.id] if one.wait == BARRIER else Barrier()
            arrived = sum(mask.bit_count() for mask in barrier.arrived.values())
            held = mbarriers.waited_for(grid, one) if one.wait == MBARRIER else None
            state = (held.pending, held.count, held.tx) if held is not None else (0, 0, 0)
            yield faults.Waiting(
                warp.cta.linear, warp.id, one.pc, one.mask, one.wait, one.id, one.need, arrived, *state
            )
