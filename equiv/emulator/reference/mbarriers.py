"""mbarrier objects in shared memory: arrivals, bytes of asynchronous copies, waits.

Their 8 bytes are laid out as in csrc/mbarrier.h, because a kernel can read them: bits 0-19 missing arrivals, 20-39
arrivals of the next phase, 40-60 bytes that copies still owe plus 2^20, 61 parity of the phase, 62-63 the number 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.emulator import faults
from equiv.emulator.reference import spaces
from equiv.emulator.reference.machine import LANES, MBARRIER
from equiv.emulator.reference.spaces import FaultError
from equiv.emulator.reference.steps import lanes_of
from equiv.emulator.reference.warps import addresses, put_results

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.emulator.reference.machine import Fragment, Grid, Warp
    from equiv.emulator.reference.spaces import Place
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Handler, Observer

COUNT_MAX = 0xFFFFF
_NONE, _COUNT, _ARRIVALS, _BYTES, _ELSEWHERE, _DROPPED = range(6)
"""Which of the problems of `equiv.emulator.faults`."""


@dataclass(slots=True)
class Mbarrier:
    """State of an mbarrier: arrivals missing, arrivals a phase needs, parity of the phase, bytes that copies owe."""

    pending: int
    count: int
    parity: int = 0
    tx: int = 0

    def word(self) -> bytes:
        """Its 8 bytes."""
        packed = self.pending | self.count << 20 | self.tx + (1 << 20) << 40 | self.parity << 61 | 1 << 62
        return packed.to_bytes(8, "little")


def unpack(data: bytes) -> Mbarrier | None:
    """What 8 bytes say, or None if they are no mbarrier."""
    word = int.from_bytes(data, "little")
    if word >> 62 != 1:
        return None
    return Mbarrier(word & COUNT_MAX, word >> 20 & COUNT_MAX, word >> 61 & 1, (word >> 40 & 0x1FFFFF) - (1 << 20))


def _fault(lane: int, where: Place, size: int, problem: int) -> FaultError:
    return FaultError(faults.MBARRIER, lane, spaces.shared_address(where), size & 0xFFFF_FFFF, problem)


def locate(warp: Warp, step: Step, mask: int) -> Mapping[int, Place]:
    """Of each lane the mbarrier that operand `a` names.

    Raises:
        FaultError: misaligned, out of bounds, or not in shared memory.
    """
    space, at = addresses(warp, step, "a")
    return in_shared({lane: spaces.place(warp, space, lane, at[lane], 8, write=True) for lane in lanes_of(mask)})


def in_shared(places: Mapping[int, Place]) -> Mapping[int, Place]:
    """The same places.

    Raises:
        FaultError: one is not in shared memory.
    """
    for lane, where in places.items():
        if where.owner != "shared":
            raise FaultError(faults.MBARRIER, lane, where.at, 0, _ELSEWHERE)
    return places


def change(warp: Warp, lane: int, where: Place, arrivals: int, *, drop: int = 0, tx: int = 0) -> int:
    """Applies arrivals (negative: more are needed) and bytes, ends the phase if nothing is missing.

    Returns:
        The word before.

    Raises:
        FaultError: no mbarrier, or a count beyond its limits.
    """
    before = spaces.read(warp, where, 8)
    one = unpack(before)
    if one is None:
        raise _fault(lane, where, 0, _NONE)
    one.tx += tx
    if abs(one.tx) > COUNT_MAX:
        raise _fault(lane, where, one.tx, _BYTES)
    if arrivals > one.pending:
        raise _fault(lane, where, arrivals << 16 | one.pending & 0xFFFF, _ARRIVALS)
    if drop > one.count:
        raise _fault(lane, where, drop, _DROPPED)
    one.pending = one.pending - arrivals & 0xFFFF_FFFF
    one.count -= drop
    if not one.pending and not one.tx:
        one.parity ^= 1
        one.pending = one.count
    spaces.write(warp, where, one.word())
    warp.grid.events += 1
    return int.from_bytes(before, "little")


def initialise(warp: Warp, step: Step, mask: int, _: Observer | None) -> int:
    """`mbarrier.init`."""
    counts = step.source(warp, "n")
    for lane, where in locate(warp, step, mask).items():
        if not 1 <= counts[lane] <= COUNT_MAX:
            raise _fault(lane, where, counts[lane], _COUNT)
        spaces.write(warp, where, Mbarrier(counts[lane], counts[lane]).word())
    warp.grid.events += 1
    return 0


def invalidate(warp: Warp, step: Step, mask: int, _: Observer | None) -> int:
    """`mbarrier.inval`: any later use is a fault."""
    for lane, where in locate(warp, step, mask).items():
        if unpack(spaces.read(warp, where, 8)) is None:
            raise _fault(lane, where, 0, _NONE)
        spaces.write(warp, where, b"\xff" * 8)
    return 0


def _counted(changes: Callable[[int], tuple[int, int, int]], least: int) -> Handler:
    """What applies arrivals (`least` or more), dropped ones and bytes, as they follow from each lane's number, or 1."""

    def handler(warp: Warp, step: Step, mask: int, _: Observer | None) -> int:
        given = any(one.name == "n" for one in step.sources)
        numbers = step.source(warp, "n") if given else [1] * LANES
        state = [0] * LANES
        for lane, where in locate(warp, step, mask).items():
            arrivals, drop, tx = changes(numbers[lane])
            if not least <= arrivals <= COUNT_MAX:
                raise _fault(lane, where, arrivals, _COUNT)
            state[lane] = change(warp, lane, where, arrivals, drop=drop, tx=tx)
        put_results(step, warp, mask, d=state)
        return 0

    return handler


