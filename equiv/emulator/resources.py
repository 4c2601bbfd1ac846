"""What a compiled kernel takes of a multiprocessor, read from its cubin: registers, stack, shared memory, barriers.

Layout of the ELF sections and of `.nv.info` as `ptxas` 12.9 to 13.4 write them for sm_90a and sm_100a, compared with
what `ptxas -v` says of the same kernels. Spills are counted as the local loads and stores of the machine code.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.emulator.toolchain import disassemble
from equiv.errors import EmulatorError

if TYPE_CHECKING:
    from collections.abc import Iterator

REGCOUNT, FRAME_SIZE, NUM_BARRIERS = 0x2F, 0x11, 0x4C
"""Attributes of `.nv.info`: (symbol, registers), (symbol, bytes of stack), barriers of a kernel's own section."""
_FLAG, _BYTE, _HALF, _SIZED = 1, 2, 3, 4
_BARRIERS_AT = 20
"""Bit of the flags of a code section from which ptxas 12 keeps the number of barriers."""
_SPILL = re.compile(r"\b(LDL|STL)\b")


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one kernel.

    Attributes:
        registers: of a thread.
        stack: bytes of a thread's frame.
        spills: instructions that load from or store to local memory.
        shared: bytes of static shared memory, the 1024 that the system takes included; 0 if it uses none.
        barriers: named barriers.
    """

    registers: int
    stack: int
    spills: int
    shared: int
    barriers: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    flags: int
    size: int
    data: bytes


def resources(cubin: bytes, kernel: str) -> Resources:
    """What a kernel of a cubin takes.

    Raises:
        EmulatorError: the cubin is damaged, or has no such kernel.
        UnsupportedError: no disassembler is installed.
    """
    try:
        return _read(cubin, kernel)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise EmulatorError(f"{kernel}: the cubin cannot be read: {error}") from error


def _read(cubin: bytes, kernel: str) -> Resources:
    sections = {section.name: section for section in _sections(cubin)}
    code = sections.get(f".text.{kernel}")
    if code is None:
        known = ", ".join(name.removeprefix(".text.") for name in sections if name.startswith(".text."))
        raise EmulatorError(f"the cubin has no kernel {kernel}; it has {known or 'none'}")
    symbol = _symbol(sections, kernel)
    found: dict[int, int] = {}
    for attribute, value in _attributes(sections[".nv.info"].data):
        if attribute in (REGCOUNT, FRAME_SIZE) and isinstance(value, bytes):
            owner, amount = struct.unpack("<II", value[:8])
            found |= {attribute: amount} if owner == symbol else {}
    if len(found) < 2:
        raise ValueError("its .nv.info names no registers, or no stack, of the kernel")
    own = dict(_attributes(sections[f".nv.info.{kernel}"].data))
    barriers = own.get(NUM_BARRIERS, code.flags >> _BARRIERS_AT & 0x1F)
    shared = sections.get(f".nv.shared.{kernel}")
    lines = disassemble(cubin)[kernel]
    return Resources(
        registers=found[REGCOUNT],
        stack=found[FRAME_SIZE],
        spills=sum(bool(_SPILL.search(line)) for line in lines),
        shared=shared.size if shared else 0,
        barriers=int.from_bytes(barriers, "little") if isinstance(barriers, bytes) else barriers,
    )


def _sections(cubin: bytes) -> Iterator[_Section]:
    if cubin[:4] != b"\x7fELF":
        raise ValueError("it is no ELF file")
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    raw = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + at * size) for at in range(count)]
    texts = raw[names][4]
    for name, kind, flags, _, offset, length, *_ in raw:
        end = cubin.index(b"\0", texts + name)
        data = b"" if kind == 8 else cubin[offset : offset + length]  # 8: takes no room in the file
        yield _Section(cubin[texts + name : end].decode(), flags, length, data)


def _symbol(sections: dict[str, _Section], kernel: str) -> int:
    """The index of a kernel in the symbol table."""
    table, texts = sections[".symtab"].data, sections[".strtab"].data
    for at in range(0, len(table), 24):
        (name,) = struct.unpack_from("<I", table, at)
        if texts[name : texts.index(b"\0", name)].decode() == kernel:
            return at // 24
    raise ValueError("its symbol table does not name the kernel")


def _attributes(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(attribute, value) of an `.nv.info` section."""
    at = 0
    while at < len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            yield attribute, data[at : at + value]
            at += value
        elif form in (_FLAG, _BYTE, _HALF):
            yield attribute, value & 0xFF if form == _BYTE else value if form == _HALF else 0
        else:
            raise ValueError(f"its .nv.info has an attribute of form {form}")
