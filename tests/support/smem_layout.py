"""Where PTX puts a matrix's elements in shared memory, from its canonical layouts, and the descriptors to match."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
SWIZZLES = {"none": 16, "32": 32, "64": 64, "128": 128}
WGMMA_CODE = {"none": 0, "128": 1, "64": 2, "32": 3}
TENSOR_CODE = {"none": 0, "128": 2, "64": 4, "32": 6}


def offsets(matrix: Array, swizzle: str, major: str, strides: tuple[int, int]) -> Array:
    """Byte offset of each element of a matrix [rows, k], before the swizzle; strides: leading and stride offset."""
    row, k = np.arange(matrix.shape[0])[:, None], np.arange(matrix.shape[1])[None]
    size, (lead, stride) = matrix.itemsize, strides
    wide, unit = SWIZZLES[swizzle], 16 // size
    if major == "K":
        chunk, rest = k // unit, k % unit * size
        if swizzle == "none":
            return row % 8 * 16 + row // 8 * stride + chunk * lead + rest
        return row % 8 * wide + row // 8 * stride + chunk * 16 + rest
    if swizzle == "none":
        return row % unit * size + row // unit * stride + k % 8 * 16 + k // 8 * lead
    per = wide // size
    return row % per * size + row // per * lead + k % 8 * wide + k // 8 * stride


def swizzled(address: Array, swizzle: str) -> Array:
    """The exchange of address bits: 16-byte chunk numbers by the bits from 7 on."""
    return np.asarray(address ^ ((address >> 7 & (SWIZZLES[swizzle] // 16 - 1)) << 4))


def place(matrix: Array, start: int, layout: tuple[str, str], strides: tuple[int, int], image: Array) -> None:
    """Write a matrix [rows, k] into an image of shared memory whose byte 0 has a shared address divisible by 1024.

    `layout`: swizzle and major.
    """
    size = matrix.itemsize
    at = swizzled(start + offsets(matrix, *layout, strides), layout[0])
    for byte in range(size):
        image[at + byte] = matrix.view(np.uint8).reshape(*matrix.shape, size)[..., byte]


def descriptor(address: int, lead: int, stride: int, code: int, *, tensor: bool = False) -> int:
    """A matrix descriptor of `wgmma`, or of `tcgen05` with `tensor`."""
    fields = (address & 0x3FFFF) >> 4 | lead >> 4 << 16 | stride >> 4 << 32
    return fields | (1 << 46 | code << 61 if tensor else code << 62)
