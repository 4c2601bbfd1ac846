"""Looks over the machine: what works, and for what does not, why and what would help."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv import cache, casefile, ccode, kernels, packages, pairs
from equiv.device import EMULATED, device
from equiv.errors import NoCaseFileError, UnsupportedError, UsageError
from equiv.runner import toolchain
from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBES = {"Triton": "equiv.triton_ref.probe", "CuTe DSL": "equiv.cute.probe"}
"""Who compiles a probe -> the module with `run_probe(x, y)`, y = fma(x, 3, 1)."""

UNUSABLE = (ImportError, OSError, subprocess.CalledProcessError)
"""What looking for a tool in a broken package, or starting it, ends with."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `state` is `ok`, `absent` (something optional is not there) or `broken` (equiv needs it)."""

    subject: str
    state: str
    detail: str


def examine() -> Iterator[Finding]:
    """Looks at one thing after the other; the probes of the devices compile and run kernels and take seconds."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} CPUs")
    for package in packages.MODULES:
        yield _package(package)
    yield from _assemblers()
    yield _compiler()
    yield _cache()
    yield from _brought()
    for name in (*(f"emulated:{arch}" for arch in EMULATED), "cuda:0"):
        yield from _device(name)


def render(findings: list[Finding]) -> str:
    """One line a finding."""
    width = max(len(finding.subject) for finding in findings)
    lines = [f"{finding.state:7} {finding.subject:{width}}  {finding.detail}" for finding in findings]
    return visible("\n".join(lines))


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", packages.imported(name))
    except UnsupportedError:
        return Finding(name, "broken", f"not installed: {packages.HINT}")
    except packages.BrokenPackageError as error:
        return Finding(name, "broken", str(error).removeprefix(f"{name} "))


def _assemblers() -> Iterator[Finding]:
    from equiv.emulator import toolchain

    for name in ("ptxas", "ptxas-blackwell"):
        try:
            tool = toolchain.ptxas(name)
        except (UnsupportedError, *UNUSABLE) as error:
            yield Finding(name, "broken", packages.one_line(error))
        else:
            yield Finding(name, "ok", f"{tool.version}, reads PTX up to {tool.newest_ptx[0]}.{tool.newest_ptx[1]}")
    try:
        yield Finding("nvdisasm", "ok", f"{toolchain.nvdisasm_version()}: contractions can be vouched for")
    except (UnsupportedError, *UNUSABLE) as error:
        yield Finding("nvdisasm", "broken", f"{packages.one_line(error)}: contractions cannot be vouched for")


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


def _brought() -> Iterator[Finding]:
    """Pairs and kernels of all installed packages: whether entry points, functions and case files can be loaded."""
    for name in pairs.names():
        yield _pair(f"pair {name}", name)
    for one in kernels.found():
        if one.kernel is None:
            yield Finding(f"kernel {one.name}", "broken", one.problem)
        else:
            yield _pair(f"kernel {one.name}", f"{one.kernel.pair}{pairs.JOINT}{one.name}")


def _pair(subject: str, name: str) -> Finding:
    try:
        pair = pairs.get(name)
        for party in (pair.oracle, pair.candidate):
            toolchain(party)
            party.load()
        cases = len(casefile.load(casefile.case_file(name), pair))
    except UnsupportedError as error:
        return Finding(subject, "absent", packages.one_line(error))
    except NoCaseFileError as error:
        return Finding(subject, "ok", f"equiv run {name} needs --cases: {error}")
    except Exception as error:  # noqa: BLE001  somebody's modules: whatever comes out of them is what is wrong
        return Finding(subject, "broken", packages.one_line(error))
    return Finding(subject, "ok", f"equiv run {name}: {cases} cases; {pair.summary}")


def _device(name: str) -> Iterator[Finding]:
    """Runs each probe on a device and checks its bits; a GPU may be absent, an emulated device may not."""
    kind = name.partition(":")[0]
    for compiler, module in PROBES.items():
        subject = f"{name} {compiler}"
        try:
            yield Finding(subject, *_probe(name, module))
        except UnsupportedError as error:
            yield Finding(subject, "absent" if kind == "cuda" else "broken", str(error))
        except packages.BrokenPackageError as error:
            yield Finding(subject, "broken", str(error))
        except Exception as error:  # noqa: BLE001  what a compiler stops with is a finding, and the next line is wanted
            yield Finding(subject, "broken", packages.one_line(error))


def _probe(name: str, module: str) -> tuple[str, str]:
    """(state, detail) of one probe on one device."""
    from equiv.emulator.device import EmulatedDevice

    chosen = device(name)
    packages.imported("torch")
    packages.check(packages.needed(chosen))
    import torch

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
