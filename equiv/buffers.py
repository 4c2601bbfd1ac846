"""Poisoned, guarded memory for one tensor.

What a party may write is known byte by byte, and all other bytes are checked. A `GuardedBuffer` holds a host image
`[guard | span | guard]` of one `TensorSpec`. Every byte that no input value is placed in starts as poison: random bits
that read as NaN in every float format, different for each seed, party and tensor, so that reading an unwritten element
cannot give the same plausible result twice. `faults` says in words which bytes changed that must not have. Nothing
here knows about kernels, devices or torch: `equiv.runner` hands out the memory.
"""

from __future__ import annotations

import mmap
import os
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from equiv.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from equiv.records import Bits, TensorSpec

    Bytes = npt.NDArray[np.uint8]
    Mask = npt.NDArray[np.bool_]

PAGE = mmap.PAGESIZE
GUARD = PAGE
"""Bytes of guard before and after a tensor: a page, so that element 0 is aligned at least as a GPU's allocator does."""


@dataclass(frozen=True, slots=True)
class Storage:
    """How a format lies in memory: the unsigned NumPy type of its bits, and the name of the torch type kernels get."""

    bits: str
    torch: str

    @property
    def size(self) -> int:
        """Bytes an element."""
        return np.dtype(self.bits).itemsize


STORAGE: dict[str, Storage] = {
    "u8": Storage("uint8", "uint8"),
    "i32": Storage("uint32", "int32"),
    "i64": Storage("uint64", "int64"),
    "bf16": Storage("uint16", "bfloat16"),
    "f16": Storage("uint16", "float16"),
    "f32": Storage("uint32", "float32"),
}


def storage(spec: TensorSpec) -> Storage:
    """The storage of a tensor's format.

    Raises:
        UsageError: a format that no tensor can have here; the known ones are listed.
    """
    if spec.format not in STORAGE:
        raise UsageError(f"tensor {spec.name!r}: format {spec.format!r} has no storage; known: {', '.join(STORAGE)}")
    return STORAGE[spec.format]


def span(spec: TensorSpec) -> int:
    """Bytes from the first byte of the first element to the last byte of the last one; 0 for an empty tensor.

    Raises:
        UsageError: shape and strides do not fit each other, or two elements share a byte.
    """
    if len(spec.shape) != len(spec.strides) or min((*spec.shape, *spec.strides, 0)) < 0:
        raise UsageError(f"tensor {spec.name!r}: shape {spec.shape} and strides {spec.strides} do not fit")
    size = storage(spec).size
    if 0 in spec.shape:
        return 0
    reach = 1
    for extent, stride in sorted(zip(spec.shape, spec.strides, strict=True), key=lambda axis: axis[1]):
        if extent > 1 and stride < reach:
            raise UsageError(f"tensor {spec.name!r}: elements overlap, shape {spec.shape}, strides {spec.strides}")
        reach += (extent - 1) * stride
    return reach * size


