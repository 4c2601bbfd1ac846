"""The table against the real assembler: every spelling of every scalar entry, on both architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ptx_assemble
import ptx_forms as forms
import pytest

from equiv.emulator.isa import SUBJECTS

if TYPE_CHECKING:
    from pathlib import Path

    from equiv.emulator.isa.table import Entry

SCALAR = ("integer", "bits", "compare", "floating", "half", "double", "convert", "narrow", "warp")


def _spellings() -> tuple[list[str], list[Entry]]:
    lines, entries = [], []
    for subject in SCALAR:
        for entry in SUBJECTS[subject]:
            if entry.kind == "refused":
                continue
            for instruction in forms.instructions(entry):
                lines.append(ptx_assemble.text(instruction))
                entries.append(entry)
    return lines, entries


LINES, ENTRIES = _spellings()


@pytest.mark.parametrize(("arch", "number"), [("sm_90a", 90), ("sm_100a", 100)])
def test_the_assembler_takes_what_the_table_knows_and_nothing_newer(arch: str, number: int, tmp_path: Path) -> None:
    assert len(LINES) > 5000
    rejected = ptx_assemble.rejected(LINES, arch, tmp_path)
    wrong = {LINES[at]: why for at, why in rejected.items() if ENTRIES[at].arch <= number}
    assert not wrong
    early = [line for at, line in enumerate(LINES) if ENTRIES[at].arch > number and at not in rejected]
    assert not early
