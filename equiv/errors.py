"""Every error that equiv raises on purpose, and the exit code each one leads to.

An error carries structured parts beside its text, so that tests and reports need not parse sentences. A *mismatch* is
not an error: it is a value (`equiv.records.Verdict`). This module imports nothing from the package.
"""

from __future__ import annotations

from dataclasses import dataclass


class EquivError(Exception):
    """Base of all errors of this package."""

    exit_code = 1


class UsageError(EquivError):
    """The caller asked for something that does not exist or cannot be meant; nothing was run."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a data file.

    Attributes:
        path: where, in the file's own terms: `$.case[3].axes.batch`.
        problem: what was expected and what was found, with the value.
    """

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class CaseFileError(UsageError):
    """A case file has faults; all of them are listed, none of its cases is run."""

    def __init__(self, file: str, faults: tuple[Fault, ...]) -> None:
        self.file = file
        self.faults = faults
        lines = "\n".join(f"  {fault}" for fault in faults)
        super().__init__(f"{file}: {len(faults)} fault(s)\n{lines}")


class NoCaseFileError(UsageError):
    """There is no case file of a pair where they are looked for."""


class UnsupportedError(EquivError):
    """The device or an installed package lacks something; `needs` says what: `package:triton`, `arch:sm_100a`."""

    exit_code = 3

    def __init__(self, needs: str, detail: str = "") -> None:
        self.needs = needs
        super().__init__(f"needs {needs}" + (f": {detail}" if detail else ""))


class DeviceError(EquivError):
    """A device could not run what it was given."""


class EmulatorError(DeviceError):
    """The emulator stopped a kernel: the kernel is wrong, or uses what the emulator does not know."""


class PtxSyntaxError(EmulatorError):
    """The PTX text could not be read; `line` is one-based."""

    def __init__(self, problem: str, line: int) -> None:
        self.line = line
        super().__init__(f"line {line}: {problem}")


class UnknownInstructionError(EmulatorError):
    """An opcode, modifier, type or operand form that the emulator has no semantics for; it is named, never guessed."""

    def __init__(self, instruction: str, reason: str, line: int | None = None) -> None:
        self.instruction = instruction
        self.reason = reason
        self.line = line
        where = "" if line is None else f" (PTX line {line})"
        super().__init__(f"{instruction}{where}: {reason}")


class IllegalAccessError(EmulatorError):
    """A load, store or copy outside every registered buffer, misaligned, or into a read-only one."""


class DeadlockError(EmulatorError):
    """No warp can run any more; the text says who waits on what."""


class RecordError(EquivError):
    """A launch record, bundle, dump or journal is damaged or of an unknown version."""