def poison(count: int, spec: TensorSpec, seed: int, party: str, offset: int = 0) -> Bytes:
    """`count` bytes of poison for a tensor, from byte `offset` (a multiple of `PAGE`) of its image on.

    Float formats get 16-bit words `s111 1111 11pp pppp`: NaN with a random sign and payload as BF16, and so as FP32.
    Bytes and integers get all bits at random: as an index they lead out of every buffer.
    """
    key = [seed & (2**64 - 1), zlib.crc32(f"{party}/{spec.name}".encode()), offset // PAGE]
    generator = np.random.Philox(np.random.SeedSequence(key))
    bits = generator.random_raw(-(-count // 8))
    if spec.format not in {"u8", "i32", "i64"}:
        bits |= np.uint64(0x7FC0_7FC0_7FC0_7FC0)
    return np.asarray(bits).view(np.uint8)[:count]


class Image:
    """Zeroed, page-aligned host bytes; a sparse image costs only the pages that are touched, which `extents` lists."""

    def __init__(self, size: int, *, sparse: bool) -> None:
        self.size = -(-size // PAGE) * PAGE
        self.sparse = sparse
        self._file = os.memfd_create("equiv-sparse") if sparse else -1
        if sparse:
            os.ftruncate(self._file, self.size)
        # Anonymous memory is private, so that a forked process has its own; by default it would be shared. Behind it
        # lies as much again, which costs nothing: what leaves an image does not come to the next one.
        length, flags = (self.size, mmap.MAP_SHARED) if sparse else (2 * self.size, mmap.MAP_PRIVATE)
        self.memory = mmap.mmap(self._file, length, flags)
        self.bytes: Bytes = np.frombuffer(self.memory, dtype=np.uint8, count=self.size)

    def extents(self) -> Iterator[tuple[int, int]]:
        """(first byte, one past the last) of every run of touched pages; the whole image if it is not sparse.

        Reading a page of a sparse image may count as touching it: an extent is where to look, not what changed.
        """
        if not self.sparse:
            yield 0, self.size
            return
        end = 0
        while end < self.size:
            try:
                start = os.lseek(self._file, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == 6:  # ENXIO: no data past this point
                    return
                raise
            end = os.lseek(self._file, start, os.SEEK_HOLE)
            yield start, end

    def close(self) -> None:
        """Gives the file of a sparse image back; the mapping itself lives as long as anyone looks at its bytes."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class GuardedBuffer:
    """One tensor in guarded memory.

    Attributes:
        image: `GUARD` bytes, the span of the tensor, at least `GUARD` bytes.
        span: bytes of the tensor itself.
    """

    def __init__(self, spec: TensorSpec, seed: int, party: str) -> None:
        self.spec = spec
        self.storage = storage(spec)
        self.span = span(spec)
        self.image = Image(2 * GUARD + self.span, sparse=spec.sparse)
        # A sparse tensor is poisoned where its pages are touched anyway; its holes stay zero and are checked to be so.
        for start, end in self._owned.extents() if spec.sparse else self.image.extents():
            self.image.bytes[start:end] = poison(end - start, spec, seed, party, start)
        self._before: dict[tuple[int, int], Bytes] = {}

    @cached_property
    def _owned(self) -> Image:
        """All ones in the bytes of elements, and zero in the others."""
        image = Image(self.image.size, sparse=self.spec.sparse)
        self._view(image)[...] = np.array(2 ** (8 * self.storage.size) - 1, dtype=self.storage.bits)
        image.bytes[[0, self.image.size - 1]] = 0
        return image

    def _view(self, image: Image) -> Bits:
        """The tensor's elements inside an image, as unsigned bits of its logical shape."""
        size = self.storage.size
        flat = image.bytes[GUARD : GUARD + max(self.span, size)].view(self.storage.bits)
        strides = tuple(stride * size for stride in self.spec.strides)
        elements: Bits = np.lib.stride_tricks.as_strided(flat, self.spec.shape, strides)
        return elements

    @property
    def elements(self) -> Bits:
        """The tensor's bits, a view of its logical shape."""
        return self._view(self.image)

    @property
    def address(self) -> int:
        """Host address of the first element."""
        return int(self.image.bytes.ctypes.data) + GUARD

    def place(self, values: Bits | None) -> None:
        """Puts the generated bits in (None: the poison stays) and remembers the image that the run starts from.

        Raises:
            UsageError: bits of another shape or type than the tensor's.
        """
        if values is not None:
            if values.shape != self.spec.shape or values.dtype != np.dtype(self.storage.bits):
                raise UsageError(
                    f"tensor {self.spec.name!r}: inputs gave {values.dtype} {values.shape}, "
                    f"wanted {self.storage.bits} {self.spec.shape}"
                )
            self.elements[...] = values
        self._before = {(start, end): self.image.bytes[start:end].copy() for start, end in self.image.extents()}

    def faults(self) -> tuple[str, ...]:
        """What changed since `place` though it must not: any byte of an input, any byte outside the elements."""
        changed: dict[str, list[Bytes]] = {}
        for start, end in self.image.extents():
            now, was = self.image.bytes[start:end], self._started(start, end)
            if np.array_equal(now.view(np.uint64), was.view(np.uint64)):  # whole pages
                continue
            moved = np.flatnonzero(now != was)
            owned = self._owned.bytes[start:end][moved] != 0
            if self.spec.role == "input":
                changed.setdefault("input", []).append(moved[owned] + start)
            for kind, places in self._outside(moved[~owned] + start):
                changed.setdefault(kind, []).append(places)
        return tuple(
            self._say(kind, np.concatenate(places)) for kind, places in changed.items() if any(map(len, places))
        )

    def _started(self, start: int, end: int) -> Bytes:
        """The bytes [start, end) as the run found them; holes of a sparse image were zero."""
        if (start, end) in self._before:
            return self._before[start, end]
        started = np.zeros(end - start, dtype=np.uint8)
        for (low, high), bytes_ in self._before.items():
            first, last = max(low, start), min(high, end)
            if first < last:
                started[first - start : last - start] = bytes_[first - low : last - low]
        return started

    def _outside(self, places: Bytes) -> Iterator[tuple[str, Bytes]]:
        """Splits image offsets of bytes outside the elements by the kind of guard they lie in."""
        yield "guard before", places[places < GUARD]
        yield "stride gap", places[(places >= GUARD) & (places < GUARD + self.span)]
        yield "guard after", places[places >= GUARD + self.span]

    def _say(self, kind: str, places: Bytes) -> str:
        offset = int(places[0]) - GUARD
        what = "an input that must not change" if kind == "input" else f"{kind} must not change"
        was = self._started(int(places[0]), int(places[0]) + 1)[0]
        return (
            f"`{self.spec.name}` {what}: {len(places)} byte(s) changed, the first at byte offset {offset} "
            f"(0x{was:02x} -> 0x{self.image.bytes[places[0]]:02x}), the last at {int(places[-1]) - GUARD}"
        )

    def close(self) -> None:
        """Frees what a sparse image holds; call when the outputs were read."""
        self.image.close()
        if "_owned" in vars(self):
            self._owned.close()
