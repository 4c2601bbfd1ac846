"""A device that runs nothing: it keeps the launches that reach it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from equiv.emulator import ptx_parser
from equiv.emulator.launch import LaunchCount
from equiv.emulator.store import shared_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.emulator.cute_shim import RawLaunch
    from equiv.emulator.launch import Launch
    from equiv.emulator.ptx import Param


class Listener:
    """Stands in for an emulated device towards Triton and CuTe DSL.

    Attributes:
        launches: from Triton; raw: from CuTe host code, with the parameter values read out.
        raising: what the next launches raise.
        costs: threads of a launch -> warp instructions that it pretends to take; 1 if not there.
    """

    def __init__(self, arch: str) -> None:
        self.name = f"listener:{arch}"
        self.arch = arch
        self.capability = {"sm_90a": (9, 0), "sm_100a": (10, 0)}[arch]
        self.device_attributes: Mapping[int, int] = {16: 132, 81: 233472, 97: 232448}
        self.launches: list[Launch] = []
        self.raw: list[tuple[RawLaunch, list[bytes]]] = []
        self.raising: BaseException | None = None
        self.costs: dict[int, int] = {}

    def parameters(self, image: str, kernel: str) -> tuple[Param, ...]:
        return ptx_parser.parse(shared_store().get(image).ptx).kernels[kernel].params

    def static_shared(self, image: str, kernel: str) -> int:  # noqa: ARG002
        return 0

    def run(self, launch: Launch) -> LaunchCount:
        if self.raising is not None:
            raise self.raising
        self.launches.append(launch)
        shape = (launch.grid, launch.block, launch.cluster, launch.dynamic_shared)
        cost = self.costs.get(launch.block[0] * launch.grid[0], 1)
        return LaunchCount(launch.image, launch.kernel, *shape, cost, 32 * cost, 0.0)

    def launch_raw(self, launch: RawLaunch) -> None:
        if self.raising is not None:
            raise self.raising
        params = self.parameters(launch.image, launch.kernel)
        values = [ctypes.string_at(launch.arguments[index], one.size) for index, one in enumerate(params)]
        self.raw.append((launch, values))
