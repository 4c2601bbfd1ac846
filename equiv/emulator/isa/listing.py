"""The instruction table as a document for people and programs: `equiv emulator opcodes`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from equiv.emulator.isa import SUBJECTS
from equiv.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from equiv.emulator.isa.table import Entry, Group

ARCHITECTURES = (90, 100)
_EFFECT = {"lane": "", "warp": "", "none": "no effect on values", "refused": "refused"}


def rows(text: str = "", architecture: int = 0) -> list[dict[str, Any]]:
    """The entries that a text selects, as data.

    Args:
        text: a part of an opcode's syntax, or a whole opcode as spelt in PTX; empty for all.
        architecture: 90 or 100 for what that one has; 0 for both.

    Returns:
        Of each entry `subject`, `syntax` (as in PTX manuals), `operands`, `kind`, `architectures`, `ignored` (modifiers
        without effect on values), `spellings` (how many opcodes it stands for, not counting those), `note`.

    Raises:
        UsageError: nothing is selected.
    """
    found = [
        _row(subject, entry)
        for subject, entries in SUBJECTS.items()
        for entry in entries
        if entry.arch <= (architecture or ARCHITECTURES[-1]) and _selected(entry, text)
    ]
    if not found:
        raise UsageError(f"the instruction table has nothing with {text!r}; without a pattern it is printed whole")
    return found


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """The same as text, by subject."""
    subject = ""
    for row in found:
        if row["subject"] != subject:
            subject = row["subject"]
            yield subject
        remarks = [_EFFECT.get(row["kind"], row["kind"]), row["note"]]
        if row["ignored"]:
            remarks.append("without effect: " + ", ".join(row["ignored"]))
        if row["architectures"] != _names(0):
            remarks.append("only " + ", ".join(row["architectures"]))
        yield f"  {row['syntax']}  {row['operands']}".rstrip()
        remark = "; ".join(filter(None, remarks))
        if remark:
            yield f"      {remark}"
    known = [row for row in found if row["kind"] != "refused"]
    refused = f"; {len(found) - len(known)} refused by name" if len(known) < len(found) else ""
    yield f"{len(known)} entries, {sum(row['spellings'] for row in known)} opcodes{refused}"


def _names(lowest: int) -> list[str]:
    return [f"sm_{one}a" for one in ARCHITECTURES if one >= lowest]


def _selected(entry: Entry, text: str) -> bool:
    return text in entry.pattern or text in _syntax(entry) or entry.match(text) is not None


def _row(subject: str, entry: Entry) -> dict[str, Any]:
    return {
        "subject": subject,
        "syntax": _syntax(entry),
        "operands": ", ".join(entry.operands.split()),
        "kind": entry.kind,
        "architectures": _names(entry.arch),
        "spellings": math.prod(
            len(group.choices) + group.optional for group in entry.groups if group.name not in entry.hints
        ),
        "ignored": list(entry.hints),
        "note": entry.note,
    }


def _syntax(entry: Entry) -> str:
    return entry.base + "".join(map(_place, entry.groups))


def _place(group: Group) -> str:
    several = "|".join(f".{choice}" for choice in group.choices)
    if group.optional:
        return f"{{{several}}}"
    return f"({several})" if len(group.choices) > 1 else several
