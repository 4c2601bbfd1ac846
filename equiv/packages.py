"""Packages that compile and run the parties: is one that is installed also one that can be imported?"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

from equiv.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from equiv.device import Device

MODULES = {"numpy": "numpy", "torch": "torch", "triton": "triton", "nvidia-cutlass-dsl": "cutlass.cute"}
"""Distribution -> the module that it is there for."""

HINT = "pip install 'equiv[kernels]'"


def version(package: str) -> str:
    """The version that is installed, read from the disk once a process and `sys.path`.

    Raises:
        PackageNotFoundError: none is.
    """
    return _version(package, tuple(sys.path))


@cache
def _version(package: str, path: tuple[str, ...]) -> str:  # noqa: ARG001  what `metadata` looks through
    return metadata.version(package)


class BrokenPackageError(DeviceError):
    """A package is installed and cannot be imported; `reason` is what it said, in one line."""

    def __init__(self, package: str, version: str, reason: str) -> None:
        self.package = package
        self.version = version
        self.reason = reason
        super().__init__(f"{package} {version}: cannot be imported: {reason}")


def imported(package: str) -> str:
    """Imports a package of `MODULES`; its version.

    Raises:
        UnsupportedError: it is not installed; `needs` is `package:<name>`.
        BrokenPackageError: it is installed, and importing it fails with whatever error.
    """
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise UnsupportedError(f"package:{package}", HINT) from error
    try:
        importlib.import_module(MODULES[package])
    except Exception as error:  # a library that is missing, a clash of versions: anything can come out of an import
        raise BrokenPackageError(package, found, one_line(error)) from error
    return found


def check(packages: Iterable[str]) -> None:
    """Imports those of the packages that are installed and known here.

    Raises:
        BrokenPackageError: one of them cannot be imported.
    """
    for package in dict.fromkeys(packages):
        if package in MODULES and _installed(package):
            imported(package)


def needed(device: Device, packages: Iterable[str] = ()) -> tuple[str, ...]:
    """What has to be importable for parties that need `packages` to run on a device."""
    # An emulated device puts itself in the place of the drivers of every compiler that is installed.
    return tuple(MODULES) if device.kind == "emulated" else ("torch", *packages)


def one_line(error: BaseException) -> str:
    """`OSError: libcuda.so.1: cannot open shared object file`."""
    said = str(error) if isinstance(error, UnsupportedError) else f"{type(error).__name__}: {error}"
    return " ".join(said.split()).removesuffix(":")


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
