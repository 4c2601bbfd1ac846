"""Triton on an emulated device: ordinary `kernel[grid](...)` calls compile for it and launch on it.

Triton asks its active driver for a target, loads binaries through it and launches through a launcher object. The driver
here answers for an emulated device; kernels are compiled by Triton's own pipeline, and each launch arrives with the
parameters packed as Triton's own launcher packs them. A kernel's tensors are registered as buffers for the length of
its launch.
"""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from equiv.emulator.launch import Launch
from equiv.emulator.scope import replaced
from equiv.emulator.store import Image, digest, shared_store
from equiv.emulator.triton_arguments import flatten, lay_out, pack
from equiv.emulator.triton_tuning import Tuning
from equiv.errors import DeviceError, UnsupportedError
from equiv.packages import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from equiv.emulator.launch import LaunchCount
    from equiv.emulator.ptx import Param

VERSIONS = ((3, 6), (3, 7), (3, 8))
"""Minor versions whose driver interface this module speaks."""

WARP = 32


class Target(Protocol):
    """What the device has to offer."""

    name: str
    arch: str
    capability: tuple[int, int]
    device_attributes: Mapping[int, int]

    def parameters(self, image: str, kernel: str) -> Sequence[Param]:
        """The parameter list of a kernel."""
        ...

    def run(self, launch: Launch) -> LaunchCount:
        """Runs a kernel to its end."""
        ...


def installed() -> bool:
    """Is Triton there at all?"""
    return importlib.util.find_spec("triton") is not None


@contextmanager
def active(device: Target) -> Iterator[None]:
    """Triton compiles for `device` and launches on it inside the block.

    FP fusion (`mul`, `add` -> `fma`) is on, whatever the environment says: it is Triton's default, and it decides bits.
    Autotuned kernels choose as `triton_tuning` says.

    Raises:
        UnsupportedError: the installed version is not one of `VERSIONS`.
    """
    found = version("triton")
    if tuple(map(int, found.split(".")[:2])) not in VERSIONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        raise UnsupportedError("package:triton", f"version {found} is installed; emulated devices know {known}")
    from triton import knobs
    from triton.runtime import driver

    outer = vars(driver)["_active"]
    chosen = outer if isinstance(outer, Driver) and outer.device is device else Driver(device)
    with ExitStack() as stack:
        stack.enter_context(knobs.language.scope())
        knobs.language.default_fp_fusion = True
        stack.enter_context(replaced(driver, "_active", chosen))
        stack.enter_context(chosen.tuning.active())
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
        self.tuning = Tuning()

    def launcher_cls(self, source: Any, metadata: Any) -> Launcher:  # noqa: ANN401
        """A launcher for one compiled kernel."""
        return Launcher(self.device.arch, source, metadata)

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
        """What autotuning asks for times."""
        return self.tuning.benchmark

    @staticmethod
    def is_active() -> bool:
        """It is, as long as it is set."""
        return True


class Launcher:
    """Launches one compiled kernel, on the device of the driver that is active then: Triton keeps launchers."""

    def __init__(self, arch: str, source: Any, metadata: Any) -> None:  # noqa: ANN401
        self._arch = arch
        self._metadata = metadata
        _refuse_unknown(metadata)
        names = getattr(getattr(source, "fn", None), "arg_names", [str(key) for key in source.signature])
        self._signature = tuple(zip(names, source.signature.values(), strict=True))
        self._configuration = _configuration(source, metadata, [name for name, _ in self._signature])
        _keep_image(source, metadata, arch)

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
        metadata, driver = self._metadata, self._driver()
        device, tuning = driver.device, driver.tuning
        flat = list(flatten(self._signature, arguments, getattr(metadata, "tensordesc_meta", None)))
        tensors = [(name, value) for name, kind, value in flat if kind.startswith("*") and hasattr(value, "data_ptr")]
        tensors += _described(self._signature, arguments)
        scratch, address = self._scratch(grid_x * grid_y * grid_z * metadata.num_ctas)
        if scratch is not None:
            tensors.append(("global_scratch", scratch))
        values = [pack(name, kind, value) for name, kind, value in flat]
        values += [pack("global_scratch", "*i8", address), pack("profile_scratch", "*i8", None)]
        attributes = {
            "programmatic_serialization": metadata.launch_pdl,
            "cooperative": metadata.launch_cooperative_grid,
        }
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if grid_x * grid_y * grid_z > 0:
            parameters = device.parameters(function.image, function.kernel)
            count = device.run(
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
                    configuration=self._configuration,
                    trial=tuning.trial,
                )
            )
            tuning.executed += count.warp_instructions
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _driver(self) -> Driver:
        from triton.runtime import driver

        active = driver.active
        if not isinstance(active, Driver) or active.device.arch != self._arch:
            raise DeviceError(f"{self._metadata.name} was compiled for an emulated {self._arch}, which is not active")
        return active

    def _scratch(self, programs: int) -> tuple[Any, int]:
        """Global scratch memory and the address for the kernel to use; (None, 0) if it needs none."""
        from triton.runtime import _allocation

        size = getattr(self._metadata, "profile_scratch_size", 0)
        if size:
            raise UnsupportedError("triton:profile-scratch", f"{self._metadata.name} wants {size} bytes a program")
        size, align = programs * self._metadata.global_scratch_size, self._metadata.global_scratch_align
        if not size:
            return None, 0
        allocate = _allocation._allocator.get()  # noqa: SLF001  where `triton.set_allocator` puts it
        scratch = allocate(size, align, 0)
        if scratch.data_ptr() % align:
            # Allocators rely on torch, which aligns better on a GPU than on a CPU.
            scratch = allocate(size + align, align, 0)
        return scratch, -(-scratch.data_ptr() // align) * align


def _described(signature: Sequence[tuple[str, Any]], arguments: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of the host tensor descriptors among the arguments."""
    for (name, kind), value in zip(signature, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _described([(f"{name}.{index}", one) for index, one in enumerate(kind)], value)
        elif kind.startswith("tensordesc"):
            yield name, value.base


def _configuration(source: Any, metadata: Any, names: Sequence[str]) -> str:  # noqa: ANN401
    """What a kernel was specialised for: its constants by name, then warps, stages and CTAs a cluster."""
    constants = {names[path[0]]: value for path, value in getattr(source, "constants", {}).items() if len(path) == 1}
    constants |= {name: getattr(metadata, name) for name in ("num_warps", "num_stages", "num_ctas")}
    return ", ".join(f"{name}={value}" for name, value in constants.items())


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
