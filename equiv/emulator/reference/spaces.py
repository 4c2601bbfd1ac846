"""The memory of a running grid by state space: checks as the C engine makes them, and bytes in and out.

An access is first turned into a `Place` (whose memory, at which byte); its bytes are then read or written there.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.emulator import faults
from equiv.emulator.reference.integers import GENERIC_LOCAL, GENERIC_SHARED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.emulator.memory import Region
    from equiv.emulator.reference.machine import Warp

RESERVED = 0x400
SLICE = 0x1000000
_NARROW = ("shared", "local")


class FaultError(Exception):
    """An access that the C engine would report; `machine` turns it into the same error."""

    def __init__(self, kind: int, lane: int, address: int, size: int, detail: int) -> None:
        super().__init__(kind, lane, address, size, detail)
        self.kind, self.lane, self.address, self.size, self.detail = kind, lane, address, size, detail


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of memory.

    Attributes:
        owner: `global`, `shared`, `local` or `param`.
        number: rank of the CTA, or lane.
        at: host address, or offset.
    """

    owner: str
    number: int
    at: int


class GlobalMemory:
    """Host memory within registered regions."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = sorted(regions, key=lambda one: one.address)
        self._starts = [one.address for one in self.regions]

    def find(self, address: int) -> Region | None:
        """The region that holds the byte at an address."""
        at = bisect_right(self._starts, address) - 1
        return self.regions[at] if at >= 0 and address < self.regions[at].end else None

    def check(self, lane: int, address: int, size: int, *, write: bool) -> None:
        """Raises FaultError unless all the bytes lie in one region, writable if that is wanted."""
        region = self.find(address)
        if region is None or address + size > region.end:
            raise FaultError(faults.OUT_OF_BOUNDS, lane, address, size, int(write))
        if write and not region.writable:
            raise FaultError(faults.READ_ONLY, lane, address, size, 1)


def wrap(space: str, address: int) -> int:
    """An address as the space's arithmetic wraps it."""
    return address & (0xFFFF_FFFF if space.startswith((*_NARROW, "param::", "tensor")) else 0xFFFF_FFFF_FFFF_FFFF)


def shared_address(where: Place) -> int:
    """The address of a place in shared memory, as faults name it."""
    return where.number << 24 | where.at + RESERVED


def place(warp: Warp, space: str, lane: int, address: int, size: int, *, write: bool, align: int = 0) -> Place:
    """Checks one lane's access and says whose byte it is; space "" is generic, `align` 0 is `size`.

    Raises:
        FaultError: misaligned, out of bounds, or a write to read-only memory.
    """
    cluster = space == "shared::cluster"
    if not space:
        window, low = address >> 32, address & 0xFFFF_FFFF
        if window == GENERIC_SHARED >> 32:
            space, address, cluster = "shared", low, True
        elif window == GENERIC_LOCAL >> 32:
            space, address = "local", low
        else:
            space = "global"
    space = space.partition("::")[0]
    if address & (align or size) - 1:
        detail = {"shared": 2, "local": 3, "param": 4}.get(space, int(write))
        raise FaultError(faults.MISALIGNED, lane, address, align or size, detail)
    grid, cta = warp.grid, warp.cta
    if space == "shared":
        rank, offset = address >> 24, (address & SLICE - 1) - RESERVED
        known = rank < len(grid.ctas) if cluster else rank == cta.rank
        if not known or offset < 0 or offset + size > grid.shared_size:
            raise FaultError(faults.SHARED_BOUNDS, lane, address, size, 0)
        return Place("shared", rank, offset)
    if space == "local":
        if address + size > grid.local_size:
            raise FaultError(faults.LOCAL_BOUNDS, lane, address, size, 0)
        return Place("local", lane, address)
    if space == "param":
        if address + size > len(grid.params):
            raise FaultError(faults.PARAM_BOUNDS, lane, address, size, 0)
        return Place("param", 0, address)
    grid.memory.check(lane, address, size, write=write)
    return Place("global", 0, address)


def span(warp: Warp, lane: int, address: int, size: int, align: int, *, write: bool) -> Place:
    """The same of any number of bytes in global memory, none among them.

    Raises:
        FaultError: misaligned, out of bounds, or a write to read-only memory.
    """
    if address & align - 1:
        raise FaultError(faults.MISALIGNED, lane, address, align, int(write))
    if size:
        warp.grid.memory.check(lane, address, size, write=write)
    return Place("global", 0, address)


def read(warp: Warp, where: Place, size: int) -> bytes:
    """The bytes at a checked place."""
    if where.owner == "global":
        return ctypes.string_at(where.at, size)
    return bytes(_storage(warp, where)[where.at : where.at + size])


def write(warp: Warp, where: Place, data: bytes) -> None:
    """Stores bytes at a checked place."""
    if where.owner == "global":
        ctypes.memmove(where.at, data, len(data))
    else:
        _storage(warp, where)[where.at : where.at + len(data)] = data


def _storage(warp: Warp, where: Place) -> bytearray:
    if where.owner == "shared":
        return warp.grid.ctas[where.number].shared
    return warp.local[where.number] if where.owner == "local" else warp.grid.params
