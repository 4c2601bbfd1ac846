"""What people say of mutants of this repository's kernels is about code that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from equiv import pairs
from equiv.mutate.argued import read

ROOT = Path(__file__).parents[2]
LINES = [line for path in sorted((ROOT / "equiv" / "cute").rglob("*.py")) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "cases" / "mutants").glob("*.toml"))])
def test_every_argument_is_about_a_line_of_the_kernels(name: str) -> None:
    found = read(pairs.get(name), ROOT / "cases")
    assert found
    assert [code for one in found for code in one.code if not any(code in line for line in LINES)] == []
