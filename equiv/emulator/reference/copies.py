"""Copies that PTX calls asynchronous: `cp.async`, bulk copies and reductions, `st.async`, `red.async`.

They happen at once, which is one legal order, so that their groups have nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator import faults
from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.reference import mbarriers, spaces
from equiv.emulator.reference.atomics import reduce_bytes
from equiv.emulator.reference.spaces import FaultError, Place
from equiv.emulator.reference.steps import lanes_of
from equiv.emulator.reference.warps import addresses

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Handler, Observer

PIECE = 16
"""What a bulk copy is made of, bytes."""
_WORD = 4
_SIZE, _CTAS = 0, 7
"""Which of the problems of copies in `equiv.emulator.faults`."""


def nothing(_warp: Warp, _step: Step, _mask: int, _observer: Observer | None) -> None:
    """Groups of copies: none is ever under way."""


def copy(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`cp.async`: some bytes are read, the rest is zero."""
    size = step.source(warp, "e")[0]
    if size not in {4, 8, 16}:
        raise FaultError(faults.VALUE, 0, size, 0, 0)
    space, to = addresses(warp, step, "a")
    _, source = addresses(warp, step, "s")
    part = step.operand("b")
    where = {lane: spaces.place(warp, space, lane, to[lane], size, write=True) for lane in lanes_of(mask)}
    for lane, place in where.items():
        count = size
        if part is not None:
            given = step.read(warp, part)[lane]
            count = (0 if given else size) if part.type == "pred" else min(given, size)
        origin = spaces.span(warp, lane, source[lane], count, size if count else 1, write=False)
        data = spaces.read(warp, origin, count) if count else b""
        spaces.write(warp, place, data.ljust(size, b"\0"))
        if observer is not None:
            observer.copied(warp, place, origin, count, size)


