"""Asks the real assembler which of many instructions it takes: one kernel, one instruction a line."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from equiv.emulator import toolchain
from equiv.emulator.ptx import Address, Immediate, Instruction, Operand, Pair, Register, Special, Symbol, Vector

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = [".version 9.3", ".target {arch}", ".address_size 64", ".visible .entry k()", "{",
         *(f".reg .{kind} %{kind}_<20>;" for kind in ("pred", "b8", "b16", "b32", "b64")), "here:"]  # fmt: skip


def text(instruction: Instruction) -> str:
    """An instruction as PTX."""
    return f"{instruction.opcode} {', '.join(map(_operand, instruction.operands))};"


def _operand(operand: Operand) -> str:
    match operand:
        case Register() | Special() | Symbol():
            return operand.name
        case Pair():
            return f"{_operand(operand.first)}|{_operand(operand.second)}"
        case Vector():
            return "{" + ", ".join(map(_operand, operand.items)) + "}"
        case Immediate():
            return str(operand.bits)
        case Address():
            return f"[{_operand(operand.base)}+{operand.offset}]"
        case _:
            raise TypeError(operand)


def rejected(lines: list[str], arch: str, folder: Path) -> dict[int, str]:
    """Index of each line that ptxas does not take for an architecture -> its complaint.

    A syntax error ends ptxas's reading, so it is asked again without the lines it has named.
    """
    found: dict[int, str] = {}
    while True:
        left = [number for number in range(len(lines)) if number not in found]
        head = [line.replace("{arch}", arch) for line in _HEAD]
        source = folder / "lines.ptx"
        source.write_text("\n".join([*head, *(lines[number] for number in left), "ret;", "}", ""]))
        assembler, target = str(toolchain.ptxas("ptxas-blackwell").path), str(folder / "lines.cubin")
        command = [assembler, "-arch", arch, str(source), "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return found
        named = re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", done.stderr)
        assert named, done.stderr
        for at, complaint in named:
            found.setdefault(left[int(at) - len(head) - 1], complaint)
