"""Warps, CTAs and grids of the portable engine, and how control moves through them.

The rules are those of the C engine (csrc/runtime.h, sync.h): a warp is a set of fragments, lanes that share a pc; the
ready fragment at the lowest pc runs and takes up every other that stands there. Lanes are bits of an integer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from equiv.emulator.engine import LaunchConfig
    from equiv.emulator.reference.spaces import GlobalMemory
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.tensor_memory import TensorMemory

LANES = 32
FULL = 0xFFFF_FFFF
BARRIERS = 16
READY, BARRIER, GATHER, WARP_SYNC, CLUSTER, MBARRIER, TENSOR = range(7)
"""What a fragment waits for; numbers as in csrc/runtime.h."""


@dataclass(slots=True)
class Fragment:
    """Lanes `mask` at `pc`; `id` and `need` say what a wait is for, `reduce` is a `bar.red` that wants its result."""

    pc: int
    mask: int
    wait: int = READY
    id: int = 0
    need: int = 0
    reduce: Step | None = None


@dataclass(slots=True)
class Barrier:
    """A CTA barrier: how many threads it takes (0: nobody has arrived) and which lanes of each warp have arrived.

    `trues` and `falses` count the lanes by their predicate in a `bar.red`.
    """

    threads: int = 0
    arrived: dict[int, int] = field(default_factory=dict)
    trues: int = 0
    falses: int = 0


class Cta:
    """One CTA of the running cluster."""

    def __init__(self, grid: Grid, rank: int, index: tuple[int, int, int]) -> None:
        self.rank = rank
        self.index = index
        self.linear = (index[2] * grid.config.grid[1] + index[1]) * grid.config.grid[0] + index[0]
        self.shared = bytearray(b"\xff" * grid.shared_size)
        self.barriers = [Barrier() for _ in range(BARRIERS)]
        threads = grid.threads
        self.warps = [Warp(grid, self, number, threads) for number in range(-(-threads // LANES))]
        self.tensor: TensorMemory | None = None

    def complete(self, barrier: Barrier) -> bool:
        """Whether enough threads have arrived; a warp whose live lanes are all there counts as 32."""
        count, everybody = 0, True
        for warp in self.warps:
            arrived = barrier.arrived.get(warp.id, 0)
            missing = warp.live & ~arrived
            everybody = everybody and not missing
            count += LANES if arrived and not missing else arrived.bit_count()
        return everybody if barrier.threads == len(self.warps) * LANES else count >= barrier.threads

    def release(self, number: int) -> None:
        """Lets everybody who waits at a barrier go on, with the result of the reduction if it was one."""
        done = self.barriers[number]
        self.barriers[number] = Barrier()
        self.warps[0].grid.events += 1
        for warp in self.warps:
            for fragment in warp.fragments:
                if fragment.wait == BARRIER and fragment.id == number:
                    if fragment.reduce is not None:
                        give_reduction(warp, fragment.reduce, fragment.mask, done)
                    fragment.wait = READY


def give_reduction(warp: Warp, step: Step, mask: int, barrier: Barrier) -> None:
    """Gives lanes what a `bar.red` found."""
    value = {"popc": barrier.trues, "and": int(not barrier.falses), "or": int(barrier.trues > 0)}[step.mods["op"]]
    step.write(warp, step.results[0], [value] * LANES, mask)


@dataclass
class Cluster:
    """A cluster on its way: its CTAs, the phase of its barrier, and what the scheduler knows of its waits."""

    ctas: list[Cta]
    phase: int = 0
    expiries: int = 0
    spinning: bool = False


class Grid:
    """A launch while it runs: its shape, memory and the CTAs of the cluster at hand.

    Attributes:
        events: grows whenever something happens that a waiting warp may wait for.
        order_dependent: float additions to memory, by lanes or elements.
    """

    def __init__(
        self,
        config: LaunchConfig,
        arch: str,
        params: bytes,
        memory: GlobalMemory,
        *,
        shared: int,
        local: int,
        chosen: Collection[int] | None = None,
    ) -> None:
        self.config = config
        self.chosen = chosen
        self.arch = arch
        self.params = bytearray(params)
        self.memory = memory
        self.shared_size = shared
        self.local_size = local
        self.threads = config.block[0] * config.block[1] * config.block[2]
        self.ctas: list[Cta] = []
        self.cluster_phase = 0
        self.events = 0
        self.order_dependent = 0

    def clusters(self) -> Iterator[Cluster]:
        """Sets up one cluster after the other, in the order of the C engine; only the chosen ones, if some are."""
        sizes, cluster, number = self.config.grid, self.config.cluster, -1
        for z in range(0, sizes[2], cluster[2]):
            for y in range(0, sizes[1], cluster[1]):
                for x in range(0, sizes[0], cluster[0]):
                    number += 1
                    if self.chosen is not None and number not in self.chosen:
                        continue
                    ctas = []
                    for rank in range(cluster[0] * cluster[1] * cluster[2]):
                        i, j = rank % cluster[0], rank // cluster[0] % cluster[1]
                        place = (x + i, y + j, z + rank // cluster[0] // cluster[1])
                        ctas.append(Cta(self, rank, place))
                    yield Cluster(ctas)

    def enter(self, cluster: Cluster) -> None:
        """Makes a cluster the one at hand."""
        self.ctas, self.cluster_phase = cluster.ctas, cluster.phase

    @property
    def warps(self) -> list[Warp]:
        """All warps of the cluster."""
        return [warp for cta in self.ctas for warp in cta.warps]

    def check_cluster_barrier(self) -> None:
        """Ends the cluster barrier's phase if every live lane has arrived."""
        for warp in self.warps:
            if any(warp.live >> lane & 1 and warp.phase[lane] <= self.cluster_phase for lane in range(LANES)):
                return
        self.cluster_phase += 1
        self.events += 1


