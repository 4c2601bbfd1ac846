"""Evidence that the emulator executes what the GPU would: that ptxas makes the same machine code of both.

The emulator runs the contracted kernel as written, one operation an instruction. In its text every sum of products
says `fma.rn` or `.rn`, so ptxas fuses nothing by itself; it must give the same SASS as the compiler's text, and as the
cubin that was shipped. Equal SASS of emulated text and cubin is a proof whichever ptxas made it; a difference says that
the contraction rule, or the ptxas at hand, is not what made the cubin. (`-fmad=false` instead of marks would not do: it
also switches off a range analysis that drops needless scaling inside divisions.)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from equiv.cache import cache_dir, write_atomic
from equiv.emulator.contraction import contract
from equiv.emulator.ptx_emitter import emit
from equiv.emulator.toolchain import Ptxas, assemble, assembler_of, disassemble, nvdisasm_version, ptxas_for
from equiv.errors import EmulatorError, UnsupportedError
from equiv.terminal import kernel_name

if TYPE_CHECKING:
    from pathlib import Path

    from equiv.emulator.ptx import Module

Sass = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Vouch:
    """The result.

    Attributes:
        ok: the emulated kernel's machine code is the shipped one's (without a cubin: is what this ptxas makes).
        detail: what was compared and found, in words; for a difference its first line.
        ptxas: name and version of the assembler used; empty if there was none.
    """

    ok: bool
    detail: str
    ptxas: str


def vouch(module: Module, cubin: bytes | None, arch: str) -> Vouch:
    """Compare all kernels and functions of a module; whatever prevents it is the `detail` of a result that is not ok.

    The result is kept in the cache directory, keyed by both texts, the cubin and the tools' versions.
    """
    contracted = emit(module, *(contract(kernel)[0] for kernel in module.bodies))
    try:
        tool = ptxas_for(module.text)
        versions = (str(tool), nvdisasm_version(), arch)
        hasher = hashlib.sha256()
        for part in (module.text.encode(), contracted.encode(), cubin or b"", *(one.encode() for one in versions)):
            hasher.update(len(part).to_bytes(8, "little") + part)
        file = cache_dir() / "vouch" / f"{hasher.hexdigest()}.json"
        known = _read(file)
        if known is not None:
            return known
        result = _compare(module.text, contracted, cubin, arch, tool)
        write_atomic(file, json.dumps(asdict(result)).encode())
    except (UnsupportedError, EmulatorError) as error:
        return Vouch(ok=False, detail=str(error), ptxas="")
    return result


def _read(file: Path) -> Vouch | None:
    """A result kept earlier; a damaged file is as good as none, since it can be made again."""
    try:
        return Vouch(**json.loads(file.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _compare(text: str, contracted: str, cubin: bytes | None, arch: str, tool: Ptxas) -> Vouch:
    emulated = disassemble(assemble(contracted, arch, tool))
    compiled = disassemble(assemble(text, arch, tool))
    if cubin is None:
        difference = _difference(emulated, compiled)
        found = "contracted PTX gives the SASS of the PTX" if difference is None else "contracted PTX and PTX differ"
        return _result(difference, f"{found} under {tool}; no cubin given", tool)
    maker = assembler_of(cubin)
    by = f"cubin made by {'a ptxas that left no version' if maker is None else f'ptxas {maker}'}"
    shipped = disassemble(cubin)
    difference = _difference(emulated, shipped)
    if difference is None:
        found = "contracted PTX gives the cubin's SASS"
    elif _difference(compiled, shipped) is None:
        found = "the PTX gives the cubin's SASS, the contracted PTX does not"
    elif _difference(emulated, compiled) is None:
        found = "contracted PTX gives the SASS of the PTX, but the cubin has another"
    else:
        found = "neither the PTX nor the contracted PTX gives the cubin's SASS"
    return _result(difference, f"{found} under {tool} ({by})", tool)


def _result(difference: str | None, found: str, tool: Ptxas) -> Vouch:
    return Vouch(difference is None, found if difference is None else f"{found}: {difference}", str(tool))


def _difference(ours: Sass, theirs: Sass) -> str | None:
    """The first difference in words, or None."""
    if ours.keys() != theirs.keys():
        return f"code sections {sorted(ours)} against {sorted(theirs)}"
    for name, lines in ours.items():
        others = theirs[name]
        for number, (line, other) in enumerate(zip(lines, others, strict=False)):
            if line != other:
                return f"{kernel_name(name)}, SASS line {number}: {line!r} against {other!r}"
        if len(lines) != len(others):
            return f"{kernel_name(name)}: {len(lines)} SASS lines against {len(others)}"
    return None
