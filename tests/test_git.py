"""Questions to git."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from equiv.errors import UsageError
from equiv.git import git

if TYPE_CHECKING:
    from pathlib import Path


def test_what_git_says_is_given_back_or_is_the_error(tmp_path: Path) -> None:
    assert git("--against", tmp_path, "init", "--initial-branch", "trunk", ".")
    assert git("--against", tmp_path, "symbolic-ref", "HEAD") == b"refs/heads/trunk\n"
    with pytest.raises(UsageError, match=r"^--against: git rev-parse --verify nosuch: fatal: .*"):
        git("--against", tmp_path, "rev-parse", "--verify", "nosuch")
    with pytest.raises(UsageError, match=r"^--changed: git diff --quiet HEAD: .+"):
        git("--changed", tmp_path, "diff", "--quiet", "HEAD")
