"""The emulator against silicon: launches recorded in `emulated:<arch of the GPU>` repeat on the GPU to the byte.

The same by hand, with records made on a machine without a GPU:
`equiv run dsa_index kda --suite pr --device emulated:sm_90a --record records`, then
`python -m equiv.emulator.replay records --device cuda:0`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from equiv.emulator.replay import replay_directory

if TYPE_CHECKING:
    from pathlib import Path

    from equiv.device import Device

pytestmark = pytest.mark.gpu

PAIRS = ("dsa_index", "kda")
"""Their launches can be moved to other addresses; `dsa_front` keeps an address in device memory (a tensor map)."""


def test_launches_of_the_smoke_suite_leave_the_same_bytes_on_the_gpu(gpu: Device, tmp_path: Path) -> None:
    records = tmp_path / "records"
    command = ["run", *PAIRS, "--suite", "smoke", "--device", f"emulated:{gpu.arch}", "--record", str(records)]
    subprocess.run([sys.executable, "-m", "equiv.cli", *command], check=True)
    report = replay_directory(records, gpu.name)
    assert report.equal, str(report)
    assert (report.bytes_different, report.skipped) == (0, [])
    assert report.launches > 20
