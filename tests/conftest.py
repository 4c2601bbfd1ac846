"""Puts the fake pair of `tests/support` where this process and the ones it starts find it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent / "support"

sys.path.insert(0, str(SUPPORT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
