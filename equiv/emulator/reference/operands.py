"""Matrices in shared memory as `wgmma` and `tcgen05` address them (spec numerics 1.6).

A matrix is made of 16-byte chunks. K-major: a chunk holds consecutive k of one row; rows come in groups of 8, `stride`
bytes apart. MN-major: a chunk holds consecutive rows of one k. With a swizzle of S bytes the S / 16 chunks next to each
other lie together, and bits 4 to 6 of the final address are exchanged by the bits above.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.emulator import faults
from equiv.emulator.reference import spaces
from equiv.emulator.reference.machine import FULL
from equiv.emulator.reference.spaces import FaultError, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.emulator.reference.machine import Warp

Codes = npt.NDArray[Any]
CHUNK = 16
DEPTH = 32
"""Bytes of k that one instruction takes of each row."""


class Problem(IntEnum):
    """What may be wrong, by its place in `equiv.emulator.matrix_problems.PROBLEMS`."""

    LANES = 0
    UNIFORM = 1
    WARPGROUP = 2
    NEGATE = 3
    DESCRIPTOR_BITS = 4
    BASE_OFFSET = 5
    SWIZZLE = 6
    INSTRUCTION_BITS = 7
    TYPES = 8
    SHAPE = 9
    COLUMNS = 11
    RELINQUISHED = 12
    NOT_ALLOCATED = 13
    DEALLOC = 14
    LANE_ACCESS = 15
    LEAK = 16
    SCALES = 17
    SCALE_ID = 18
    PACKED_OPERAND = 19
    PAIR = 20
    TRANSPOSED = 21


def problem(what: Problem, value: int = 0, other: int = 0, lane: int = 0) -> FaultError:
    """The fault of a matrix instruction."""
    return FaultError(faults.MATRIX, lane, value, other, what)


def whole_warp(mask: int) -> None:
    """Raises FaultError unless all 32 lanes are there."""
    if mask != FULL:
        raise problem(Problem.LANES, ~mask & (1 << 64) - 1 & FULL, 0, (mask & -mask).bit_length() - 1)


def uniform(values: Sequence[int]) -> int:
    """The one value that all lanes have.

    Raises:
        FaultError: they do not.
    """
    differ = 0
    for value in values:
        differ |= value ^ values[0]
    if differ:
        raise problem(Problem.UNIFORM, differ)
    return values[0]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Where a matrix lies.

    Attributes:
        start, lead, stride: bytes.
        swizzle: 16 (none), 32, 64 or 128 bytes.
        atom: bytes that the swizzle keeps together.
        rank: of the CTA whose shared memory it is.
        lane: of whom a fault is told.
    """

    start: int
    lead: int
    stride: int
    swizzle: int
    atom: int
    rank: int
    lane: int

    def chunk(self, warp: Warp, offset: int) -> bytes:
        """The 16 bytes at a byte offset.

        Raises:
            FaultError: outside the CTA's shared memory.
        """
        at = self.start + offset & 0x3FFFF
        at ^= (at >> 7 & self.swizzle // self.atom - 1) * self.atom
        if at < spaces.RESERVED or at - spaces.RESERVED + CHUNK > warp.grid.shared_size:
            raise FaultError(faults.SHARED_BOUNDS, self.lane, self.rank << 24 | at, CHUNK, 0)
        return spaces.read(warp, Place("shared", self.rank, at - spaces.RESERVED), CHUNK)


def _field(word: int, low: int, count: int) -> int:
    return word >> low & (1 << count) - 1


def _place(word: int) -> tuple[int, int, int]:
    return _field(word, 0, 14) << 4, _field(word, 16, 14) << 4, _field(word, 32, 14) << 4


def wgmma_descriptor(warp: Warp, word: int) -> Descriptor:
    """Reads the descriptor of a `wgmma` operand.

    Raises:
        FaultError: it says something that is not known.
    """
    if _field(word, 14, 2) | _field(word, 30, 2) | _field(word, 46, 3) | _field(word, 52, 10):
        raise problem(Problem.DESCRIPTOR_BITS, word)
    if _field(word, 49, 3):
        raise problem(Problem.BASE_OFFSET, word, _field(word, 49, 3))
    return Descriptor(*_place(word), (16, 128, 64, 32)[word >> 62], CHUNK, warp.cta.rank, 0)


def tensor_descriptor(rank: int, lane: int, word: int) -> Descriptor:
    """Reads the descriptor of a `tcgen05` operand.

    Raises:
        FaultError: it says something that is not known.
    """
    if _field(word, 14, 2) | _field(word, 30, 2) | _field(word, 52, 9) or _field(word, 46, 3) != 1:
        raise problem(Problem.DESCRIPTOR_BITS, word, 0, lane)
    if _field(word, 49, 3):
        raise problem(Problem.BASE_OFFSET, word, _field(word, 49, 3), lane)
    code = _field(word, 61, 3)
    swizzle = {0: 16, 1: 128, 2: 128, 4: 64, 6: 32}.get(code)
    if swizzle is None:
        raise problem(Problem.SWIZZLE, word, code, lane)
    return Descriptor(*_place(word), swizzle, 32 if code == 1 else CHUNK, rank, lane)


def rows(warp: Warp, at: Descriptor, first: int, count: int, size: int = DEPTH) -> npt.NDArray[np.uint8]:
    """Rows of a K-major matrix, `[count, size]` bytes."""
    along = at.lead if at.swizzle == CHUNK else CHUNK
    found = [
        at.chunk(warp, row % 8 * at.swizzle + row // 8 * at.stride + j * along)
        for row in range(first, first + count)
        for j in range(size // CHUNK)
    ]
    return np.frombuffer(b"".join(found), np.uint8).reshape(count, size)


def _columns(warp: Warp, at: Descriptor, first: int, count: int, dtype: npt.DTypeLike) -> Codes:
    """Rows of an MN-major matrix, `[count, depth]` elements."""
    size = np.dtype(dtype).itemsize
    unit, depth = CHUNK // size, DEPTH // size
    wide, group = at.swizzle // CHUNK, 4 if at.atom == 32 else 8
    plain = at.swizzle == CHUNK
    across, along = (at.stride, at.lead) if plain else (at.lead, at.stride)
    chunks = range(first // unit, first // unit + -(-count // unit))
    found = [
        at.chunk(warp, j % wide * CHUNK + j // wide * across + k % group * at.swizzle + k // group * along)
        for k in range(depth)
        for j in chunks
    ]
    return np.frombuffer(b"".join(found), dtype).reshape(depth, len(chunks) * unit)[:, :count].T


def operand(warp: Warp, at: Descriptor, first: int, count: int, dtype: npt.DTypeLike, *, transposed: bool) -> Codes:
    """Rows `first` to `first + count - 1` of a matrix, each of 32 bytes of k: `[count, 32 / element]`.

    Raises:
        FaultError: K-major with the 32-byte atom, or outside shared memory.
    """
    if transposed:
        return _columns(warp, at, first, count, dtype)
    if at.atom == 32:
        raise problem(Problem.SWIZZLE, 0, 1, at.lane)
    return rows(warp, at, first, count).view(dtype)
