"""What a run ran with: versions of Python and of every package that can change a bit."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("equiv", "numpy", "torch", "triton", "nvidia-cutlass-dsl")


def versions() -> dict[str, str]:
    """Package name -> installed version; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
