"""Writes the files that equiv.rounding.matrix_measured reads, and makes models that are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from equiv.rounding.matrix_measured import DATA, Array, Measured, load

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from equiv.rounding.matrix_table import MatrixVariant

__all__ = ["DATA", "Array", "Measured", "load", "mutants", "save"]


def save(path: Path, sets: Iterable[Measured]) -> None:
    """Writes a file that `load` reads."""
    lines, parts = [], []
    for each in sets:
        tiles, m, k = each.a.shape
        lines.append(f"{each} {tiles} {m} {each.b.shape[2]} {k}")
        parts += [x.tobytes() for x in (each.a, each.b, each.c, each.d)]
    np.savez_compressed(path, data=np.frombuffer(b"".join(parts), dtype=np.uint8), index=np.array("\n".join(lines)))


def mutants(model: MatrixVariant) -> dict[str, MatrixVariant]:
    """Models that are wrong in one parameter."""
    row, result = model.row, model.result
    wrong = {
        "one bit less": replace(model, row=replace(row, align=row.align - 1)),
        "one bit more": replace(model, row=replace(row, align=row.align + 1)),
        "zeros at a larger exponent": replace(model, result=replace(result, zero_exponent=result.zero_exponent + 1)),
        "zeros at a smaller exponent": replace(model, result=replace(result, zero_exponent=result.zero_exponent - 1)),
    }
    if row.unpacked:
        order = tuple(range(model.k))
        half = model.k // 2
        wrong["halves instead of pairs"] = replace(model, blocks=(order[:half], order[half:]))
        wrong["native 8-bit operands"] = replace(model, row=replace(row, unpacked=False), blocks=(order,))
    else:
        half = model.k // 2
        wrong["two sums"] = replace(model, blocks=(model.blocks[0][:half], model.blocks[0][half:]))
    return wrong
