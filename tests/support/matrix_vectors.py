"""Measured matrix products kept as test data: one array of bytes, and a line of text for each set of tiles.

A line is `<instruction> <mode> <tiles> <m> <n> <k>`; its bytes are A [tiles, m, k], B [tiles, k, n], C and D
[tiles, m, n], little endian, in the types of the instruction. Modes: tests/gpu/matrix_probe.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.rounding.matrix_table import MatrixVariant, variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Array = npt.NDArray[Any]
DATA = Path(__file__).parents[1] / "rounding" / "data"


@dataclass(frozen=True)
class Measured:
    """Products that a GPU computed with one instruction in one mode."""

    model: MatrixVariant
    mode: str
    a: Array
    b: Array
    c: Array
    d: Array

    def __str__(self) -> str:
        return f"{self.model.instruction} {self.mode}"

    def computed(self, fused_dot: Callable[..., Array], model: MatrixVariant | None = None) -> Array:
        """D by a model, its own unless another is given."""
        used = model or self.model
        negate = self.mode in {"-a", "-b"}
        addends = [None if self.mode == "d0" else c for c in self.c]
        return np.stack(
            [fused_dot(used, a, b, c, negate=negate) for a, b, c in zip(self.a, self.b, addends, strict=True)]
        )


def load(path: Path, arch: str = "sm_90a") -> list[Measured]:
    """Every set of a file."""
    with np.load(path) as file:
        data, lines = file["data"].tobytes(), str(file["index"]).splitlines()
    sets, at = [], 0
    for line in lines:
        name, mode, *numbers = line.split()
        tiles, m, n, k = map(int, numbers)
        model = variant(name, arch)
        accumulator = model.result.format
        arrays = []
        for fmt, shape in ((model.a, (m, k)), (model.b, (k, n)), (accumulator, (m, n)), (accumulator, (m, n))):
            size = tiles * shape[0] * shape[1] * fmt.dtype.itemsize
            arrays.append(np.frombuffer(data[at : at + size], dtype=fmt.dtype).reshape(tiles, *shape))
            at += size
        sets.append(Measured(model, mode, *arrays))
    assert at == len(data), f"{path.name}: {len(data) - at} bytes left over"
    return sets


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
