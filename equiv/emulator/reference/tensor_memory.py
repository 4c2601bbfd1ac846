"""Tensor memory of a CTA: allocation, `tcgen05.ld`, `.st` and `.cp`, and `.commit` (spec numerics 1.6).

128 lanes of 512 columns of 32 bits, allocated by 32 columns; an address is lane << 16 | column. Allocated columns start
poisoned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.reference import mbarriers, operands, spaces
from equiv.emulator.reference.integers import GENERIC_SHARED
from equiv.emulator.reference.machine import LANES, TENSOR
from equiv.emulator.reference.operands import Problem, problem
from equiv.emulator.reference.steps import lanes_of
from equiv.emulator.reference.warps import addresses

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.emulator.reference.machine import Cta, Warp
    from equiv.emulator.reference.spaces import Place
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Handler, Observer

ROWS, COLUMNS, UNIT = 128, 512, 32
_SHAPES = {"32x32b": (32, 32, 1), "16x64b": (16, 64, 1), "16x128b": (16, 128, 2), "16x256b": (16, 256, 4),
           "16x32bx2": (16, 0, 1)}  # fmt: skip
"""Rows a warp, bits a row, registers for each step of the columns."""
_COPIES = {"128x256b": (128, 256, 0), "128x128b": (128, 128, 0), "64x128b.warpx2::02_13": (64, 128, 2),
           "64x128b.warpx2::01_23": (64, 128, 1), "32x128b.warpx4": (32, 128, 4)}  # fmt: skip
"""Rows, bits a row, and which rows the four quarters of the lanes get."""


class LeakError(Exception):
    """A CTA has ended with columns still allocated."""

    def __init__(self, warp: Warp, columns: int) -> None:
        super().__init__(columns)
        self.warp, self.columns = warp, columns


class TensorMemory:
    """The tensor memory of one CTA; `sizes` are the columns of each allocation by its first."""

    def __init__(self) -> None:
        self.words = np.zeros((ROWS, COLUMNS), np.uint32)
        self.sizes: dict[int, int] = {}
        self.relinquished = False

    def allocated(self) -> set[int]:
        """Every allocated column."""
        return {column for start, size in self.sizes.items() for column in range(start, start + size)}

    def room(self, columns: int) -> int | None:
        """The first free run of columns, or None."""
        taken = self.allocated()
        for start in range(0, COLUMNS - columns + 1, UNIT):
            if not any(column in taken for column in range(start, start + columns, UNIT)):
                return start
        return None

    def allocate(self, start: int, columns: int) -> None:
        """Takes a free run."""
        self.sizes[start] = columns
        self.words[:, start : start + columns] = 0xFFFF_FFFF


def _memory(cta: Cta) -> TensorMemory:
    if cta.tensor is None:
        cta.tensor = TensorMemory()
    return cta.tensor


def check(cta: Cta, lane: int, address: int, count: int) -> TensorMemory:
    """The CTA's tensor memory, in which `count` columns from the address's must be allocated.

    Raises:
        FaultError: they are not.
    """
    first = address & 0xFFFF
    last = first + count - 1
    held = cta.tensor
    if held is None or last >= COLUMNS or address >> 16 >= ROWS or not set(range(first, last + 1)) <= held.allocated():
        raise problem(Problem.NOT_ALLOCATED, address, count, lane)
    return held


def check_leaks(ctas: list[Cta]) -> None:
    """Raises LeakError if a CTA that has ended still has columns."""
    for cta in ctas:
        if cta.tensor is not None and cta.tensor.sizes:
            raise LeakError(cta.warps[0], sum(cta.tensor.sizes.values()))


def pair_member(warp: Warp, lane: int, pair: int, number: int) -> Cta:
    """CTA `number` of the `pair` CTAs that an instruction works on.

    Raises:
        FaultError: not issued by the even one of a pair.
    """
    rank = warp.cta.rank
    if pair == 2 and (rank % 2 or rank + 1 >= len(warp.grid.ctas)):
        raise problem(Problem.PAIR, rank, len(warp.grid.ctas), lane)
    return warp.grid.ctas[rank + number]


def has_room(cta: Cta, columns: int) -> bool:
    """Whether so many columns in a row are free."""
    return _memory(cta).room(columns) is not None


def allocate(warp: Warp, step: Step, mask: int, _: Observer | None) -> int:
    """`tcgen05.alloc`: of a pair each CTA allocates its own. Without room it waits for a `tcgen05.dealloc`."""
    operands.whole_warp(mask)
    columns = operands.uniform(step.source(warp, "n"))
    space, at = addresses(warp, step, "a")
    if columns not in {32, 64, 128, 256, 512}:
        raise problem(Problem.COLUMNS, columns)
    held = _memory(warp.cta)
    if held.relinquished:
        raise problem(Problem.RELINQUISHED, columns)
    start = held.room(columns)
    if start is None:
        warp.put(warp.pc, mask, TENSOR, columns, COLUMNS - sum(held.sizes.values()))
        return mask
    where = spaces.place(warp, space, 0, at[0], 4, write=True)
    held.allocate(start, columns)
    spaces.write(warp, where, start.to_bytes(4, "little"))
    return 0


def deallocate(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`tcgen05.dealloc`."""
    operands.whole_warp(mask)
    address, columns = (operands.uniform(step.source(warp, name)) for name in "an")
    held = warp.cta.tensor
    if held is None or held.sizes.get(address) != columns:
        raise problem(Problem.DEALLOC, address, columns)
    del held.sizes[address]


