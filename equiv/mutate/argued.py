"""Mutants that people hold to be equivalent, each with its reason: `mutants/PAIR.toml` in the folder of the case files.

    [[argued]]
    code = "/ Float32(E4M3_MAX)"            # part of the source line that the instruction is from, or of the line
                                            # before where the compiler made it itself (a loop's jump, a selection);
                                            # or a list of such parts
    operators = ["rounding", "constant"]    # kinds of mutants
    opcode = "div.rn.f32"                   # of the instruction, with * and ?
    now = "*"                               # the mutant's text, with * and ?; default: any
    axes = { key_round = "bf16" }           # only of kernels all of whose cases have these values
    partly = true                           # the words above also describe mutants that are not meant; default: no
    unreached = true                        # of instructions that no case comes to, instead of survivors; default: no
    why = "m / 7 of an 8-bit m is a power of two or further from one than an ulp."

They are played like all others, and a mutant that dies counts as killed; that refutes an argument, which is told,
unless it says `partly`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv.emulator.ptx_emitter import spelt
from equiv.errors import CaseFileError, Fault
from equiv.mutate import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.mutate.mutants import Mutant
    from equiv.pairs import Pair
    from equiv.records import AxisValue, Case

FOLDER = "mutants"
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "code": (str, list),
    "operators": list,
    "opcode": str,
    "now": str,
    "axes": dict,
    "partly": bool,
    "unreached": bool,
    "why": str,
}
_OPTIONAL = {"now": "*", "axes": {}, "opcode": "*", "partly": False, "unreached": False}


@dataclass(frozen=True, slots=True)
class Argument:
    """One entry of the file; `path` says which."""

    path: str
    code: tuple[str, ...]
    operators: tuple[str, ...]
    opcode: str
    now: str
    axes: Mapping[str, AxisValue]
    partly: bool
    unreached: bool
    why: str

    def covers(self, mutant: Mutant, axes: Sequence[Mapping[str, AxisValue]]) -> bool:
        """Whether it speaks of a mutant of a kernel that is launched by cases with these axes."""
        return (
            mutant.operator in self.operators
            and fnmatchcase(mutant.before.opcode, self.opcode)
            and fnmatchcase(spelt(mutant.after), self.now)
            and all(case[name] == value for case in axes for name, value in self.axes.items())
            and any(code in source_line(place) for place in (mutant.source, mutant.near) for code in self.code)
        )


def source_line(place: tuple[str, int] | None) -> str:
    """The line of (file, number), or "" where it is not known or the file does not say."""
    if place is None:
        return ""
    file, line = place
    lines = _source(file)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


@cache
def _source(file: str) -> list[str]:
    path = Path(file)
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def read(pair: Pair, folder: Path) -> tuple[Argument, ...]:
    """The arguments of a pair, none if its cases bring no such file.

    Raises:
        CaseFileError: the file has faults; all of them are listed.
    """
    path = folder / FOLDER / f"{pair.name}.toml"
    if not path.exists():
        return ()
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CaseFileError(str(path), (Fault("$", f"not TOML: {error}"),)) from error
    entries = document.get("argued")
    if set(document) != {"argued"} or not isinstance(entries, list):
        raise CaseFileError(str(path), (Fault("$", f"wanted [[argued]] tables, found {', '.join(document)}"),))
    faults = [fault for number, entry in enumerate(entries) for fault in _faults(f"$.argued[{number}]", entry, pair)]
    if faults:
        raise CaseFileError(str(path), tuple(faults))
    return tuple(
        Argument(
            f"{path.name} $.argued[{number}]",
            **{**_OPTIONAL, **entry, "operators": tuple(entry["operators"]), "code": tuple(_codes(entry))},
        )
        for number, entry in enumerate(entries)
    )


def _codes(entry: Mapping[str, Any]) -> list[Any]:
    return entry["code"] if isinstance(entry["code"], list) else [entry["code"]]


def _faults(path: str, entry: dict[str, Any], pair: Pair) -> list[Fault]:
    found = [Fault(f"{path}.{name}", "unknown key") for name in entry if name not in _FIELDS]
    for name, kind in _FIELDS.items():
        if name not in entry:
            found += [] if name in _OPTIONAL else [Fault(f"{path}.{name}", "missing")]
        elif not isinstance(entry[name], kind):
            wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
            found.append(Fault(f"{path}.{name}", f"expected a {wanted}, got {entry[name]!r}"))
    if found:
        return found
    codes = _codes(entry)
    if not codes or not all(isinstance(code, str) and code.strip() for code in codes):
        found.append(Fault(f"{path}.code", "is empty, or holds what is not text or empty"))
    known = {axis.name for axis in pair.axes}
    found += [Fault(f"{path}.operators", f"unknown {name!r}") for name in entry["operators"] if name not in OPERATORS]
    found += [Fault(f"{path}.axes", f"unknown axis {name!r}") for name in entry.get("axes", {}) if name not in known]
    return found + ([] if entry["why"].strip() else [Fault(f"{path}.why", "is empty")])


def axes_of(pair: Pair, cases: Sequence[Case]) -> list[dict[str, AxisValue]]:
    """All axes of each case, defaults filled in."""
    defaults = {axis.name: axis.default for axis in pair.axes}
    return [{**defaults, **case.axes} for case in cases]