def wait(warp: Warp, step: Step, mask: int, _: Observer | None) -> int:
    """`mbarrier.test_wait` and `.try_wait`: lanes whose phase is over get true and go on, the others are parked.

    They are woken when it is over, or, to get false, when nothing else can happen.
    """
    given = step.source(warp, "b")
    places = locate(warp, step, mask)
    done, parked = 0, {}
    for lane, where in places.items():
        one = unpack(spaces.read(warp, where, 8))
        if one is None:
            raise _fault(lane, where, 0, _NONE)
        parity = given[lane] & 1 if step.mods.get("parity") else given[lane] >> 61 & 1
        if one.parity != parity:
            done |= 1 << lane
        elif not warp.expired >> lane & 1:
            parked[lane] = (spaces.shared_address(where), parity)
    warp.expired &= ~mask
    waits = sum(1 << lane for lane in parked)
    put_results(step, warp, mask & ~waits, p=[done >> lane & 1 for lane in range(LANES)])
    for key in dict.fromkeys(parked.values()):
        same = sum(1 << lane for lane, other in parked.items() if other == key)
        warp.put(warp.pc, same, MBARRIER, *key)
    return waits


def waited_for(grid: Grid, fragment: Fragment) -> Mbarrier | None:
    """The mbarrier that a parked fragment waits for."""
    at = (fragment.id & spaces.SLICE - 1) - spaces.RESERVED
    return unpack(bytes(grid.ctas[fragment.id >> 24].shared[at : at + 8]))


def over(grid: Grid, fragment: Fragment) -> bool:
    """Whether a parked wait is over."""
    one = waited_for(grid, fragment)
    return one is None or one.parity != fragment.need


_CHANGES: dict[tuple[str, bool], Callable[[int], tuple[int, int, int]]] = {
    ("arrive", False): lambda n: (n, 0, 0),
    ("arrive", True): lambda n: (1, 0, n),
    ("arrive_drop", False): lambda n: (n, n, 0),
    ("arrive_drop", True): lambda n: (1, 1, n),
    ("", True): lambda n: (0, 0, n),
}


def find(step: Step) -> Handler | None:
    """What executes an `mbarrier` instruction."""
    for name, handler in (("init", initialise), ("inval", invalidate), ("test_wait", wait), ("try_wait", wait)):
        if name in step.mods:
            return handler
    if "complete_tx" in step.mods:
        return _counted(lambda n: (0, 0, -n), 0)
    kind = next((name for name in ("arrive", "arrive_drop") if name in step.mods), "")
    changes = _CHANGES.get((kind, "expect_tx" in step.mods))
    return None if changes is None else _counted(changes, int(bool(kind)))