def relinquish(warp: Warp, _step: Step, _mask: int, _: Observer | None) -> None:
    """`tcgen05.relinquish_alloc_permit`."""
    _memory(warp.cta).relinquished = True


def _cells(bits: int, count: int, scale: int, split: int) -> Iterator[tuple[int, int, int, int]]:
    """(register, lane, row, column) of each register of a warp."""
    for i in range(count):
        for lane in range(LANES):
            row, column = {
                0: (lane % 16, i),
                32: (lane, i),
                64: (lane // 4 + 8 * (lane % 2), 2 * i + lane // 2 % 2),
                128: (lane // 4 + 8 * (i & 1), 4 * (i // 2) + lane % 4),
                256: (lane // 4 + 8 * (i // 2 & 1), 8 * (i // 4) + 2 * (lane % 4) + (i & 1)),
            }[bits]
            yield i, lane, row, column * scale + (split if bits == 0 and lane >= 16 else 0)


def move(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`tcgen05.ld` and `.st`: a warp reaches its own quarter of the lanes; packed: two columns a register."""
    operands.whole_warp(mask)
    address = operands.uniform(addresses(warp, step, "a")[1])
    shape = next(one for one in _SHAPES if one in step.mods)
    rows, bits, repeat = _SHAPES[shape]
    load, scale = step.mods["what"] == "ld", 2 if step.mods["packed"] else 1
    registers = step.results if load else [one for one in step.sources if one.name.startswith("s")]
    split = step.source(warp, "i")[0] & 0xFFFF_FFFF if bits == 0 else 0
    lane = address >> 16
    if lane // 32 != warp.id % 4 or lane % rows:
        raise problem(Problem.LANE_ACCESS, address, warp.id % 4 * 32)
    columns = len(registers) // repeat * max(bits // 32, 1) * scale
    held = check(warp.cta, 0, address, columns)
    if bits == 0:
        check(warp.cta, 0, address + split & 0xFFFF_FFFF, columns)
    values = [[0] * LANES for _ in registers] if load else [step.read(warp, one) for one in registers]
    for i, register_lane, row, column in _cells(bits, len(registers), scale, split):
        at = lane + row, (address & 0xFFFF) + column
        if load and scale == 1:
            values[i][register_lane] = int(held.words[at])
        elif load:
            low, high = int(held.words[at]), int(held.words[at[0], at[1] + 1])
            values[i][register_lane] = low & 0xFFFF | (high & 0xFFFF) << 16
        elif scale == 1:
            held.words[at] = values[i][register_lane]
        else:
            held.words[at] = values[i][register_lane] & 0xFFFF
            held.words[at[0], at[1] + 1] = values[i][register_lane] >> 16
    for one, lanes in zip(registers, values, strict=True) if load else ():
        step.write(warp, one, lanes, mask)
    if load and observer is not None:
        observer.hidden(warp, step, mask)


def copy(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`tcgen05.cp`: rows from shared memory to lanes, in each CTA of a pair from its own."""
    shape = next(one for one in _COPIES if set(one.split(".")) <= step.mods.keys())
    rows, bits, spread = _COPIES[shape]
    targets, words, pair = addresses(warp, step, "a")[1], step.source(warp, "s"), int(step.mods["group"][-1])
    for lane in lanes_of(mask):
        address = targets[lane]
        if address >> 16:
            raise problem(Problem.LANE_ACCESS, address, 0, lane)
        for number in range(pair):
            cta = pair_member(warp, lane, pair, number)
            at = operands.tensor_descriptor(cta.rank, lane, words[lane])
            if at.atom == 32:
                raise problem(Problem.SWIZZLE, words[lane], 1, lane)
            held = check(cta, lane, address, bits // 32)
            data = operands.rows(warp, at, 0, rows, bits // 8).view(np.uint32)
            for to in range(ROWS):
                half = {4: 0, 2: to // 32 % 2, 1: to // 64, 0: 0}[spread]
                row = half * 32 + to % 32 if spread else to
                held.words[to, address : address + bits // 32] = data[row]


def commit(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`tcgen05.commit`: everything before has happened, so each mbarrier gets its arrival at once."""
    space, at = addresses(warp, step, "a")
    if not space:  # of a generic address UTCBAR takes the low half: it may be one of shared memory as it is
        at = [one if one >> 32 else one | GENERIC_SHARED for one in at]
    if "multicast::cluster" not in step.mods:
        _arrive(warp, {lane: spaces.place(warp, space, lane, at[lane], 8, write=True) for lane in lanes_of(mask)})
        return
    masks = step.source(warp, "x")
    for rank in range(16):
        named = [lane for lane in lanes_of(mask) if masks[lane] >> rank & 1]
        _arrive(warp, {
            lane: spaces.place(warp, space, lane, at[lane] & spaces.SLICE - 1 | rank << 24, 8, write=True)
            for lane in named
        })  # fmt: skip


def _arrive(warp: Warp, places: Mapping[int, Place]) -> None:
    for lane, where in mbarriers.in_shared(places).items():
        mbarriers.change(warp, lane, where, 1)


def find(step: Step) -> Handler | None:
    """What executes a `tcgen05` that is no product."""
    mods = step.mods
    if mods.get("what") in {"ld", "st"}:
        return move
    known: dict[str, Handler] = {
        "alloc": allocate, "dealloc": deallocate, "relinquish_alloc_permit": relinquish, "cp": copy, "commit": commit,
    }  # fmt: skip
    return next((handler for name, handler in known.items() if name in mods), None)
