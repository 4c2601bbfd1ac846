"""Which GPU a process gets, decided before anything loads CUDA: an entry of the *caller's* `CUDA_VISIBLE_DEVICES`.

An entry is an index, a GPU's UUID or the name of a MIG instance and is handed on as it is. Loads nothing: CUDA reads
the variable once a process, so it has to be set before.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from equiv.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
PINNED = "EQUIV_PINNED"
"""Set in a pinned process that has to know one GPU by the caller's name: there `cuda:3` is CUDA's number 0."""
ENTRY = re.compile(r"[0-9]{1,3}|(?:GPU|MIG)-[0-9A-Za-z/-]+")
END = ("-1", "NoDevFiles")
"""What ends a list: CUDA looks at no entry behind it."""

_COUNT = """
import ctypes
count = ctypes.c_int()
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
except OSError:
    pass
print(count.value)
"""


def listed(environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The entries of `CUDA_VISIBLE_DEVICES`, none if it is empty; None if it is not set: CUDA shows all GPUs.

    Raises:
        UsageError: an entry that CUDA would take for the end of the list, or that is there twice.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return None
    found: list[str] = []
    for number, entry in enumerate(map(str.strip, value.split(",") if value.strip() else ()), 1):
        if entry in END:
            break
        if not ENTRY.fullmatch(entry):
            raise UsageError(
                f"{VISIBLE}={value}: entry {number}, {entry!r}, is no index, no GPU-<uuid> and no MIG-<name>"
            )
        if entry in found:
            raise UsageError(f"{VISIBLE}={value}: entry {number}, {entry!r}, is there twice")
        found.append(entry)
    return tuple(found)


def pins(devices: Iterable[str], environment: Mapping[str, str] = os.environ) -> dict[str, tuple[str, ...]]:
    """Device name -> the entries that its workers can be pinned to: one for `cuda:1`, all for `cuda`.

    Left out is what needs no GPU, and what is not there: the device says so itself.

    Raises:
        UsageError: the caller's list has a bad entry.
    """
    names = [name for name in dict.fromkeys(devices) if name.partition(":")[0] == "cuda"]
    entries = listed(environment) if names else ()
    found = {}
    for name in names:
        number = name.partition(":")[2]
        if number:
            mine = (number,) if entries is None else entries[int(number) : int(number) + 1]
        else:
            mine = tuple(map(str, range(count(environment)))) if entries is None else entries
        found[name] = mine
    return {name: mine for name, mine in found.items() if mine}


def count(environment: Mapping[str, str] = os.environ) -> int:
    """How many GPUs CUDA shows, asked in a process of its own, because asking loads CUDA."""
    done = subprocess.run([sys.executable, "-c", _COUNT], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def pinned(device: str, entry: str) -> dict[str, str]:
    """What the environment of a process needs that is to have this entry alone, and to know it by the device's name."""
    return {VISIBLE: entry, PINNED: device}


def index(device: str, environment: Mapping[str, str] = os.environ) -> int:
    """The number that CUDA has in this process for `cuda` or `cuda:N`."""
    number = device.partition(":")[2]
    return 0 if not number or environment.get(PINNED) == device else int(number)


def pin_xdist_worker(entries: Sequence[str] | None = None) -> None:
    """Gives the process of a pytest-xdist worker `gwN` one of some entries in turn; else changes nothing.

    Args:
        entries: what to choose from, None: the caller's list, if there is one.

    Raises:
        UsageError: the caller's list has a bad entry.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if re.fullmatch(r"gw[0-9]+", worker) and (mine := listed() if entries is None else entries):
        os.environ[VISIBLE] = mine[int(worker[2:]) % len(mine)]
