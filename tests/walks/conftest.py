"""A clone for each walk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import clone as clones
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def clone(tmp_path: Path) -> clones.Clone:
    return clones.make(tmp_path / "clone")
