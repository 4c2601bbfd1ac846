"""Triton on an emulated device: ordinary `kernel[grid](...)` calls compile for it and launch on it.

Triton asks its active driver for a target, loads binaries through it and launches through a launcher object. The driver
here answers for an emulated device; kernels are compiled by Triton's own pipeline, and each launch arrives with the
parameters packed as Triton's own launcher packs them. A kernel's tensors are registered as buffers for the length of
its launch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import operator
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from equiv.emulator.launch import Launch
from equiv.emulator.scope import replaced
from equiv.emulator.store import Image, digest, shared_store
from equiv.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from equiv.emulator.ptx import Param

VERSIONS = ((3, 6), (3, 7), (3, 8))
"""Minor versions whose driver interface this module speaks."""

WARP = 32

INTEGERS = {"i1": 1, "i8": 1, "u1": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
"""Triton type -> bytes of the parameter."""


class Target(Protocol):
    """What the device has to offer."""

    name: str
    arch: str
    capability: tuple[int, int]
    device_attributes: Mapping[int, int]

    def parameters(self, image: str, kernel: str) -> Sequence[Param]:
        """The parameter list of a kernel."""
        ...

    def run(self, launch: Launch) -> None:
        """Runs a kernel to its end."""
        ...


def installed() -> bool:
    """Is Triton there at all?"""
    return importlib.util.find_spec("triton") is not None


@contextmanager
def active(device: Target) -> Iterator[None]:
    """Triton compiles for `device` and launches on it inside the block.

    FP fusion (`mul`, `add` -> `fma`) is on, whatever the environment says: it is Triton's default, and it decides bits.

    Raises:
        UnsupportedError: the installed version is not one of `VERSIONS`.
    """
    found = version("triton")
    if tuple(map(int, found.split(".")[:2])) not in VERSIONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        raise UnsupportedError("package:triton", f"version {found} is installed; emulated devices know {known}")
    from triton import knobs
    from triton.runtime import driver

    with ExitStack() as stack:
        stack.enter_context(knobs.language.scope())
        knobs.language.default_fp_fusion = True
        stack.enter_context(replaced(driver, "_active", Driver(device)))
        yield


@dataclass(frozen=True, slots=True)
class Function:
    """What Triton holds as the handle of a loaded kernel."""

    image: str
    kernel: str


class _Utilities:
    """The part of a driver that loads binaries and knows the hardware."""

    def __init__(self, device: Target) -> None:
        self._device = device

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[None, Function, int, int, int]:  # noqa: ARG002
        """(module, function, registers, spills, most threads a block). No module: there is nothing to unload later."""
        return None, Function(digest(cubin), name), 0, 0, 1024

    def unload_module(self, module: object) -> None:
        """Nothing is held."""

    def get_device_properties(self, device: int) -> dict[str, int]:  # noqa: ARG002
        """The facts that code generation and resource checks ask for."""
        attributes = self._device.device_attributes
        return {
            "max_shared_mem": attributes[97],
            "max_num_regs": 65536,
            "multiprocessor_count": attributes[16],
            "warpSize": WARP,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }


class Driver:
    """A Triton driver for one emulated device; the methods are those that Triton calls."""

    def __init__(self, device: Target) -> None:
        self.device = device
        self.utils = _Utilities(device)

    def launcher_cls(self, source: Any, metadata: Any) -> Launcher:  # noqa: ANN401
        """A launcher for one compiled kernel."""
        return Launcher(self.device, source, metadata)

    def get_current_device(self) -> int:
        """A number of its own for each architecture: Triton's caches of compiled kernels are keyed by it alone."""
        major, minor = self.device.capability
        return 1000 * major + 100 * minor

    def set_current_device(self, device: int) -> None:
        """Only the current one.

        Raises:
            UnsupportedError: for any other.
        """
        if device != self.get_current_device():
            raise UnsupportedError(f"device:{device}", f"{self.device.name} is a single device")

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        """The only stream."""
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:  # noqa: ARG002
        """(9, 0) or (10, 0)."""
        return self.device.capability

    def get_current_target(self) -> Any:  # noqa: ANN401
        """What to compile for."""
        from triton.backends.compiler import GPUTarget

        major, minor = self.device.capability
        return GPUTarget("cuda", 10 * major + minor, WARP)

    def get_active_torch_device(self) -> Any:  # noqa: ANN401
        """Where its tensors live."""
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:  # noqa: ANN401
        """Torch's module for that device."""
        import torch

        return torch.cpu

    def map_python_to_cpp_type(self, kind: str) -> str:
        """Used by printers of signatures only."""
        return kind

    def get_benchmarker(self) -> Callable[..., Any]:
        """What autotuning calls: times of an emulator say nothing about a GPU."""

        def refuse(*_: object, **__: object) -> None:
            raise UnsupportedError(
                "triton:autotune", f"{self.device.name} does not time kernels; give one configuration"
            )

        return refuse

    @staticmethod
    def is_active() -> bool:
        """It is, as long as it is set."""
        return True


