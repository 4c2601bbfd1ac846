"""A device on which launches run through the portable engine while a tracer follows their values.

The portable engine does a few thousand instructions of a warp in a second. So each launch runs at full speed first; of
one that is long only some clusters are followed, and what the others write is unknown to the tracer.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import numpy as np

from equiv.emulator import contraction
from equiv.emulator.device import EmulatedDevice
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.reference import engine as reference
from equiv.emulator.trace import Tracer
from equiv.errors import UnsupportedError
from equiv.terminal import kernel_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.emulator.launch import Launch, LaunchCount
    from equiv.emulator.memory import Region

    Contents = Mapping[Region, bytes]

WHOLE: Final = 250_000
"""Instructions of warps up to which all clusters of a launch are followed."""
PART: Final = 50_000
"""About as many are followed of a longer launch, at least those of one cluster."""
MOST: Final = 1 << 30
"""Bytes of writable buffers that are kept to run a launch again."""


class TracingDevice(EmulatedDevice):
    """An emulated device with a tracer; see `equiv.emulator.device.EmulatedDevice`.

    Attributes:
        tracer: follows all launches since the device was made.
        partly: of each launch that was followed in some clusters only, in words how many.
    """

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        self.tracer = Tracer()
        self.partly: list[str] = []
        self._traced: dict[tuple[str, str], reference.Program] = {}

    def run(self, launch: Launch) -> LaunchCount:
        """Runs one launch as an emulated device does, and again, from the same memory, to follow it.

        Raises:
            UnsupportedError: the buffers are too large to be kept for that.
            UnknownInstructionError: the kernel moves values in a way that is not followed.
        """
        with self._adopted(launch):
            before = self._contents()
            count = super().run(launch)
            after = self._contents()
            _restore(before)
            config = LaunchConfig(launch.grid, launch.block, launch.cluster, launch.dynamic_shared)
            clusters = _chosen(config, count.warp_instructions)
            self.tracer.begin()
            program = self._program(launch)
            reference.launch(program, config, launch.params, self.memory, observer=self.tracer, clusters=clusters)
            if clusters is not None:
                total = _clusters(config)
                self.partly.append(f"{kernel_name(launch.kernel)} in {len(clusters)} of {total} clusters")
                for region, wanted in after.items():
                    now, then = (np.frombuffer(one, np.uint8) for one in (_read(region), wanted))
                    written = np.flatnonzero(now != then).tolist()
                    self.tracer.lost(region.name, region.address, {at: wanted[at] for at in written})
            _restore(after)
        return count

    def _contents(self) -> Contents:
        regions = [one for one in self.memory.regions if one.writable]
        size = sum(one.nbytes for one in regions)
        if size > MOST:
            raise UnsupportedError(f"buffers:{MOST}", f"a trace keeps all buffers, which have {size} bytes")
        return {one: _read(one) for one in regions}

    def _program(self, launch: Launch) -> reference.Program:
        key = launch.image, launch.kernel
        if key not in self._traced:
            module = contraction.contract_all(self._prepare(*key).module, launch.kernel)
            self._traced[key] = reference.load(module, launch.kernel, self.arch)
        return self._traced[key]


def _read(region: Region) -> bytes:
    return ctypes.string_at(region.address, region.nbytes)


def _restore(contents: Contents) -> None:
    for region, data in contents.items():
        ctypes.memmove(region.address, data, region.nbytes)


def _clusters(config: LaunchConfig) -> int:
    return int(np.prod(config.grid)) // int(np.prod(config.cluster))


def _chosen(config: LaunchConfig, instructions: int) -> frozenset[int] | None:
    """The numbers of the clusters to follow, evenly spread, the first one among them; None: all."""
    total = _clusters(config)
    count = max(PART * total // instructions, 1)
    return None if instructions <= WHOLE or count >= total else frozenset(i * total // count for i in range(count))
