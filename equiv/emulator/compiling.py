"""A device that compiles what is launched on it and runs nothing: for what can be known without executing.

Host code goes all its way, so each kernel is compiled as a run would compile it and every launch is noted; the tensors
stay as they are. A host function whose launches depend on results cannot be followed this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator.device import EmulatedDevice
from equiv.emulator.engine import LaunchStats
from equiv.emulator.launch import Launch, LaunchCount

if TYPE_CHECKING:
    from equiv.emulator.cute_shim import RawLaunch

_NOTHING = LaunchStats(0, 0, 0.0)


class CompilingDevice(EmulatedDevice):
    """An emulated device whose launches end before their first instruction."""

    def launch_raw(self, launch: RawLaunch) -> None:
        """A launch from CuTe host code, whose parameters are not looked at."""
        self.run(
            Launch(
                launch.image,
                launch.kernel,
                launch.grid,
                launch.block,
                launch.cluster,
                launch.dynamic_shared,
                launch.attributes,
                b"",
            )
        )

    def run(self, launch: Launch) -> LaunchCount:
        """Notes one launch."""
        return self._counted(launch, _NOTHING)
