"""Faults seeded into the shipped CuTe candidates: their sources with a line changed, as a package of its own.

A fault is a table entry: where the shipped text is replaced by what, the case of the pr suite that must catch it, and
what `explain` must say. Text that is no longer there is an error, so a fault cannot silently become none.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import equiv.cute
from equiv.device import device
from equiv.explain import explain
from equiv.report.explanation import render
from equiv.runner import PartyError

if TYPE_CHECKING:
    from equiv.pairs import Pair
    from equiv.records import Case

SOURCE = Path(equiv.cute.__file__).parent
_FOLDER = tempfile.TemporaryDirectory(prefix="seeded-faults-")


@dataclass(frozen=True)
class Fault:
    """One known mistake.

    Attributes:
        name: in words.
        case: id of a case that catches it.
        module: file below equiv/cute.
        old: text that stands there, once unless `times` says otherwise.
        new: what stands there instead.
        named: what `explain` says of it: a ledger row or reduction, the words of a misreading, or `STATE FAULT in ...`;
            "" if it has no name for it.
        more: further (module, old, new) of the same fault.
        wrong: the outputs in which the candidate differs from its model.
    """

    name: str
    case: str
    module: str
    old: str
    new: str
    named: str
    wrong: tuple[str, ...] = ()
    more: tuple[tuple[str, str, str], ...] = ()
    times: int = 1

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """All of its changes: (file below equiv/cute, text, other text)."""
        return ((self.module, self.old, self.new), *self.more)


@cache
def package(fault: Fault) -> str:
    """The name of a copy of `equiv.cute` that has the fault.

    Raises:
        ValueError: the shipped source does not have the text that the fault replaces.
    """
    name = "seeded_" + "".join(letter if letter.isalnum() else "_" for letter in fault.name)
    home = Path(_FOLDER.name) / name
    edits = list(fault.edits)
    for path in SOURCE.rglob("*.py"):
        below = path.relative_to(SOURCE)
        text = path.read_text()
        for module, old, new in [edit for edit in edits if edit[0] == str(below)]:
            if text.count(old) != fault.times:
                raise ValueError(f"{fault.name}: {text.count(old)} times in {module}, not {fault.times}: {old!r}")
            text = text.replace(old, new)
            edits.remove((module, old, new))
        target = home / below
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("equiv.cute", name))
    if edits:
        raise ValueError(f"{fault.name}: no module {', '.join(edit[0] for edit in edits)}")
    if _FOLDER.name not in sys.path:
        sys.path.insert(0, _FOLDER.name)
    importlib.invalidate_caches()
    return name


def faulty(pair: Pair, fault: Fault, parties: str) -> Pair:
    """The pair with a candidate that has the fault; `parties` is the test module whose `FAULTS` hold it by name."""
    return replace(pair, candidate=replace(pair.candidate, entry=f"{parties}:{fault.name}"))


def by_name(faults: tuple[Fault, ...], name: str) -> Fault:
    """The fault of that name.

    Raises:
        AttributeError: there is none, as a module says of a name that it lacks.
    """
    for fault in faults:
        if fault.name == name:
            return fault
    raise AttributeError(name)


def found(pair: Pair, parties: str, fault: Fault, case: Case, on: str) -> str:
    """What `equiv explain` says of a fault, without line breaks: its text, or the error that a device stops with."""
    try:
        explained = explain(faulty(pair, fault, parties), case, device(on, check="race"))
    except PartyError as error:
        return str(error)
    assert all(one.party == "candidate" for one in explained)
    return " ".join(render(case, on, explained).split())
