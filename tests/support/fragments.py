"""Which lane and register holds which element of a matrix, from PTX's formulas, to test the emulator against."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LANES = np.arange(32)
GROUP, THREAD = LANES // 4, LANES % 4


def pack(elements: Array) -> Array:
    """[..., e] elements of a register, low ones first, as 32-bit words [...]."""
    size = elements.dtype.itemsize
    assert elements.shape[-1] * size == 4
    return np.ascontiguousarray(elements).view(np.uint32)[..., 0]


def unpack(words: Array, dtype: npt.DTypeLike) -> Array:
    """The inverse of `pack`."""
    return np.ascontiguousarray(words[..., None]).view(dtype)


def _a_places(per: int, registers: int) -> tuple[Array, Array]:
    """(row, k) of [register, lane, element] of a fragment of A with `per` elements a register."""
    r, e = np.arange(registers)[:, None, None], np.arange(per)
    row = GROUP[:, None] + 8 * (r % 2) + 0 * e
    return row, THREAD[:, None] * per + e + 4 * per * (r // 2)


def a_fragment(a: Array) -> Array:
    """A [16, k] -> registers [r, 32]."""
    per = 4 // a.itemsize
    row, k = _a_places(per, a.shape[1] // per // 2)
    return pack(a[row, k])


def b_fragment(b: Array) -> Array:
    """B [k, 8] -> registers [r, 32]."""
    per = 4 // b.itemsize
    r, e = np.arange(b.shape[0] // per // 4)[:, None, None], np.arange(per)
    return pack(b[THREAD[:, None] * per + e + 4 * per * r, GROUP[:, None] + 0 * e + 0 * r])


def _d_places(n: int) -> tuple[Array, Array]:
    """(row, column) of element [i, lane] of an accumulator with n columns."""
    i = np.arange(n // 2)[:, None]
    return GROUP + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * THREAD + i % 2


def d_fragment(d: Array) -> Array:
    """D or C [16, n] of 32-bit or 16-bit codes -> registers [r, 32]."""
    row, column = _d_places(d.shape[1])
    elements = d[row, column]
    if d.itemsize == 4:
        return elements
    return pack(elements.reshape(-1, 2, 32).transpose(0, 2, 1))


def d_matrix(registers: Array, n: int, dtype: npt.DTypeLike) -> Array:
    """The inverse of `d_fragment`."""
    row, column = _d_places(n)
    elements = registers
    if np.dtype(dtype).itemsize == 2:
        elements = unpack(registers, dtype).transpose(0, 2, 1).reshape(-1, 32)
    found = np.zeros((16, n), dtype)
    found[row, column] = elements
    return found
