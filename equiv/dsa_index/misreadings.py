"""What a `dsa_index` kernel may have read instead: hypotheses that explain mismatches (`Pair.misreadings`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.dsa_index import tensors
from equiv.geometry.dsa import DIM, HEADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.records import Bits, Case


def misreadings(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Mapping[str, Bits]]]:
    """Every hypothesis that is another computation for this case, in words and as changed inputs."""
    row, projected = tensors.rows(case), inputs["projected"]
    for words, first, width in (("key's", row["key_at"], DIM), ("head weights'", row["weight_at"], HEADS)):
        for how, found in _columns(projected, first, width, row["row_pitch"]):
            if not np.array_equal(found, projected[:, first : first + width]):
                changed = projected.copy()
                changed[:, first : first + width] = found
                yield f"the {words} rows {how}", {"projected": changed}
    for name in ("norm_w", "norm_b"):
        if len(set(inputs[name].tolist())) > 1:
            yield f"{name} were read from its first element only", {name: np.full_like(inputs[name], inputs[name][0])}


def _columns(rows: Bits, first: int, width: int, pitch: int) -> Iterator[tuple[str, Bits]]:
    """(in words, what stands there `[B, width]`) for other rows and columns than the right ones."""
    batch, columns = rows.shape
    line = np.zeros((batch, pitch), dtype=rows.dtype)
    line[:, :columns] = rows
    flat = line.ravel()
    at = first + np.arange(width)
    if pitch != columns:
        yield "were as far apart as they are wide", flat[np.arange(batch)[:, None] * columns + at]
    if batch > 1:
        yield "were all the first one", np.broadcast_to(rows[:1, at], (batch, width))
        yield "were the next ones", np.roll(rows, -1, axis=0)[:, at]
    for step in (-1, 1):
        if first + step >= 0 and first + step + width <= columns:
            yield f"began a column {'early' if step < 0 else 'late'}", rows[:, at + step]
