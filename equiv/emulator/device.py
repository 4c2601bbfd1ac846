"""An emulated device: launches from Triton and CuTe DSL run through the PTX emulator on memory of this process.

    Image -> parse -> contract -> load (once an image and kernel, kept) -> find buffers -> record -> run -> record

Torch CPU tensors are its memory. A kernel may touch registered buffers only; tensors that a launch passes and nobody
registered are registered for the length of the launch.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from equiv.emulator import contraction, cute_runtime, engine, ptx_parser, triton_driver
from equiv.emulator.capture import Recorder
from equiv.emulator.launch import LIMIT_SHARED, Launch, LaunchCount
from equiv.emulator.memory import Memory, Region
from equiv.emulator.own_memory import live_tensors, mapped
from equiv.emulator.record import Pointer
from equiv.emulator.store import Image, shared_store
from equiv.errors import DeviceError, IllegalAccessError, UnsupportedError
from equiv.terminal import kernel_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from equiv.emulator.cute_shim import RawLaunch
    from equiv.emulator.ptx import Module, Param
    from equiv.emulator.vouch import Vouch

CAPABILITIES = {"sm_90a": (9, 0), "sm_100a": (10, 0)}

MULTIPROCESSORS = {"sm_90a": 132, "sm_100a": 148}
"""H200 and B200."""


def device_attributes(arch: str) -> dict[int, int]:
    """CUdevice_attribute number -> value, for what hosts ask; an attribute that is not here is refused by number."""
    major, minor = CAPABILITIES[arch]
    return {
        1: 1024,  # threads a block
        2: 1024,  # block x, y, z
        3: 1024,
        4: 64,
        8: 49152,  # shared memory a block without opting in
        10: 32,  # warp size
        12: 65536,  # registers a block
        16: MULTIPROCESSORS[arch],
        39: 2048,  # threads a multiprocessor
        75: major,
        76: minor,
        81: 233472,  # shared memory a multiprocessor
        82: 65536,  # registers a multiprocessor
        95: 1,  # cooperative launch
        97: LIMIT_SHARED,  # shared memory a block with opting in
        106: 32,  # blocks a multiprocessor
        111: 1024,  # shared memory that the system takes from each block
        120: 1,  # clusters
    }


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A kernel that is ready to run."""

    image: Image
    module: Module
    program: engine.Program