def copy_arrive(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`cp.async.mbarrier.arrive`: an arrival, which without `.noinc` is first added to those that are missing."""
    for lane, where in mbarriers.locate(warp, step, mask).items():
        mbarriers.change(warp, lane, where, 0 if step.mods["noinc"] else -1)
        warp.grid.events += 1
        mbarriers.change(warp, lane, where, 1)


def _signalled(barrier: int, rank: int, *, pair: bool) -> int:
    """The mbarrier that hears of a copy into a CTA: its own, or with cta_group::2 that of the pair which is named."""
    at = rank & ~1 | barrier >> 24 & 1 if pair else rank
    return barrier & spaces.SLICE - 1 | at << 24


def deliver(
    warp: Warp,
    lane: int,
    ends: tuple[int, int],
    span: tuple[int, int, int],
    put: Callable[[Place], None],
    *,
    ranks: int | None = None,
    pair: bool = False,
) -> None:
    """Lets a copy into shared memory of one CTA, or of each of `ranks`, happen, and tells the mbarrier.

    Args:
        warp: whose lane issues it.
        lane: of whom a fault is told.
        ends: shared addresses of the destination and of the mbarrier.
        span: bytes of shared memory it covers, their alignment, bytes that the mbarrier counts.
        put: writes to a place.
        ranks: of a multicast, as bits; None for a copy to the destination itself.
        pair: the mbarrier may be in the other CTA of a pair.

    Raises:
        FaultError: addresses, or the mbarrier's count.
    """
    (to, barrier), (size, align, counted) = ends, span
    if ranks is not None and ranks >> len(warp.grid.ctas):
        raise FaultError(faults.COPY, lane, 0, ranks, _CTAS)
    for rank in [None] if ranks is None else lanes_of(ranks):
        target = to if rank is None else to & spaces.SLICE - 1 | rank << 24
        signal = barrier if rank is None else _signalled(barrier, rank, pair=pair)
        where = spaces.place(warp, "shared::cluster", lane, target, size, write=True, align=align)
        heard = spaces.place(warp, "shared::cluster", lane, signal, 8, write=True)
        put(where)
        warp.grid.events += 1
        mbarriers.change(warp, lane, heard, 0, tx=-counted)


def _move(warp: Warp, step: Step, ends: tuple[Place, Place], size: int, observer: Observer | None) -> None:
    where, origin = ends
    data = spaces.read(warp, origin, size) if size else b""
    if "op" in step.mods:
        kind = step.mods["type"]
        reduce_bytes(warp, step.mods["op"], kind, where, data, flush=kind == "f32")
        return
    if size:
        spaces.write(warp, where, data)
    if observer is not None:
        for at in range(0, size, _WORD):
            there, here = (Place(one.owner, one.number, one.at + at) for one in (where, origin))
            observer.copied(warp, there, here, _WORD, _WORD)


def bulk(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`cp.async.bulk` and `cp.reduce.async.bulk` between global and shared memory, or shared memory of two CTAs."""
    load = "dst" in step.mods
    space, to = addresses(warp, step, "a")
    _, source = addresses(warp, step, "s")
    sizes = step.source(warp, "n")
    barriers = addresses(warp, step, "b")[1] if load else to
    ranks = step.source(warp, "ranks") if step.mods.get("multicast") else None
    assert load or space == "global"
    for lane in lanes_of(mask):
        size = sizes[lane]
        if size % PIECE:
            raise FaultError(faults.COPY, lane, 0, size, _SIZE)
        if load and step.mods["src"] == "global":
            origin = spaces.span(warp, lane, source[lane], size, PIECE, write=False)
        else:
            origin = spaces.place(warp, "shared", lane, source[lane], size, write=False, align=PIECE)
        if not load:
            where = spaces.span(warp, lane, to[lane], size, PIECE, write=True)
            _move(warp, step, (where, origin), size, observer)
            warp.grid.events += 1
            continue

        def put(where: Place, origin: Place = origin, size: int = size) -> None:
            _move(warp, step, (where, origin), size, observer)

        named = None if ranks is None else ranks[lane]
        deliver(warp, lane, (to[lane], barriers[lane]), (size, PIECE, size), put, ranks=named)


def store_async(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`st.async` and `red.async`: a few bytes to shared memory of the cluster."""
    kind = step.mods["type"]
    size = TYPE_BITS[kind] // 8
    count = int(step.mods["vec"][1:]) if step.mods.get("vec") else 0
    values = [step.source(warp, name) for name in ([f"v{i}" for i in range(count)] or ["v"])]
    to, barriers = addresses(warp, step, "a")[1], addresses(warp, step, "b")[1]
    total = size * len(values)
    for lane in lanes_of(mask):
        data = b"".join((one[lane] & (1 << 8 * size) - 1).to_bytes(size, "little") for one in values)

        def put(where: Place, lane: int = lane, data: bytes = data) -> None:
            if "op" in step.mods:
                reduce_bytes(warp, step.mods["op"], kind, where, data, flush=False)
                return
            spaces.write(warp, where, data)
            if observer is not None:
                observer.stored(warp, step, lane, where, data)

        deliver(warp, lane, (to[lane], barriers[lane]), (total, total, total), put)


def store_zeros(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`st.bulk`: zeros."""
    value, sizes = step.source(warp, "i")[0], step.source(warp, "n")
    if value:
        raise FaultError(faults.VALUE, 0, value, 0, 2)
    space, at = addresses(warp, step, "a")
    for lane in lanes_of(mask):
        if sizes[lane]:
            where = spaces.place(warp, space, lane, at[lane], 1, write=True, align=8)
            spaces.place(warp, space, lane, at[lane] + sizes[lane] - 1, 1, write=True)
            spaces.write(warp, where, bytes(sizes[lane]))


def find(step: Step) -> Handler | None:
    """What executes a `cp`, but for those of tensors."""
    mods = step.mods
    if mods.keys() & {"commit_group", "wait_group", "wait_all"}:
        return nothing
    if "mbarrier" in mods:
        return copy_arrive
    if "bulk" in mods:
        return bulk
    return copy
