"""Puts the fake pair of `tests/support` where this process and the ones it starts find it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SUPPORT = Path(__file__).parent / "support"

sys.path.insert(0, str(SUPPORT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH", "")]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Counts the checks against silicon that were not run: a green run without a GPU is not one with it."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/gpu/" in report.nodeid]
    if skipped:
        terminalreporter.write_line(f"tests/gpu: {len(skipped)} check(s) NOT RUN, they need an NVIDIA GPU")
