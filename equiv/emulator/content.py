"""The bytes of a buffer as a list of content-addressed blobs: gigabytes of which little is touched cost little.

The list is canonical: pages of 4 KiB from the start of the buffer on that hold only zeros are left out, neighbours are
joined and cut at multiples of 1 MiB. So equal contents have equal lists, and one digest names them.
"""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equiv.cache import write_atomic
from equiv.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

PAGE = 4096
CHUNK = 1 << 20
DENSE = 1 << 26
"""Bytes up to which a buffer is simply read; above, the kernel is asked which of its pages exist."""


@dataclass(frozen=True, slots=True)
class Extent:
    """`size` bytes from `offset` on, whose sha256 is `blob`."""

    offset: int
    size: int
    blob: str


@dataclass(frozen=True)
class Content:
    """All bytes of a buffer of `nbytes`; what no extent covers is zero."""

    nbytes: int
    extents: tuple[Extent, ...]

    @cached_property
    def digest(self) -> str:
        """sha256 that names the content."""
        lines = [f"{self.nbytes}", *(f"{one.offset} {one.size} {one.blob}" for one in self.extents)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class BlobStore:
    """Bytes by their sha256, compressed, one file each below a directory; shared by all records there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, data: bytes) -> str:
        """Keeps the bytes; returns their digest."""
        name = hashlib.sha256(data).hexdigest()
        path = self._file(name)
        if not path.exists():
            write_atomic(path, zlib.compress(data, 1))
        return name

    def get(self, name: str, size: int) -> bytes:
        """The `size` bytes of that digest; never expands a damaged file to more than that.

        Raises:
            RecordError: they are not here, or not these.
        """
        path = self._file(name)
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(path.read_bytes(), size + 1)
        except OSError as error:
            raise RecordError(f"blob {name}: {path} cannot be read: {error}") from error
        except zlib.error as error:
            raise RecordError(f"blob {name}: {path} is damaged: {error}") from error
        if len(data) != size:
            found = "more" if len(data) > size else str(len(data))
            raise RecordError(f"blob {name}: {found} bytes in {path}, the record says {size}")
        if hashlib.sha256(data).hexdigest() != name:
            raise RecordError(f"blob {name}: the bytes in {path} have sha256 {hashlib.sha256(data).hexdigest()}")
        return data

    def _file(self, name: str) -> Path:
        return self.directory / name[:2] / f"{name}.z"


def view(address: int, nbytes: int) -> Bytes:
    """The bytes at an address of this process, as a writable array without a copy."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def snapshot(address: int, nbytes: int, blobs: BlobStore) -> Content:
    """The content of `nbytes` at an address of this process; its bytes go into `blobs`."""
    memory = view(address, nbytes)
    extents = []
    for start, end in _runs(memory, address):
        for offset in range(start // CHUNK * CHUNK, end, CHUNK):
            first, last = max(offset, start), min(offset + CHUNK, end)
            extents.append(Extent(first, last - first, blobs.put(memory[first:last].tobytes())))
    return Content(nbytes, tuple(extents))


def window(content: Content, start: int, end: int, blobs: BlobStore) -> Bytes:
    """The bytes [start, end) of a content."""
    result = np.zeros(end - start, dtype=np.uint8)
    for extent in content.extents:
        first, last = max(extent.offset, start), min(extent.offset + extent.size, end)
        if first < last:
            data = np.frombuffer(blobs.get(extent.blob, extent.size), dtype=np.uint8)
            result[first - start : last - start] = data[first - extent.offset : last - extent.offset]
    return result


def _runs(memory: Bytes, address: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the runs of pages that are not all zero, in order."""
    nbytes = len(memory)
    used = np.zeros((nbytes + PAGE - 1) // PAGE, dtype=np.int8)
    for low, high in _candidates(address, nbytes):
        for start in range(low, high, CHUNK):
            part = memory[start : min(start + CHUNK, high)]
            whole = len(part) // PAGE
            first = start // PAGE
            used[first : first + whole] = part[: whole * PAGE].reshape(-1, PAGE).any(axis=1)
            if len(part) % PAGE:
                used[first + whole] = part[whole * PAGE :].any()
    edges = np.flatnonzero(np.diff(used, prepend=0, append=0))
    for low, high in edges.reshape(-1, 2).tolist():
        yield low * PAGE, min(high * PAGE, nbytes)


def _candidates(address: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the parts that may hold something other than zero, on the buffer's page grid, in order."""
    if nbytes <= DENSE:
        yield 0, nbytes
        return
    first = address // PAGE
    step = 1 << 18
    for base in range(0, (address + nbytes + PAGE - 1) // PAGE - first, step):
        count = min(step, (address + nbytes + PAGE - 1) // PAGE - first - base)
        present = _present(first + base, count)
        edges = np.flatnonzero(np.diff(present, prepend=0, append=0))
        for low, high in edges.reshape(-1, 2).tolist():
            start = (first + base + low) * PAGE - address
            end = (first + base + high) * PAGE - address
            # Widened to the grid of the buffer, which need not start on a page.
            yield max(start, 0) // PAGE * PAGE, min((end + PAGE - 1) // PAGE * PAGE, nbytes)


def _present(page: int, count: int) -> npt.NDArray[np.int8]:
    """1 for each page of this process that was ever touched, else 0.

    A page of a shared mapping may exist without this process having touched it, so the page cache is asked too.
    """
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(8 * page)
        entries = np.frombuffer(file.read(8 * count), dtype=np.uint64)
    resident = np.zeros(count, dtype=np.uint8)
    code = ctypes.CDLL(None, use_errno=True).mincore(
        ctypes.c_void_p(page * PAGE), ctypes.c_size_t(count * PAGE), resident.ctypes.data_as(ctypes.c_void_p)
    )
    if len(entries) != count or code != 0:
        raise OSError(ctypes.get_errno(), f"pages {page:#x}..+{count} of this process are not mapped")
    in_memory_or_swap = np.uint64(3 << 62)
    present: npt.NDArray[np.int8] = ((entries & in_memory_or_swap != 0) | (resident & 1 != 0)).astype(np.int8)
    return present
