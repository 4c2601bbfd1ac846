"""Runs a kernel through the C engine and the portable one, on equal memory, and compares what is left."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from ptx_run import aligned

from equiv.emulator import engine
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse
from equiv.emulator.reference import engine as reference
from equiv.errors import EquivError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from equiv.emulator.memory import Region
    from equiv.emulator.ptx import Module

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


def _outcome(
    which: str, text: str, buffers: Sequence[Bytes], config: engine.LaunchConfig, *, arch: str, budget: int | None
) -> tuple[str, tuple[int, int, int]]:
    memory = Memory()
    for number, buffer in enumerate(buffers):
        memory.register(buffer.ctypes.data, buffer.nbytes, f"buffer {number}")
    params = b"".join(buffer.ctypes.data.to_bytes(8, "little") for buffer in buffers)
    module = parse(text)
    try:
        if which == "c":
            stats = engine.launch(engine.load(module, "k", arch), config, params, memory, budget=budget, checks=False)
        else:
            stats = reference.launch(reference.load(module, "k", arch), config, params, memory, budget=budget)
    except EquivError as error:
        return f"{type(error).__name__}: {error}", (0, 0, 0)
    return "", _counts(stats)


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
    return _compare(text, [one.view(np.uint8).reshape(-1) for one in given], buffers, config, arch=arch, budget=budget)


def agree_in_place(
    text: str,
    config: engine.LaunchConfig,
    arch: str,
    before: Sequence[Array],
    buffers: Sequence[Array],
    *,
    most: int = 1 << 62,
) -> bool:
    """The same on memory that may hold addresses of itself; leaves what it finds.

    Args:
        text: as the other arguments what an observer of `ptx_run.OBSERVERS` is told.
        most: warp instructions; a longer launch is left alone, because the portable engine is slow.

    Returns:
        Whether both engines ran it.
    """
    flat = [buffer.view(np.uint8).reshape(-1) for buffer in buffers]
    found = [one.copy() for one in flat]
    given = [one.view(np.uint8).reshape(-1) for one in before]

    def restore(contents: Sequence[Bytes]) -> None:
        for buffer, one in zip(flat, contents, strict=True):
            buffer[:] = one

    restore(given)
    _, (count, *_) = _outcome("c", text, flat, config, arch=arch, budget=None)
    if count <= most:
        _compare(text, given, flat, config, arch=arch, budget=None)
    restore(found)
    return count <= most


@contextmanager
def every_launch() -> Iterator[list[int]]:
    """Lets the portable engine repeat each launch, of an emulated device for instance, on memory as it was before.

    Yields:
        The warp instructions of each launch so far, in both engines.
    """
    known: dict[int, tuple[engine.Program, Module, str, str]] = {}
    counts: list[int] = []
    load, launch = engine.load, engine.launch

    def loading(module: Module, kernel: str, arch: str) -> engine.Program:
        program = load(module, kernel, arch)
        known[id(program)] = (program, module, kernel, arch)
        return program

    def launching(
        program: engine.Program,
        config: engine.LaunchConfig,
        params: bytes,
        memory: Memory,
        **options: Any,
    ) -> engine.LaunchStats:
        regions = [one for one in memory.regions if one.writable]
        before = [_bytes(one) for one in regions]
        stats = launch(program, config, params, memory, **options)
        after = [_bytes(one) for one in regions]
        for region, data in zip(regions, before, strict=True):
            ctypes.memmove(region.address, data, len(data))
        _, module, kernel, arch = known[id(program)]
        other = reference.launch(reference.load(module, kernel, arch), config, params, memory)
        for region, data in zip(regions, after, strict=True):
            assert _bytes(region) == data, f"{kernel}: {region.name} differs"
        assert _counts(stats) == _counts(other)
        counts.append(stats.warp_instructions)
        return stats

    with patch.object(engine, "load", loading), patch.object(engine, "launch", launching):
        yield counts


def _bytes(region: Region) -> bytes:
    return ctypes.string_at(region.address, region.end - region.address)


def _counts(stats: engine.LaunchStats) -> tuple[int, int, int]:
    return stats.warp_instructions, stats.lane_instructions, stats.order_dependent


def _compare(
    text: str,
    given: Sequence[Bytes],
    buffers: Sequence[Bytes],
    config: engine.LaunchConfig,
    *,
    arch: str,
    budget: int | None,
) -> tuple[str, list[Bytes]]:
    found = []
    for which in ("c", "portable"):
        for buffer, start in zip(buffers, given, strict=True):
            buffer[:] = start
        outcome = _outcome(which, text, buffers, config, arch=arch, budget=budget)
        found.append((outcome, [buffer.copy() for buffer in buffers]))
    (first, left), (second, right) = found
    assert first == second, f"C: {first}, portable: {second}"
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        differing = np.flatnonzero(one != other)
        assert not differing.size, f"buffer {number}: bytes {differing[:8].tolist()} of {differing.size}"
    return first[0], left