class Launcher:
    """Launches one compiled kernel."""

    def __init__(self, device: Target, source: Any, metadata: Any) -> None:  # noqa: ANN401
        self._device = device
        self._metadata = metadata
        _refuse_unknown(metadata)
        names = getattr(getattr(source, "fn", None), "arg_names", [str(key) for key in source.signature])
        self._signature = tuple(zip(names, source.signature.values(), strict=True))
        _keep_image(source, metadata, device.arch)

    def __call__(  # noqa: PLR0917  Triton's convention, not ours
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,  # noqa: ARG002
        function: Function,
        kernel_metadata: object,  # noqa: ARG002
        launch_metadata: object,
        enter_hook: Callable[[object], None] | None,
        exit_hook: Callable[[object], None] | None,
        *arguments: object,
    ) -> None:
        """Triton's calling convention, the same in all of `VERSIONS`."""
        metadata = self._metadata
        flat = list(_flatten(self._signature, arguments))
        tensors = [(name, value) for name, kind, value in flat if kind.startswith("*") and hasattr(value, "data_ptr")]
        scratch = self._scratch(grid_x * grid_y * grid_z * metadata.num_ctas)
        tensors += [(name, value) for name, value in scratch if value is not None]
        values = [pack(name, kind, value) for name, kind, value in flat]
        values += [pack(name, "*i8", value) for name, value in scratch]
        attributes = {
            "programmatic_serialization": metadata.launch_pdl,
            "cooperative": metadata.launch_cooperative_grid,
        }
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if grid_x * grid_y * grid_z > 0:
            parameters = self._device.parameters(function.image, function.kernel)
            self._device.run(
                Launch(
                    image=function.image,
                    kernel=function.kernel,
                    grid=(grid_x * metadata.num_ctas, grid_y, grid_z),
                    block=(WARP * metadata.num_warps, 1, 1),
                    cluster=(metadata.num_ctas, 1, 1),
                    dynamic_shared=metadata.shared,
                    attributes={name: int(value) for name, value in attributes.items() if value},
                    params=lay_out(function.kernel, parameters, values),
                    tensors=tuple(tensors),
                )
            )
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _scratch(self, programs: int) -> list[tuple[str, object]]:
        """The two pointers behind a kernel's own parameters; None where it needs no such memory."""
        from triton.runtime import _allocation

        size = getattr(self._metadata, "profile_scratch_size", 0)
        if size:
            raise UnsupportedError("triton:profile-scratch", f"{self._metadata.name} wants {size} bytes a program")
        scratch = None
        size = self._metadata.global_scratch_size
        if size and programs:
            allocate = _allocation._allocator.get()  # noqa: SLF001  where `triton.set_allocator` puts it
            scratch = allocate(programs * size, self._metadata.global_scratch_align, 0)
        return [("global_scratch", scratch), ("profile_scratch", None)]