class EmulatedDevice:
    """One emulated GPU; see `equiv.device.Device` for what it offers to callers.

    Attributes:
        current: the devices whose blocks this process is in, innermost last.
        launches: what ran since the outermost `active` block began.
        check, checks, seed, completion: of every launch, as `equiv.emulator.engine.launch` explains them.
    """

    kind = "emulated"
    current: ClassVar[list[EmulatedDevice]] = []
    torch_device = "cpu"

    def __init__(
        self,
        arch: str,
        *,
        check: str | None = None,
        checks: bool = True,
        seed: int | None = None,
        completion: str = "eager",
    ) -> None:
        self.check = check
        self.checks = checks
        self.seed = seed
        self.completion = completion
        self.arch = arch
        self.name = f"emulated:{arch}"
        self.capability = CAPABILITIES[arch]
        self.device_attributes: Mapping[int, int] = device_attributes(arch)
        self.memory = Memory()
        self.launches: list[LaunchCount] = []
        self._registered: dict[str, tuple[Region, Any]] = {}
        self._recorders: list[Recorder] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Kernel launches of this process go to this device inside the block; blocks may nest, also of other devices.

        Raises:
            UnsupportedError: an installed Triton or CuTe DSL is of a version that is not known here.
        """
        if self not in self.current:
            self.launches = []
        with ExitStack() as stack:
            for host in (triton_driver, cute_runtime):
                if host.installed():
                    stack.enter_context(host.active(self))
            self.current.append(self)
            try:
                yield
            finally:
                self.current.pop()

    @contextmanager
    def recorded(self, root: Path, name: str) -> Iterator[None]:
        """Launches inside the block are recorded as capture `name` in the record folder `root`, also if one fails."""
        recorder = Recorder(root, name, self.name)
        self._recorders.append(recorder)
        try:
            yield
        finally:
            self._recorders.remove(recorder)
            recorder.save()

    def register(self, name: str, what: Any, *, writable: bool = True) -> None:  # noqa: ANN401
        """Kernels may read (and write) this memory until `unregister`: the span of a CPU tensor, or (address, bytes).

        The tensor lives until then; memory given by its address is for the caller to keep.

        Raises:
            DeviceError: the name is taken, the tensor is not on the CPU, or the memory overlaps another buffer.
        """
        if name in self._registered:
            raise DeviceError(f"{self.name}: a buffer named {name!r} is registered already")
        address, nbytes = what if isinstance(what, tuple) else _span(name, what)
        if nbytes:
            # Kept with its owner: memory that is given back must not stay accessible under this name.
            self._registered[name] = self.memory.register(address, nbytes, name, writable), what

    def unregister(self, name: str) -> None:
        """Takes the memory of that name away again; a name whose tensor was empty is no fault."""
        found = self._registered.pop(name, None)
        if found is not None:
            self.memory.unregister(found[0].address)

    def synchronize(self) -> None:
        """Launches are complete when they return."""

    def vouches(self) -> dict[str, Vouch]:
        """For the image of each launch since activation, by digest: is what was emulated what the assembler made of it?

        Assembles and disassembles each image once a process; needs the compiler's own `ptxas` and a disassembler.
        """
        from equiv.emulator import vouch

        for one in self.launches:
            key = (one.image, self.arch)
            if key not in _VOUCHES:
                prepared = self._prepare(one.image, one.kernel)
                _VOUCHES[key] = vouch.vouch(prepared.module, prepared.image.cubin, self.arch)
        return {one.image: _VOUCHES[one.image, self.arch] for one in self.launches}

    def remarks(self) -> tuple[str, ...]:
        """What is to be known of the launches since activation beside their results: one line each, none twice.

        An image whose fusing of products and sums nothing vouches for, sums whose order the hardware leaves open,
        instructions that no hardware has been compared with, and what the checker noticed without calling it a fault.
        """
        vouches = self.vouches()
        lines = []
        for one in self.launches:
            name = kernel_name(one.kernel)
            if not vouches[one.image].ok:
                lines.append(f"not vouched for: {name}: {vouches[one.image].detail}")
            if one.order_dependent:
                lines.append(f"{name}: float additions to memory, whose order the hardware leaves open")
            if one.unmeasured:
                lines.append(f"{name}: by published model, never measured: {', '.join(one.unmeasured)}")
            lines += [f"{name}: {note}" for note in one.notes]
        return tuple(dict.fromkeys(lines))

    def parameters(self, image: str, kernel: str) -> tuple[Param, ...]:
        """The parameter list of a kernel of an image in the store."""
        return self._prepare(image, kernel).program.kernel.params

    def static_shared(self, image: str, kernel: str) -> int:
        """Bytes of static shared memory of a kernel."""
        return self._prepare(image, kernel).program.bytecode.dynamic_at

    def launch_raw(self, launch: RawLaunch) -> None:
        """A launch from CuTe host code: collects the parameter values, then `run`."""
        parameters = self.parameters(launch.image, launch.kernel)
        block = bytearray(max((one.offset + one.size for one in parameters), default=0))
        for index, one in enumerate(parameters):
            block[one.offset : one.offset + one.size] = ctypes.string_at(launch.arguments[index], one.size)
        self.run(
            Launch(
                image=launch.image,
                kernel=launch.kernel,
                grid=launch.grid,
                block=launch.block,
                cluster=launch.cluster,
                dynamic_shared=launch.dynamic_shared,
                attributes=launch.attributes,
                params=bytes(block),
            )
        )

    def run(self, launch: Launch) -> LaunchCount:
        """Runs one kernel launch to its end.

        Raises:
            DeviceError: the image is unknown or of another architecture, or a driver would refuse the launch.
            EmulatorError: the kernel did something wrong, or something the emulator does not know.
        """
        prepared = self._prepare(launch.image, launch.kernel)
        if launch.attributes.get("cooperative"):
            raise UnsupportedError("launch:cooperative", launch.kernel)
        with self._adopted(launch):
            pointers, strays = self._pointers(launch.params)
            regions = self._reached(pointers)
            records = [one.before(launch, prepared.image, pointers, regions) for one in self._recorders]
            error: BaseException | None = None
            try:
                config = engine.LaunchConfig(launch.grid, launch.block, launch.cluster, launch.dynamic_shared)
                stats = engine.launch(
                    prepared.program,
                    config,
                    launch.params,
                    self.memory,
                    seed=self.seed,
                    completion=self.completion,
                    check=self.check,
                    checks=self.checks,
                )
            except IllegalAccessError as caught:
                error = caught
                for offset, word in strays:
                    caught.add_note(
                        f"parameter bytes {offset}..{offset + 7} of {launch.kernel} hold {word:#x}: memory of this "
                        "process, but of no registered buffer; if it is a pointer, `device.register` its tensor"
                    )
                raise
            except BaseException as caught:
                error = caught
                raise
            finally:
                for recorder, record in zip(self._recorders, records, strict=True):
                    recorder.after(record, regions, error)
        return self._counted(launch, stats)

    def _counted(self, launch: Launch, stats: engine.LaunchStats) -> LaunchCount:
        """Adds a launch to `launches`."""
        count = LaunchCount(
            image=launch.image,
            kernel=launch.kernel,
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dynamic_shared=launch.dynamic_shared,
            warp_instructions=stats.warp_instructions,
            lane_instructions=stats.lane_instructions,
            seconds=stats.seconds,
            processor=stats.processor,
            configuration=launch.configuration,
            trial=launch.trial,
            order_dependent=stats.order_dependent,
            notes=stats.notes,
            unmeasured=stats.unmeasured,
        )
        self.launches.append(count)
        return count

    def _prepare(self, name: str, kernel: str) -> _Prepared:
        key = (name, kernel, self.arch)
        prepared = _PREPARED.get(key)
        image = shared_store().find(name)
        if prepared is None or image is None or prepared.image.ptx != image.ptx:
            if image is None:
                raise DeviceError(
                    f"{kernel}: no PTX is known for the cubin {name}; compile it inside `device.active()`"
                )
            if image.arch != self.arch:
                raise DeviceError(f"{kernel} was compiled for {image.arch}, the active device is {self.name}")
            module = ptx_parser.parse(image.ptx)
            if kernel not in module.kernels:
                raise DeviceError(f"{kernel}: not in the PTX of image {name}, which has {', '.join(module.kernels)}")
            program = engine.load(contraction.contract_all(module, kernel), kernel, self.arch)
            prepared = _PREPARED[key] = _Prepared(image, module, program)
        return prepared

    @contextmanager
    def _adopted(self, launch: Launch) -> Iterator[None]:
        """Registers the storage of passed tensors that no buffer covers, for the length of the block."""
        adopted: list[Region] = []
        try:
            for name, tensor in launch.tensors:
                self._adopt(name, tensor, adopted)
            _, strays = self._pointers(launch.params)
            if strays and "torch" in sys.modules:
                for name, tensor in live_tensors([word for _, word in strays]):
                    self._adopt(name, tensor, adopted)
            yield
        finally:
            for region in adopted:
                self.memory.unregister(region.address)

    def _adopt(self, name: str, tensor: Any, adopted: list[Region]) -> None:  # noqa: ANN401
        address = tensor.data_ptr()
        while not hasattr(tensor, "untyped_storage") and hasattr(tensor, "base"):
            tensor = tensor.base  # `triton.reinterpret` wraps a tensor
        # Anything else with an address is a raw pointer, to be found among the tensors that are alive.
        if not address or self.memory.find(address) is not None or not hasattr(tensor, "untyped_storage"):
            return
        if hasattr(tensor, "device") and tensor.device.type != "cpu":
            raise DeviceError(f"argument {name} is on {tensor.device}; {self.name} takes CPU tensors")
        storage = tensor.untyped_storage()
        taken = {region.name for region in self.memory.regions}
        unique = next(
            one for one in (name, *(f"{name}#{index}" for index in range(2, len(taken) + 3))) if one not in taken
        )
        adopted.append(self.memory.register(storage.data_ptr(), storage.nbytes(), unique))

    def _pointers(self, params: bytes) -> tuple[list[Pointer], list[tuple[int, int]]]:
        """The parameter words that point into buffers, and (offset, word) of those that point elsewhere."""
        pointers, odd = [], []
        for offset, word in enumerate(word for (word,) in struct.iter_unpack("<Q", params[: len(params) // 8 * 8])):
            region = self.memory.find(word)
            if region is not None:
                pointers.append(Pointer(8 * offset, region.name, word - region.address))
            elif 1 << 16 <= word < 1 << 47:
                odd.append((8 * offset, word))
        known = mapped({word for _, word in odd}) if odd else set()
        return pointers, [one for one in odd if one[1] in known]

    def _reached(self, pointers: Sequence[Pointer]) -> list[Region]:
        names = {pointer.buffer for pointer in pointers}
        return [region for region in self.memory.regions if region.name in names]


_PREPARED: dict[tuple[str, str, str], _Prepared] = {}
_VOUCHES: dict[tuple[str, str], Vouch] = {}


def _span(name: str, tensor: Any) -> tuple[int, int]:  # noqa: ANN401
    """(address, bytes) from a tensor's first to its last element."""
    if tensor.device.type != "cpu":
        raise DeviceError(f"buffer {name!r} is on {tensor.device}; emulated devices take CPU tensors")
    if tensor.numel() == 0:
        return tensor.data_ptr(), 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()
