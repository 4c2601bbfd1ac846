"""Runs a kernel through the C engine and the portable one, on equal memory, and compares what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from ptx_run import aligned

from equiv.emulator import engine
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse
from equiv.emulator.reference import engine as reference
from equiv.errors import EquivError

if TYPE_CHECKING:
    from collections.abc import Sequence

Bytes = npt.NDArray[np.uint8]


def _outcome(
    which: str, text: str, buffers: Sequence[Bytes], config: engine.LaunchConfig, *, arch: str, budget: int | None
) -> tuple[str, tuple[int, int]]:
    memory = Memory()
    for number, buffer in enumerate(buffers):
        memory.register(buffer.ctypes.data, buffer.nbytes, f"buffer {number}")
    params = b"".join(buffer.ctypes.data.to_bytes(8, "little") for buffer in buffers)
    module = parse(text)
    try:
        if which == "c":
            stats = engine.launch(engine.load(module, "k", arch), config, params, memory, budget=budget)
        else:
            stats = reference.launch(reference.load(module, "k", arch), config, params, memory, budget=budget)
    except EquivError as error:
        return f"{type(error).__name__}: {error}", (0, 0)
    return "", (stats.warp_instructions, stats.lane_instructions)


def agree(
    text: str,
    given: Sequence[Bytes],
    config: engine.LaunchConfig,
    arch: str = "sm_100a",
    budget: int | None = None,
) -> tuple[str, list[Bytes]]:
    """Asserts that both engines leave the same bytes, or fail with the same words, having executed the same number.

    Returns:
        (error or "", the buffers afterwards).
    """
    buffers = [aligned(one.nbytes) for one in given]
    found = []
    for which in ("c", "portable"):
        for buffer, start in zip(buffers, given, strict=True):
            buffer[:] = start.view(np.uint8).reshape(-1)
        outcome = _outcome(which, text, buffers, config, arch=arch, budget=budget)
        found.append((outcome, [buffer.copy() for buffer in buffers]))
    (first, left), (second, right) = found
    assert first == second
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        differing = np.flatnonzero(one != other)
        assert not differing.size, f"buffer {number}: bytes {differing[:8].tolist()} of {differing.size}"
    return first[0], left
