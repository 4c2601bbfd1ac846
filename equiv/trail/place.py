"""Which bytes of memory an element of a logical output is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.content import view

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.trail.played import Played

    Spans = npt.NDArray[np.int64]
    """(address, bytes) of each, `[n, 2]`."""


def bytes_of(played: Played, output: str, index: tuple[int, ...]) -> list[int]:
    """Addresses of the stored bytes that an element consists of, ascending; none: no recorded store reached it.

    The pair alone knows how it cuts its outputs out of tensors. So bytes are inverted, halves of halves of all that
    were stored, and what changes the element is kept. The scene must hold what this way of playing it left, and does
    so again afterwards.
    """
    found: set[int] = set()
    spans = played.spans.astype(np.int64)
    for buffer in played.scene.buffers:
        low, high = buffer.address, buffer.address + buffer.span
        stored = spans[(spans[:, 0] >= low) & (spans[:, 0] < high)]
        found.update(_within(played, output, index, stored) if _matters(played, output, index, stored) else ())
    return sorted(found)


def _within(played: Played, output: str, index: tuple[int, ...], spans: Spans) -> list[int]:
    """The bytes of some spans, which together matter, that do."""
    while len(spans) > 1:
        half = len(spans) // 2
        low, high = spans[:half], spans[half:]
        first, second = (_matters(played, output, index, one) for one in (low, high))
        if first == second:  # both, or neither without the other
            return _within(played, output, index, low) + _within(played, output, index, high) if first else []
        spans = low if first else high
    if len(spans) and spans[0, 1] > 1:
        start, size = (int(one) for one in spans[0])
        pieces = [(start, size // 2), (start + size // 2, size - size // 2)]
        return [at for one in pieces if _matters(played, output, index, np.array([one])) for at in
                _within(played, output, index, np.array([one]))]  # fmt: skip
    return [int(spans[0, 0])] if len(spans) else []


def _matters(played: Played, output: str, index: tuple[int, ...], spans: Spans) -> bool:
    """Whether the element changes when these bytes are inverted."""
    if not len(spans):
        return False
    _invert(spans)
    try:
        now = played.scene.outputs()[output][index]
    finally:
        _invert(spans)
    return bool(now != played.outputs[output][index])


def _invert(spans: Spans) -> None:
    low = int(spans[:, 0].min())
    memory = view(low, int((spans[:, 0] + spans[:, 1]).max()) - low)
    inside = np.arange(spans[:, 1].sum()) - np.repeat(np.cumsum(spans[:, 1]) - spans[:, 1], spans[:, 1])
    memory[np.repeat(spans[:, 0] - low, spans[:, 1]) + inside] ^= 0xFF  # a byte that is in two spans is inverted once
