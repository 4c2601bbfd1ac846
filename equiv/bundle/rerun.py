"""Runs a bundle: its launches on its inputs, in the emulator or on a GPU, every byte compared with the recording."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from equiv.bundle import archive, contents
from equiv.emulator.replay import replay_directory

if TYPE_CHECKING:
    from equiv.bundle.contents import Bundle
    from equiv.emulator.replay import ReplayReport


def rerun(path: Path, device: str = "") -> tuple[Bundle, ReplayReport]:
    """What a bundle says, and what its launches gave now; a launch that failed when recorded has to fail again alike.

    Args:
        path: the file.
        device: `emulated:ARCH` or `cuda:N`; by default where it was recorded.

    Raises:
        RecordError: the file is damaged. UsageError: it cannot be read, or no such device.
        UnsupportedError: no such GPU.
    """
    with tempfile.TemporaryDirectory(prefix="equiv-bundle-") as scratch:
        root = Path(scratch)
        archive.unpack(path, root)
        bundle = contents.read(root)
        report = replay_directory(root, device or bundle.device, names=tuple(bundle.captures.values()), failing=True)
    return bundle, report
