"""What a run ran with: versions of Python and of every package that can change a bit."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

from equiv.packages import version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PACKAGES = ("equiv", "numpy", "torch", "triton", "nvidia-cutlass-dsl")

BASIS = {
    "emulated:sm_90a": "arithmetic as measured on an H200",
    "emulated:sm_100a": "arithmetic as measured on an H200; launches name what of sm_100a alone they executed",
}
"""Emulated device -> what its numbers rest on; said in every report."""


def basis(devices: Iterable[str]) -> list[str]:
    """A remark on each emulated device among `devices`."""
    return [f"{device}: {BASIS[device]}" for device in sorted(set(devices)) if device in BASIS]


def versions() -> dict[str, str]:
    """Package name -> installed version; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def changed(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """`triton 3.6.0 then, 3.8.0 now` for every package whose version differs; "" if none does."""
    names = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    return ", ".join(f"{name} {then.get(name)} then, {now.get(name)} now" for name in names)
