"""NVIDIA's tools that come with Triton: `ptxas`, `ptxas-blackwell` (PTX to cubin) and `nvdisasm` (cubin to SASS).

None needs a GPU or a driver. Measured with triton 3.8.0: `ptxas` is 12.9.86 and reads PTX up to 8.8, `ptxas-blackwell`
is 13.3.33 and reads up to 9.3, both for every architecture. CuTe DSL 4.8.1's cu13 libraries write PTX 9.4 and assemble
it with a 13.4.59 that is linked in and not exported; the 13.3 reads the same text once its `.version` line says 9.3,
which `assemble` takes care of. SASS text is compared only between cubins that the same nvdisasm has read.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from equiv.errors import EmulatorError, UnsupportedError

_VERSION = re.compile(rb"Cuda compilation tools, release [0-9.]+, V([0-9.]+)")
_VERSION_LINE = re.compile(r"^(\s*\.version\s+)(\d+)\.(\d+)", re.MULTILINE)
_SECTION = re.compile(r"^\.text\.(\S+):$")
_LABEL = re.compile(r"^(\.L\S+):$")
_ADDRESS = re.compile(r"^\s*/\*[0-9a-f]+\*/\s*")


class AssemblerError(EmulatorError):
    """ptxas rejected a text; the message is its own."""


@dataclass(frozen=True, slots=True)
class Ptxas:
    """An installed assembler.

    Attributes:
        name: `ptxas` or `ptxas-blackwell`.
        version: `13.3.33`.
        newest_ptx: (major, minor) of the newest `.version` that it reads.
    """

    name: str
    path: Path
    version: str
    newest_ptx: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def _tool(name: str) -> Path:
    """Path of a tool in Triton's package, found without importing Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError("package:triton", f"it brings {name}")
    for place in spec.submodule_search_locations:
        path = Path(place) / "backends" / "nvidia" / "bin" / name
        if path.is_file():
            return path
    raise UnsupportedError("package:triton", f"the installed triton brings no {name}")


def _version(path: Path) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, check=True).stdout
    found = _VERSION.search(said)
    if found is None:
        raise UnsupportedError("package:triton", f"{path.name} --version does not name a version")
    return found.group(1).decode()


@functools.cache
def ptxas(name: str) -> Ptxas:
    """The assembler of that name.

    Raises:
        UnsupportedError: triton is not installed or does not bring it.
    """
    path = _tool(name)
    with tempfile.TemporaryDirectory() as directory:
        probe = Path(directory) / "probe.ptx"
        probe.write_text(".version 99.0\n.target sm_90a\n.address_size 64\n")
        said = subprocess.run(
            [path, "-arch=sm_90a", probe, "-o", Path(directory) / "probe.cubin"],
            capture_output=True,
            text=True,
            check=False,
        ).stderr
    newest = re.search(r"current version is '(\d+)\.(\d+)'", said)
    if newest is None:
        raise UnsupportedError("package:triton", f"{name} does not say which PTX it reads: {said.strip()}")
    return Ptxas(name, path, _version(path), (int(newest.group(1)), int(newest.group(2))))


def ptxas_for(ptx: str) -> Ptxas:
    """The assembler for a text: Triton's choice by architecture, unless only the newer one reads the text's version.

    Raises:
        UnsupportedError: it is not installed.
    """
    target = re.search(r"^\s*\.target\s+sm_(\d+)", ptx, re.MULTILINE)
    version = _VERSION_LINE.search(ptx)
    if target is None or version is None:
        raise AssemblerError("a PTX text without .version or .target sm_*")
    if int(target.group(1)) < 100:
        older = ptxas("ptxas")
        if (int(version.group(2)), int(version.group(3))) <= older.newest_ptx:
            return older
    return ptxas("ptxas-blackwell")


def assemble(ptx: str, arch: str, tool: Ptxas, options: tuple[str, ...] = ()) -> bytes:
    """Assemble a text for `arch` (`sm_90a`) and return the cubin.

    A `.version` above what the tool reads is lowered to the newest one it does; an instruction that really needs the
    newer version is then rejected by the tool.

    Raises:
        AssemblerError: the tool rejected the text.
    """
    version = _VERSION_LINE.search(ptx)
    if version is not None and (int(version.group(2)), int(version.group(3))) > tool.newest_ptx:
        major, minor = tool.newest_ptx
        ptx = f"{ptx[: version.start()]}{version.group(1)}{major}.{minor}{ptx[version.end() :]}"
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "kernel.ptx", Path(directory) / "kernel.cubin"
        source.write_text(ptx)
        done = subprocess.run(
            [tool.path, f"-arch={arch}", *options, source, "-o", target], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssemblerError(f"{tool} for {arch}: {done.stderr.strip().replace(str(source), 'kernel.ptx')}")
        return target.read_bytes()


@functools.cache
def nvdisasm_version() -> str:
    """Version of the disassembler.

    Raises:
        UnsupportedError: triton is not installed or does not bring it.
    """
    return _version(_tool("nvdisasm"))


def disassemble(cubin: bytes) -> dict[str, tuple[str, ...]]:
    """The SASS of each code section of a cubin, normalised: label lines `L0:` and instructions.

    Addresses and the register-cache hint `.reuse` are dropped and labels are numbered in order of appearance; opcodes,
    predicates and operands stay as nvdisasm spells them. Only encoded control bits (stalls, barriers) are not in it.

    Raises:
        UnsupportedError: no nvdisasm.
        EmulatorError: it cannot read the cubin.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([_tool("nvdisasm"), "-c", file], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulatorError(f"nvdisasm {nvdisasm_version()} cannot read the cubin: {done.stderr.strip()}")
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in done.stdout.splitlines():
        section = _SECTION.match(line)
        if section:
            lines = sections.setdefault(section.group(1), [])
        elif _ADDRESS.match(line):
            lines.append(" ".join(_ADDRESS.sub("", line).replace(".reuse", "").split()))
        else:
            label = _LABEL.match(line)
            if label:
                lines.append(f"{label.group(1)}:")
    return {name: _number_labels(section) for name, section in sections.items()}


def _number_labels(lines: list[str]) -> tuple[str, ...]:
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match.group(), f"L{len(numbers)}")

    return tuple(re.sub(r"\.L_?\w+", number, line) for line in lines)


def assembler_of(cubin: bytes) -> str | None:
    """Version of the ptxas that made a cubin, from its tool note; None where there is none (ptxas 12 writes none)."""
    found = _VERSION.search(cubin)
    return found.group(1).decode() if found else None
