"""How differing elements spread over their tensor and over distances, in numbers small enough for a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS, COLUMNS = 16, 64
"""Parts that a grid has at most."""


def sizes(distances: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """How many distances have 1, 2, 3, ... bits (1; 2 and 3; 4 to 7; ...), up to the largest one; all are above 0."""
    if not distances.size:
        return ()
    powers = np.int64(1) << np.arange(63)
    bits = np.searchsorted(powers, distances, side="right")
    return tuple(np.bincount(bits)[1:].tolist())


def grid(differs: npt.NDArray[np.bool_]) -> tuple[tuple[int, ...], ...]:
    """Differing elements counted over (all dimensions but the last, the last one), each cut into equal parts.

    A dimension of at most `ROWS` (`COLUMNS`) entries keeps them all; of a longer one, the parts differ by one entry.
    """
    columns = differs.shape[-1]
    rows = differs.size // columns
    at_row, at_column = np.nonzero(differs.reshape(rows, columns))
    height, width = min(rows, ROWS), min(columns, COLUMNS)
    counts = np.zeros((height, width), dtype=np.int64)
    np.add.at(counts, (at_row * height // rows, at_column * width // columns), 1)
    return tuple(map(tuple, counts.tolist()))