def pack(name: str, kind: str, value: Any) -> bytes:  # noqa: ANN401
    """One argument as the bytes of its kernel parameter, exactly as Triton's own launcher makes them.

    Args:
        name: of the argument, for messages.
        kind: Triton's type in the signature: `*bf16`, `i32`, `fp32`. A `bf16` scalar is cut off, not rounded.
        value: what the caller passed.

    Raises:
        UnsupportedError: a type that has no bytes here.
        TypeError, OverflowError: the value does not fit the type.
    """
    if kind.startswith("*"):
        return struct.pack("<Q", 0 if value is None else value if isinstance(value, int) else value.data_ptr())
    if kind in INTEGERS:
        number = operator.index(value)
        if not -(2**63) <= number < 2**64:
            raise OverflowError(f"argument {name}: {number} does not fit 64 bits")
        return (number & ((1 << 8 * INTEGERS[kind]) - 1)).to_bytes(INTEGERS[kind], "little")
    if kind == "fp64":
        return struct.pack("<d", float(value))
    if kind == "fp16":
        return struct.pack("<e", float(value))
    if kind in {"fp32", "f32", "bf16"}:
        single = bytes(memoryview(ctypes.c_float(float(value))))
        return single[2:] if kind == "bf16" else single
    raise UnsupportedError(f"triton:argument:{kind}", f"argument {name}; tensor descriptors are not emulated yet")


def lay_out(kernel: str, parameters: Sequence[Param], values: Sequence[bytes]) -> bytes:
    """The parameter block of a kernel.

    Raises:
        DeviceError: number or sizes of the values do not fit the kernel's parameter list; the first misfit is named.
    """
    sizes = [len(value) for value in values]
    wanted = [parameter.size for parameter in parameters]
    # A compiler may leave scratch pointers out of the list; they are null then.
    if sizes[: len(wanted)] != wanted or any(any(value) for value in values[len(wanted) :]):
        raise DeviceError(f"{kernel}: its parameters take {wanted} bytes, the launch gives {sizes}")
    block = bytearray(max((parameter.offset + parameter.size for parameter in parameters), default=0))
    for parameter, value in zip(parameters, values, strict=False):
        block[parameter.offset : parameter.offset + parameter.size] = value
    return bytes(block)


def _flatten(signature: Sequence[tuple[str, Any]], arguments: Sequence[Any]) -> Iterator[tuple[str, str, Any]]:
    """(name, type, value) of every argument that becomes a parameter: constants, `None` and ints equal to 1 do not."""
    for (name, kind), value in zip(signature, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _flatten([(f"{name}.{index}", one) for index, one in enumerate(kind)], value)
        elif kind != "constexpr":
            yield name, kind, value


def _refuse_unknown(metadata: Any) -> None:  # noqa: ANN401
    """Launch features that are not packed here are refused rather than dropped."""
    if getattr(metadata, "instrumentation_mode", ""):
        raise UnsupportedError("triton:instrumentation", str(metadata.instrumentation_mode))
    dims = getattr(metadata, "cluster_dims", (1, 1, 1))
    if tuple(dims) not in {(1, 1, 1), (metadata.num_ctas, 1, 1)}:
        raise UnsupportedError("triton:cluster_dims", f"{metadata.name}: {tuple(dims)}")


def _keep_image(source: Any, metadata: Any, arch: str) -> None:  # noqa: ANN401
    """Puts the kernel's cubin and PTX, side by side in Triton's cache, into the image store."""
    from triton.runtime.cache import get_cache_manager

    stem = source.name[:150]
    group = get_cache_manager(metadata.hash).get_group(f"{stem}.json") or {}
    missing = [kind for kind in ("ptx", "cubin") if f"{stem}.{kind}" not in group]
    if missing:
        raise UnsupportedError(
            "triton:ptx",
            f"{metadata.name}: its cache entry has no {' and no '.join(missing)}; is TRITON_STORE_BINARY_ONLY set?",
        )
    ptx, cubin = (Path(group[f"{stem}.{kind}"]) for kind in ("ptx", "cubin"))
    toolchain = {"triton": version("triton")}
    shared_store().put(Image(cubin.read_bytes(), ptx.read_text().rstrip("\0"), arch, toolchain, metadata.name))
