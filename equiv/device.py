"""Where kernels run: `device("emulated:sm_90a")`, `device("emulated:sm_100a")`, `device("cuda:0")`, `device("cuda")`.

    chosen = equiv.device.device("emulated:sm_100a")
    with chosen.active():
        kernel[grid](x, y)             # ordinary Triton and CuTe DSL calls, unmodified

Importing this module loads neither torch nor a compiler; asking for a device may.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from equiv import gpus, packages
from equiv.errors import DeviceError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from equiv.emulator.launch import LaunchCount

EMULATED = ("sm_90a", "sm_100a")

CAPABILITIES = {(9, 0): "sm_90a", (10, 0): "sm_100a"}
"""Compute capability of a GPU -> the architecture that kernels are compiled for there."""


class Device(Protocol):
    """A device.

    Attributes:
        name: as given to `device`.
        arch: `sm_90a` or `sm_100a`.
        kind: `emulated` or `cuda`.
        torch_device: where its tensors live, `cpu` or `cuda:0`.
        launches: launches since the outermost `active` block began; always empty on a GPU, which does not count.
    """

    name: str
    arch: str
    kind: str
    torch_device: str

    @property
    def launches(self) -> Sequence[LaunchCount]:
        """What ran."""
        ...

    def remarks(self) -> tuple[str, ...]:
        """What is to be known of those launches beside their results, a line each."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Triton and CuTe DSL calls of this process go to this device inside the block; blocks of devices may nest."""
        ...

    def recorded(self, root: Path, name: str) -> AbstractContextManager[None]:
        """Launches inside the block become capture `name` of record folder `root` (`equiv.emulator.record`)."""
        ...

    def register(self, name: str, what: Any, *, writable: bool = True) -> None:  # noqa: ANN401  a tensor or (address, bytes)
        """Names memory that kernels may read, and write if `writable`; the emulator lets them touch no other."""
        ...

    def unregister(self, name: str) -> None:
        """Ends a registration."""
        ...

    def synchronize(self) -> None:
        """Waits for all launches; errors of kernels come out here at the latest."""
        ...


def device(name: str, *, check: str | None = None) -> Device:
    """The device of that name; each call makes a fresh one, with no registered memory.

    Args:
        name: one of the names above.
        check: `race`: every launch is searched for accesses to shared memory that nothing orders (emulated devices).

    Raises:
        UsageError: no such device, and those that exist are listed; or it cannot do that check.
        UnsupportedError: no GPU is there, or one of an unknown capability.
        BrokenPackageError: torch is installed and cannot be imported, and a GPU is asked for.
    """
    check_name(name, check=check)
    kind, _, which = name.partition(":")
    if kind == "cuda":
        return CudaDevice(name)
    from equiv.emulator.device import EmulatedDevice

    return EmulatedDevice(which, check=check)


def check_name(name: str, *, check: str | None = None) -> None:
    """Says whether a device of that name can be meant, on this machine or another; loads nothing.

    Raises:
        UsageError: no such device, and those that exist are listed; it cannot do that check; or it is a GPU, and the
            caller's list of GPUs has a bad entry, which is named.
    """
    names = [f"emulated:{arch}" for arch in EMULATED]
    if name not in names and not re.fullmatch(r"cuda(:[0-9]{1,3})?", name):
        raise UsageError(f"no device named {name!r}; known: {', '.join(names)}, cuda:N, cuda")
    if name.startswith("cuda"):
        gpus.listed()
        if check:
            raise UsageError(f"{name} cannot check for {check}; emulated devices can")


class CudaDevice:
    """A GPU, through torch and the drivers that Triton and CuTe DSL bring.

    `cuda:N` is the N-th that the caller shows, `cuda` the one that this process is pinned to, or the first.
    """

    kind = "cuda"

    def __init__(self, name: str) -> None:
        packages.imported("torch")
        import torch

        index = gpus.index(name)
        self.name, self.torch_device = name, f"cuda:{index}"
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            shown = f" of {gpus.VISIBLE}={os.environ[gpus.VISIBLE]}" if gpus.VISIBLE in os.environ else ""
            raise UnsupportedError("gpu", f"{self.name} asked for, {count} present{shown}")
        capability = torch.cuda.get_device_capability(index)
        if capability not in CAPABILITIES:
            shown = ", ".join(f"{major}.{minor}" for major, minor in CAPABILITIES)
            raise UnsupportedError(
                f"capability:{capability[0]}.{capability[1]}", f"{self.name}; kernels are known for {shown}"
            )
        self.arch = CAPABILITIES[capability]
        self.launches: tuple[LaunchCount, ...] = ()
        self._index = index
        self._registered: set[str] = set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this GPU torch's current one inside the block.

        Raises:
            DeviceError: an emulated device is active; it has taken the place of the drivers that a GPU needs.
        """
        import torch

        emulated = sys.modules.get("equiv.emulator.device")
        if emulated is not None and emulated.EmulatedDevice.current:
            raise DeviceError(
                f"{self.name} cannot be active inside a block of {emulated.EmulatedDevice.current[-1].name}"
            )
        with torch.cuda.device(self._index):
            yield

    def remarks(self) -> tuple[str, ...]:
        """Nothing: what a GPU computes needs no vouching."""
        return ()

    def recorded(self, root: Path, name: str) -> AbstractContextManager[None]:
        """A GPU does not record.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("device:emulated", f"{self.name} cannot record {name} in {root}")

    def register(self, name: str, what: Any, *, writable: bool = True) -> None:  # noqa: ANN401, ARG002
        """Only keeps the name: a GPU does not check accesses.

        Raises:
            DeviceError: the name is taken.
        """
        if name in self._registered:
            raise DeviceError(f"{self.name}: a buffer named {name!r} is registered already")
        self._registered.add(name)

    def unregister(self, name: str) -> None:
        """Forgets the name."""
        self._registered.discard(name)

    def synchronize(self) -> None:
        """Waits for all launches."""
        import torch

        try:
            torch.cuda.synchronize(self._index)
        except RuntimeError as error:
            raise DeviceError(f"{self.name}: {error}") from error
