"""Tensor maps: the 128 bytes that describe a tensor in global memory, and a box of it, to the tensor copies of PTX.

The layout is the hardware's, as ptxas 13.0 compiles `tensormap.replace` for sm_90a: that instruction becomes plain
loads and stores of bit fields. Words of 32 bits, little-endian:

    0, 1        base address
    2           bits 4-6 rank - 1, 7-10 element type, 11-12 interleaving, 13-14 swizzle, 15 fill with NaN,
                16 round to tf32
    3 to 6, 7   strides of dimensions 1 to 4 in units of 16 bytes, their bits above 32 in the nibbles of word 7
    8 to 12     sizes of dimensions 0 to 4 in elements, each minus 1
    13          bits 3 i to 3 i + 2: element stride of dimension i minus 1; 24-31: box size of dimension 0 minus 1
    14          box sizes of dimensions 1 to 4 minus 1, one byte each

    16, 18      bytes of a box, and the alignment it needs in shared memory; copies do not need them

Other bits (L2 promotion and the like) have no effect on values. The bytes equal those of cuTensorMapEncodeTiled of a
driver for CUDA 13 (19 maps of every element type, compared on an H200).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from equiv.errors import DeviceError

BYTES = 128
ELEMENTS = {"u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f32.ftz": 8, "f64": 9,
            "bf16": 10, "tf32": 7 | 1 << 9, "tf32.ftz": 8 | 1 << 9}  # fmt: skip
ELEMENT_BYTES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f32.ftz": 4,
                 "f64": 8, "bf16": 2, "tf32": 4, "tf32.ftz": 4}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NAMES = {code: name for name, code in ELEMENTS.items()}
_SPANS = {code: span for span, code in SWIZZLES.items()}
_MAX_RANK, _MAX_BOX, _MAX_STEP = 5, 256, 8


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map in words.

    Attributes:
        address: of the first element; a multiple of 16.
        element: element type as PTX spells it.
        shape: elements of each dimension, the contiguous one first; 1 to 5 dimensions.
        strides: bytes between neighbours along dimensions 1, 2, ...; multiples of 16 below 2^40.
        box: elements that a copy spans along each dimension, at most 256.
        steps: it takes every n-th of them; at most 8. Without interleaving that of dimension 0 has no effect.
        swizzle: 0, 32, 64 or 128 bytes.
        nan_fill: elements outside the tensor are read as NaN instead of zero.
    """

    address: int
    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    nan_fill: bool = False

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory, which a copy tells its mbarrier, also where it lies outside the tensor."""
        count = ELEMENT_BYTES[self.element]
        for number, (size, step) in enumerate(zip(self.box, self.steps or (1,) * len(self.box), strict=True)):
            count *= -(-size // (step if number else 1))
        return count


def encode(tensor: TensorMap) -> bytes:
    """The 128 bytes of a tensor map.

    Raises:
        DeviceError: a limit of the hardware is not respected; the field is named.
    """
    rank = len(tensor.shape)
    steps = tensor.steps or (1,) * rank
    if tensor.element not in ELEMENTS:
        raise DeviceError(f"tensor map: no element type {tensor.element!r}")
    if tensor.swizzle not in SWIZZLES:
        raise DeviceError(f"tensor map: swizzle of {tensor.swizzle} bytes; there are {', '.join(map(str, SWIZZLES))}")
    if not 1 <= rank <= _MAX_RANK:
        raise DeviceError(f"tensor map: {rank} dimensions; 1 to {_MAX_RANK} are possible")
    for name, values, count in (
        ("strides", tensor.strides, rank - 1),
        ("box", tensor.box, rank),
        ("steps", steps, rank),
    ):
        if len(values) != count:
            raise DeviceError(f"tensor map: {len(values)} {name} for {rank} dimensions")
    _check("address", tensor.address, 0, (1 << 64) - 1, 16)
    for name, values, high, multiple in (
        ("shape", tensor.shape, 1 << 32, 1),
        ("strides", tensor.strides, (1 << 40) - 16, 16),
        ("box", tensor.box, _MAX_BOX, 1),
        ("steps", steps, _MAX_STEP, 1),
    ):
        for value in values:
            _check(name, value, 0 if name == "strides" else 1, high, multiple)
    row = tensor.box[0] * ELEMENT_BYTES[tensor.element]
    if row % 16:
        raise DeviceError(f"tensor map: a row of the box has {row} bytes, which is no multiple of 16")
    if tensor.swizzle and row > tensor.swizzle:
        raise DeviceError(f"tensor map: a row of the box has {row} bytes, more than the swizzle's {tensor.swizzle}")
    word = [0] * 32
    word[0], word[1] = tensor.address & 0xFFFF_FFFF, tensor.address >> 32
    word[2] = (rank - 1) << 4 | ELEMENTS[tensor.element] << 7 | SWIZZLES[tensor.swizzle] << 13 | tensor.nan_fill << 15
    for number, stride in enumerate(tensor.strides):
        word[3 + number] = stride >> 4 & 0xFFFF_FFFF
        word[7] |= stride >> 36 << 4 * number
    for number, (size, box, step) in enumerate(zip(tensor.shape, tensor.box, steps, strict=True)):
        word[8 + number] = size - 1
        word[13] |= (step - 1) << 3 * number
        word[14 if number else 13] |= (box - 1) << (8 * (number - 1) if number else 24)
    word[16], word[18] = tensor.box_bytes, max(tensor.swizzle * 8, 16)
    return struct.pack("<32I", *word)


def decode(data: bytes) -> TensorMap:
    """What 128 bytes say.

    Raises:
        DeviceError: other than 128 bytes; an interleaved layout or packed element type, which are not supported.
    """
    if len(data) != BYTES:
        raise DeviceError(f"tensor map: {len(data)} bytes, not {BYTES}")
    word = struct.unpack("<32I", data)
    rank, element, interleave = (word[2] >> 4 & 7) + 1, word[2] >> 7 & (15 | 1 << 9), word[2] >> 11 & 3
    if rank > _MAX_RANK:
        raise DeviceError(f"tensor map: {rank} dimensions; 1 to {_MAX_RANK} are possible")
    if element not in _NAMES:
        raise DeviceError(f"tensor map: element type {element} is not supported")
    if interleave:
        raise DeviceError("tensor map: interleaved layouts are not supported")
    box = (word[13] >> 24, *(word[14] >> 8 * number & 0xFF for number in range(4)))
    return TensorMap(
        word[0] | word[1] << 32,
        _NAMES[element],
        tuple(word[8 + number] + 1 for number in range(rank)),
        tuple((word[3 + number] | (word[7] >> 4 * number & 15) << 32) << 4 for number in range(rank - 1)),
        tuple(size + 1 for size in box[:rank]),
        tuple((word[13] >> 3 * number & 7) + 1 for number in range(rank)),
        _SPANS[word[2] >> 13 & 3],
        bool(word[2] >> 15 & 1),
    )


def _check(name: str, value: int, low: int, high: int, multiple: int) -> None:
    if not low <= value <= high or value % multiple:
        also = f" and a multiple of {multiple}" if multiple > 1 else ""
        raise DeviceError(f"tensor map: {name} {value} must be {low} to {high}{also}")
