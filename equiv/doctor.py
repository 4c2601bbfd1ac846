"""Looks over the machine: what works, and for what does not, why and what would help."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from equiv import cache, ccode
from equiv.device import EMULATED, device
from equiv.errors import EquivError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("numpy", "torch", "triton", "nvidia-cutlass-dsl")
PROBES = {"Triton": "equiv.triton_ref.probe", "CuTe DSL": "equiv.cute.probe"}
"""Who compiles a probe -> the module with `run_probe(x, y)`, y = fma(x, 3, 1)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `state` is `ok`, `absent` (something optional is not there) or `broken` (equiv needs it)."""

    subject: str
    state: str
    detail: str


def examine() -> Iterator[Finding]:
    """Looks at one thing after the other; the probes of the devices compile and run kernels and take seconds."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} CPUs")
    for package in PACKAGES:
        try:
            yield Finding(package, "ok", version(package))
        except PackageNotFoundError:
            yield Finding(package, "broken", "not installed: pip install 'equiv[kernels]'")
    yield from _assemblers()
    yield _compiler()
    yield _cache()
    for name in (*(f"emulated:{arch}" for arch in EMULATED), "cuda:0"):
        yield from _device(name)


def render(findings: list[Finding]) -> str:
    """One line a finding."""
    width = max(len(finding.subject) for finding in findings)
    return "\n".join(f"{finding.state:7} {finding.subject:{width}}  {finding.detail}" for finding in findings)


def _assemblers() -> Iterator[Finding]:
    from equiv.emulator import toolchain

    for name in ("ptxas", "ptxas-blackwell"):
        try:
            tool = toolchain.ptxas(name)
        except UnsupportedError as error:
            yield Finding(name, "broken", str(error))
        else:
            yield Finding(name, "ok", f"{tool.version}, reads PTX up to {tool.newest_ptx[0]}.{tool.newest_ptx[1]}")
    try:
        yield Finding("nvdisasm", "ok", f"{toolchain.nvdisasm_version()}: contractions can be vouched for")
    except UnsupportedError as error:
        yield Finding("nvdisasm", "broken", f"{error}: contractions cannot be vouched for")


def _compiler() -> Finding:
    try:
        command = ccode.compiler()
        flags, _ = ccode.tuning()
        said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    except (UnsupportedError, OSError, subprocess.CalledProcessError) as error:
        return Finding("C compiler", "broken", f"{error}; set {ccode.COMPILER} to another")
    return Finding("C compiler", "ok", f"{said.splitlines()[0]}, {' '.join(flags) or 'no flags for this processor'}")


def _cache() -> Finding:
    try:
        folder = cache.cache_dir()
        cache.write_atomic(folder / ".doctor", b"writable")
        (folder / ".doctor").unlink()
    except UsageError as error:
        return Finding("cache", "broken", str(error))
    except OSError as error:
        return Finding("cache", "broken", f"{error}: {cache.HINT}")
    return Finding("cache", "ok", f"{folder} can be written")


def _device(name: str) -> Iterator[Finding]:
    """Runs each probe on a device and checks its bits; a GPU may be absent, an emulated device may not."""
    kind = name.partition(":")[0]
    for compiler, module in PROBES.items():
        subject = f"{name} {compiler}"
        try:
            yield Finding(subject, *_probe(name, module))
        except UnsupportedError as error:
            yield Finding(subject, "absent" if kind == "cuda" else "broken", str(error))
        except (EquivError, ImportError, OSError) as error:
            yield Finding(subject, "broken", f"{type(error).__name__}: {error}")


def _probe(name: str, module: str) -> tuple[str, str]:
    """(state, detail) of one probe on one device."""
    from equiv.emulator.device import EmulatedDevice

    chosen = device(name)
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError("package:torch", str(error)) from error
    values = np.linspace(-2, 2, 128, dtype=np.float32)
    x = torch.from_numpy(values.copy()).to(chosen.torch_device)
    y = torch.zeros_like(x)
    with chosen.active():
        importlib.import_module(module).run_probe(x, y)
        chosen.synchronize()
    # The product of 24 bits by 3 is exact in FP64, and so is its sum with 1: one rounding, as in a fused multiply-add.
    expected = (values.astype(np.float64) * 3 + 1).astype(np.float32)
    wrong = int((y.cpu().numpy().view(np.uint32) != expected.view(np.uint32)).sum())
    if wrong:
        return "broken", f"{wrong} of 128 elements of fma(x, 3, 1) are wrong"
    vouches = set(chosen.vouches().values()) if isinstance(chosen, EmulatedDevice) else set()
    state = "ok" if all(vouch.ok for vouch in vouches) else "broken"
    return state, "; ".join(["fma(x, 3, 1) has the right bits", *sorted(vouch.detail for vouch in vouches)])
