"""Makes a bundle of one case, and offers it only after it ran again from its file alone, in fresh processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from equiv.bundle import archive, contents
from equiv.compare import PARTIES
from equiv.emulator.record import RecordFolder
from equiv.errors import RecordError, UnsupportedError
from equiv.report.environment import versions
from equiv.report.text import case_text
from equiv.runner import capture_name
from equiv.verify import verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.device import Device
    from equiv.pairs import Pair
    from equiv.records import Bits, Case

RUNS = 2
"""How often a bundle is run before it is offered."""
RUN = ("repro", "--run")
TAIL = 2000
"""Characters of a failed run that the error quotes."""


def make(
    pair: Pair,
    case: Case,
    device: Device,
    path: Path,
    *,
    inputs: Mapping[str, Bits] | None = None,
    changed: str = "",
    again: str = "",
) -> contents.Bundle:
    """Runs a case with everything recorded and writes the bundle.

    Args:
        pair: the operator.
        case: the case; all its axes are kept.
        device: an emulated one.
        path: the file; it must not be there yet.
        inputs: bits to run with instead of those that the case generates.
        changed: how they differ, in words.
        again: the command that repeats the case.

    Raises:
        UnsupportedError: the device does not record, or a party cannot run on it.
        RecordError: the file is there, no kernel was launched, or the bundle did not run again with the same bits.
    """
    if device.kind == "cuda":
        raise UnsupportedError(
            "device:emulated", f"{device.name} does not record; a bundle of an emulated one runs there"
        )
    if path.exists():
        raise RecordError(f"{path}: is there already")
    bits = pair.inputs(case) if inputs is None else dict(inputs)
    with tempfile.TemporaryDirectory(prefix="equiv-bundle-") as scratch:
        root = Path(scratch) / "bundle"
        given = replace(pair, inputs=lambda _case: bits)
        verdict = verify(given, case, device, again=again, record=root)
        folder = RecordFolder(root)
        names = {party: capture_name(case, party, device.arch) for party in PARTIES}
        captures = {party: name for party, name in names.items() if (root / "captures" / f"{name}.json").exists()}
        if not any(folder.load(name).launches for name in captures.values()):
            raise RecordError(f"{case.name} on {device.name} launched no kernel: {verdict.status}: {verdict.summary}")
        bundle = contents.Bundle(
            case,
            device.name,
            versions() | dict(verdict.toolchain),
            tuple(contents.Tensor(spec, bits.get(spec.name)) for spec in pair.layout(case)),
            changed,
            captures,
            str(verdict.status),
            case_text(verdict),
        )
        contents.write(bundle, root)
        trial = Path(scratch) / "trial.zip"
        archive.pack(root, trial)
        for _ in range(RUNS):
            _try(trial)
        bundle = replace(bundle, runs=RUNS, equal=RUNS)
        contents.write(bundle, root)
        archive.pack(root, path)
    return bundle


def _try(path: Path) -> None:
    """Runs a bundle in a fresh process that knows nothing but its file."""
    done = subprocess.run(
        [sys.executable, "-m", "equiv.cli", *RUN, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-TAIL:]
        raise RecordError(f"the bundle does not run again with the same bits, so there is none:\n{said}")
