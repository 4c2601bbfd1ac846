"""Tensor maps as operands in device memory: the 128 bytes that a tensor copy needs, written without the driver.

Fields of the hardware's layout that are used, in little-endian words of 32 bits: 0, 1 address; 2 rank - 1 from bit 4,
element type from bit 7, swizzle from bit 13; 3 stride of the rows in units of 16 bytes, its bits above 32 in word 7;
8, 9 columns and rows, each minus 1; 13, 14 columns of the box minus 1 from bit 24, rows of the box minus 1 in byte 0.
The driver sets more, without effect on values: L2 promotion in word 2; in 16 and 18 bytes and alignment of a box.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from equiv.errors import UsageError

if TYPE_CHECKING:
    import torch

BYTES: Final = 128
ALIGN: Final = 64
BF16: Final = 10
SWIZZLE_128B: Final = 3
MAX_BOX: Final = 256
_ELEMENT: Final = 2
_FIELD_WORDS: Final = 15
_FORM_WORD: Final = 2
_FORM: Final = 0xFFF0
"""Rank, element type, interleaving, swizzle, fill; below and above are bits without effect on values."""
_ROW_ALIGN: Final = 16


@dataclass(frozen=True, slots=True)
class Matrix:
    """A BF16 matrix in device memory and a box of it, copied with the 128-byte swizzle.

    Attributes:
        address: of its first element; a multiple of 16.
        rows: number of rows.
        columns: number of columns.
        pitch: bytes from row to row; a multiple of 16 below 2^40.
        box_rows: rows of a box, up to 256.
        box_columns: columns of a box, 8 to 64, a multiple of 8.
    """

    address: int
    rows: int
    columns: int
    pitch: int
    box_rows: int
    box_columns: int = 64


def encode(matrix: Matrix) -> bytes:
    """The 128 bytes of a tensor map.

    Raises:
        UsageError: a limit of the hardware is not respected; the field is named.
    """
    for name, value, low, high, multiple in (
        ("address", matrix.address, 0, 1 << 64, _ROW_ALIGN),
        ("rows", matrix.rows, 1, (1 << 32) + 1, 1),
        ("columns", matrix.columns, 1, (1 << 32) + 1, 1),
        ("pitch", matrix.pitch, _ROW_ALIGN, 1 << 40, _ROW_ALIGN),
        ("box_rows", matrix.box_rows, 1, MAX_BOX + 1, 1),
        ("box_columns", matrix.box_columns, 8, 65, 8),
    ):
        if not low <= value < high or value % multiple:
            also = f" and a multiple of {multiple}" if multiple > 1 else ""
            raise UsageError(f"tensor map: {name} must be {low} to {high - 1}{also}; got {name}={value}")
    units = matrix.pitch // _ROW_ALIGN
    word = [0] * (BYTES // 4)
    word[0], word[1] = matrix.address & 0xFFFFFFFF, matrix.address >> 32
    word[2] = 1 << 4 | BF16 << 7 | SWIZZLE_128B << 13
    word[3], word[7] = units & 0xFFFFFFFF, units >> 32
    word[8], word[9] = matrix.columns - 1, matrix.rows - 1
    word[13], word[14] = (matrix.box_columns - 1) << 24, matrix.box_rows - 1
    word[16], word[18] = matrix.box_rows * matrix.box_columns * _ELEMENT, 1024
    return struct.pack("<32I", *word)


def tensor_map(matrix: torch.Tensor, box_rows: int) -> torch.Tensor:
    """The map of a BF16 matrix with dense rows as a uint8 tensor of 128 bytes, on the matrix's device.

    A map says where a matrix lies, not what it holds, so that one is kept and given again for the same place.

    Raises:
        UsageError: the tensor is no such matrix, or a limit of the hardware is not respected.
    """
    if str(matrix.dtype) != "torch.bfloat16" or matrix.dim() != 2 or matrix.stride(1) != 1:
        found = f"{matrix.dtype}, shape {tuple(matrix.shape)}, strides {tuple(matrix.stride())}"
        raise UsageError(f"tensor map: a BF16 matrix with dense rows is needed; got {found}")
    rows, columns = matrix.shape
    return _placed(Matrix(matrix.data_ptr(), rows, columns, matrix.stride(0) * _ELEMENT, box_rows), matrix.device)


@lru_cache(maxsize=256)
def _placed(matrix: Matrix, device: torch.device) -> torch.Tensor:
    import torch

    found = torch.frombuffer(bytearray(encode(matrix)), dtype=torch.uint8).to(device, copy=True)
    if found.data_ptr() % ALIGN:
        raise UsageError(f"tensor map: memory at {found.data_ptr():#x} is not aligned to {ALIGN} bytes")
    return found


def differences(left: bytes, right: bytes) -> dict[int, tuple[int, int]]:
    """Words in which two maps differ in a field of the layout above: word -> both values.

    For the comparison with what `cuTensorMapEncodeTiled` or CuTe DSL writes for the same matrix. The latter fills 64
    bytes only and leaves what its stack held in the others.
    """
    words = list(zip(struct.unpack("<32I", left), struct.unpack("<32I", right), strict=True))[:_FIELD_WORDS]
    return {at: (a, b) for at, (a, b) in enumerate(words) if (a ^ b) & (_FORM if at == _FORM_WORD else 0xFFFFFFFF)}
