"""A device on which launches run through the portable engine while a tracer follows their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equiv.emulator import contraction, ptx_parser
from equiv.emulator.device import EmulatedDevice
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.reference import engine as reference
from equiv.emulator.store import shared_store
from equiv.emulator.trace import Tracer
from equiv.errors import DeviceError

if TYPE_CHECKING:
    from equiv.emulator.launch import Launch, LaunchCount
    from equiv.emulator.ptx import Module


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A contracted kernel as the portable engine takes it."""

    image: Any
    module: Module
    program: reference.Program


class TracingDevice(EmulatedDevice):
    """An emulated device with a tracer; see `equiv.emulator.device.EmulatedDevice`.

    Attributes:
        tracer: follows all launches since the device was made.
    """

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        self.tracer = Tracer()
        self._traced: dict[tuple[str, str], Any] = {}

    def run(self, launch: Launch) -> LaunchCount:
        """Runs one launch through the portable engine: as on an emulated device, but slow and followed."""
        program = self._prepare(launch.image, launch.kernel).program
        config = LaunchConfig(launch.grid, launch.block, launch.cluster, launch.dynamic_shared)
        with self._adopted(launch):
            self.tracer.begin()
            stats = reference.launch(program, config, launch.params, self.memory, observer=self.tracer)
        return self._counted(launch, stats)

    def _prepare(self, name: str, kernel: str) -> Any:  # noqa: ANN401  as the base class, of another engine's program
        found = self._traced.get((name, kernel))
        if found is None:
            image = shared_store().find(name)
            if image is None:
                raise DeviceError(
                    f"{kernel}: no PTX is known for the cubin {name}; compile it inside `device.active()`"
                )
            module = ptx_parser.parse(image.ptx)
            program = reference.load(contraction.contract_all(module, kernel), kernel, self.arch)
            found = self._traced[name, kernel] = _Prepared(image, module, program)
        return found
