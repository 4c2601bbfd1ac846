"""Matrix products that an H200 computed, kept in the package: one array of bytes, and a line of text a set of tiles.

A line is `<instruction> <mode> <tiles> <m> <n> <k>`; its bytes are A [tiles, m, k], B [tiles, k, n], C and D
[tiles, m, n], little endian, in the types of the instruction. Modes: `plain`, `d0` (C is not added), `-a`, `-b` (one
operand negated), others as tests/gpu/matrix_probe.py names them. Where they come from: data/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.errors import RecordError
from equiv.rounding.matrix_table import MatrixVariant, variant

if TYPE_CHECKING:
    from collections.abc import Callable

Array = npt.NDArray[Any]
DATA: Final = Path(__file__).parent / "data"
FILES: Final = ("h200_bf16_spreads.npz", "h200_matrix.npz")


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
    """Every set of a file.

    Raises:
        RecordError: the file is longer or shorter than its index says.
    """
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
            if at + size > len(data):
                raise RecordError(f"{path.name}: ends within {name} {mode}")
            arrays.append(np.frombuffer(data[at : at + size], dtype=fmt.dtype).reshape(tiles, *shape))
            at += size
        sets.append(Measured(model, mode, *arrays))
    if at != len(data):
        raise RecordError(f"{path.name}: {len(data) - at} bytes left over")
    return sets