class Warp:
    """One warp: registers by name (32 integers each), fragments, which lanes still live, an observer's notes."""

    def __init__(self, grid: Grid, cta: Cta, number: int, threads: int) -> None:
        self.grid = grid
        self.cta = cta
        self.id = number
        left = threads - number * LANES
        self.live = FULL if left >= LANES else (1 << left) - 1
        self.fragments = [Fragment(0, self.live)]
        self.registers: dict[str, list[int]] = {}
        self.special: dict[tuple[str, int], list[int]] = {}
        self.local = [bytearray(grid.local_size) for _ in range(LANES)]
        self.carry = [0] * LANES
        self.phase = [0] * LANES
        self.notes: dict[str, list[Any]] = {}
        self.pc = 0
        self.expired = 0
        self.clock = 0

    def select(self) -> Fragment | None:
        """Takes the ready lanes at the lowest pc out of the fragments; None if none is ready."""
        ready = [one for one in self.fragments if one.wait == READY]
        if not ready:
            return None
        chosen = Fragment(min(one.pc for one in ready), 0)
        for one in ready:
            if one.pc == chosen.pc:
                chosen.mask |= one.mask
                self.fragments.remove(one)
        return chosen

    def put(self, pc: int, mask: int, wait: int = READY, number: int = 0, need: int = 0) -> None:
        """Adds a fragment unless it has no lanes."""
        if mask:
            self.fragments.append(Fragment(pc, mask, wait, number, need))

    def gather(self, pc: int, mask: int, need: int) -> int:
        """Lanes at a collective instruction: `mask` and those waiting here, or 0 (parked) if some are missing."""
        for one in list(self.fragments):
            if one.wait == GATHER and one.pc == pc:
                mask |= one.mask
                self.fragments.remove(one)
        if need & self.live & ~mask:
            self.put(pc, mask, GATHER, 0, need)
            return 0
        return mask

    def sync(self, pc: int, mask: int, need: int) -> bool:
        """`bar.warp.sync`: whether the lanes may go on; otherwise they are parked."""
        if not need & self.live & ~mask:
            return True
        waiting = [one for one in self.fragments if one.wait == WARP_SYNC and one.need == need]
        here = mask
        for one in waiting:
            here |= one.mask
        if need & self.live & ~here:
            self.put(pc + 1, mask, WARP_SYNC, 0, need)
            return False
        for one in waiting:
            one.wait = READY
        return True

    def exit(self, mask: int) -> None:
        """Lanes are done; what they may have held up is looked at again."""
        self.grid.events += 1
        self.live &= ~mask
        for kind in (WARP_SYNC, GATHER):
            waits = [one for one in self.fragments if one.wait == kind]
            for key in {(one.need, one.pc if kind == GATHER else 0) for one in waits}:
                group = [one for one in waits if (one.need, one.pc if kind == GATHER else 0) == key]
                here = 0
                for one in group:
                    here |= one.mask
                if not key[0] & self.live & ~here:
                    for one in group:
                        one.wait = READY
        for number, barrier in enumerate(self.cta.barriers):
            if barrier.threads and self.cta.complete(barrier):
                self.cta.release(number)
        self.grid.check_cluster_barrier()

    def value_of(self, name: str, lane: int, value: int, program_shared: int, dynamic: int) -> int:
        """A special register in one lane, by its name in `equiv.emulator.decode.SPECIALS`."""
        config, cta = self.grid.config, self.cta
        stem, _, axis = name.partition(".")
        k = "xyz".find(axis) if axis else 0
        thread = self.id * LANES + lane
        cluster = config.cluster
        rank = (cta.rank % cluster[0], cta.rank // cluster[0] % cluster[1], cta.rank // cluster[0] // cluster[1])
        block = config.block
        known = {
            "tid": (thread % block[0], thread // block[0] % block[1], thread // block[0] // block[1])[k],
            "ntid": block[k],
            "ctaid": cta.index[k],
            "nctaid": config.grid[k],
            "laneid": lane,
            "warpid": self.id,
            "nwarpid": len(cta.warps),
            "lanemask_eq": 1 << lane,
            "lanemask_lt": (1 << lane) - 1,
            "lanemask_le": (2 << lane) - 1,
            "lanemask_gt": ~((2 << lane) - 1),
            "lanemask_ge": ~((1 << lane) - 1),
            "clusterid": cta.index[k] // cluster[k],
            "nclusterid": config.grid[k] // cluster[k],
            "cluster_ctaid": rank[k],
            "cluster_nctaid": cluster[k],
            "cluster_ctarank": cta.rank,
            "cluster_nctarank": len(self.grid.ctas),
            "smid": cta.linear % 132,
            "nsmid": 132,
            "gridid": 0,
            "dynamic_smem_size": dynamic,
            "total_smem_size": program_shared,
            "zero": 0,
            "shared address": (cta.rank << 24) + 0x400 + value,
        }
        return known[stem] & FULL
