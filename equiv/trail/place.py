"""Which bytes of memory an element of a logical output is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.content import view

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.trail.played import Played

_TOGETHER = 16


def bytes_of(played: Played, output: str, index: tuple[int, ...]) -> list[int]:
    """Addresses of the stored bytes that an element consists of, ascending; none: no recorded store reached it.

    The pair alone knows how it cuts its outputs out of tensors. So bytes are inverted, halves of halves of all that
    were stored, and what changes the element is kept. The scene must hold what this way of playing it left, and does
    so again afterwards.
    """
    found: list[int] = []
    buffers = sorted((one.address, one.address + one.span) for one in played.scene.buffers)
    for low, high in buffers:
        stored = played.spans[(played.spans >= low) & (played.spans < high)].astype(np.int64)
        if len(stored) and _matters(played, output, index, stored):
            found += _within(played, output, index, stored)
    return sorted(found)


def _within(played: Played, output: str, index: tuple[int, ...], stored: npt.NDArray[np.int64]) -> list[int]:
    """The bytes of some, which together matter, that do."""
    while len(stored) > _TOGETHER:
        half = len(stored) // 2
        low, high = stored[:half], stored[half:]
        first, second = (_matters(played, output, index, one) for one in (low, high))
        if first and second:
            return _within(played, output, index, low) + _within(played, output, index, high)
        stored = low if first else high
    return [int(one) for one in stored if _matters(played, output, index, one[None])]


def _matters(played: Played, output: str, index: tuple[int, ...], addresses: npt.NDArray[np.int64]) -> bool:
    """Whether the element changes when these bytes are inverted."""
    _invert(addresses)
    try:
        now = played.scene.outputs()[output][index]
    finally:
        _invert(addresses)
    return bool(now != played.outputs[output][index])


def _invert(addresses: npt.NDArray[np.int64]) -> None:
    low, high = int(addresses[0]), int(addresses[-1]) + 1
    memory = view(low, high - low)
    memory[addresses - low] ^= 0xFF
