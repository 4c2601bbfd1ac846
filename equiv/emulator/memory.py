"""The device's global memory: host memory that has been registered, and nothing else.

A kernel sees real host addresses. Each access of each lane must lie within one registered region.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass

from equiv.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Region:
    """A registered piece of host memory: [address, address + nbytes)."""

    address: int
    nbytes: int
    name: str
    writable: bool

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.address + self.nbytes


class Memory:
    """The registered regions, disjoint and in ascending order. Methods may be called from several threads."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._lock = threading.Lock()

    @property
    def regions(self) -> tuple[Region, ...]:
        """All regions in ascending order of address."""
        with self._lock:
            return tuple(self._regions)

    def register(self, address: int, nbytes: int, name: str, writable: bool = True) -> Region:  # noqa: FBT001, FBT002
        """Allow kernels to access host memory; the caller keeps it alive until `unregister`.

        Args:
            address: first byte.
            nbytes: number of bytes, at least 1.
            name: what messages call it.
            writable: whether stores are allowed.

        Raises:
            DeviceError: it is empty or overlaps a registered region; both are named.
        """
        if nbytes <= 0 or address <= 0:
            raise DeviceError(f"`{name}` cannot be registered: {nbytes} bytes at {address:#x}")
        region = Region(address, nbytes, name, writable)
        with self._lock:
            at = bisect_right(self._regions, address, key=lambda one: one.address)
            for other in self._regions[max(at - 1, 0) : at + 1]:
                if other.address < region.end and address < other.end:
                    raise DeviceError(f"`{name}` [{address:#x}, {region.end:#x}) overlaps {_describe(other)}")
            self._regions.insert(at, region)
        return region

    def unregister(self, address: int) -> None:
        """Forget the region that starts at `address`.

        Raises:
            DeviceError: none does.
        """
        with self._lock:
            for at, region in enumerate(self._regions):
                if region.address == address:
                    del self._regions[at]
                    return
        raise DeviceError(f"no registered region starts at {address:#x}")

    def find(self, address: int) -> Region | None:
        """The region that contains the byte at `address`, or None."""
        with self._lock:
            at = bisect_right(self._regions, address, key=lambda one: one.address)
            if at and address < self._regions[at - 1].end:
                return self._regions[at - 1]
        return None


def nearest(regions: tuple[Region, ...], address: int, size: int) -> str:
    """Where an access of `size` bytes lies with respect to the nearest region: `16 bytes past the end of `cache``."""
    best, distance = None, 0
    for region in regions:
        if region.address <= address < region.end:
            over = address + size - region.end
            return f"at byte {address - region.address} of {_describe(region)}" + (
                f", {over} of {size} bytes past its end" if over > 0 else ""
            )
        gap = address - region.end if address >= region.end else region.address - address
        if best is None or gap < distance:
            best, distance = region, gap
    if best is None:
        return "no memory is registered"
    side = "past the end" if address >= best.end else "before the start"
    return f"{f'{distance} bytes' if distance else 'just'} {side} of {_describe(best)}"


def _describe(region: Region) -> str:
    return f"`{region.name}` ({region.nbytes} bytes at {region.address:#x}{'' if region.writable else ', read-only'})"
