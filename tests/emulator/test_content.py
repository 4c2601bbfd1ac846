"""Buffer contents: canonical, exact, and cheap where nothing was touched."""

from __future__ import annotations

import mmap
import os
import time
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv.emulator import content
from equiv.emulator.content import CHUNK, PAGE, BlobStore, Content, Extent, snapshot, view, window
from equiv.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def places(found: Content) -> list[tuple[int, int]]:
    return [(extent.offset, extent.size) for extent in found.extents]


def test_pages_of_zeros_are_left_out_and_runs_are_cut_at_a_mebibyte(blobs: BlobStore) -> None:
    data = np.zeros(3 * CHUNK + 100, dtype=np.uint8)
    data[PAGE - 1] = 1
    data[5 * PAGE] = 2
    data[CHUNK - 1 : 2 * CHUNK + 1] = 3
    data[-1] = 4
    found = snapshot(int(data.ctypes.data), len(data), blobs)
    assert places(found) == [
        (0, PAGE),
        (5 * PAGE, PAGE),
        (CHUNK - PAGE, PAGE),
        (CHUNK, CHUNK),
        (2 * CHUNK, PAGE),
        (3 * CHUNK, 100),
    ]
    assert np.array_equal(window(found, 0, len(data), blobs), data)
    assert np.array_equal(window(found, CHUNK - 7, CHUNK + 9, blobs), data[CHUNK - 7 : CHUNK + 9])


def test_equal_bytes_at_other_addresses_have_the_same_digest(blobs: BlobStore) -> None:
    memory = np.zeros(10 * PAGE, dtype=np.uint8)
    memory[1000:3000] = 7
    memory[5 * PAGE + 1000 : 5 * PAGE + 3000] = 7
    first = snapshot(int(memory.ctypes.data), 5 * PAGE, blobs)
    second = snapshot(int(memory.ctypes.data) + 5 * PAGE, 5 * PAGE, blobs)
    assert first == second
    memory[5 * PAGE + 1000] = 8
    assert snapshot(int(memory.ctypes.data) + 5 * PAGE, 5 * PAGE, blobs).digest != first.digest


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("shift", [0, 24])
def test_gigabytes_of_which_three_pages_are_touched_take_no_time_and_no_memory(
    blobs: BlobStore, shared: bool, shift: int
) -> None:
    size = 9 << 30
    handle = os.memfd_create("sparse") if shared else -1
    if shared:
        os.ftruncate(handle, size)
    memory = mmap.mmap(handle, size, flags=mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    data = np.frombuffer(memory, dtype=np.uint8)
    for offset in (shift, 3 << 30, size - 1):
        data[offset] = 5
    nbytes = size - shift
    started = time.perf_counter()
    found = snapshot(int(data.ctypes.data) + shift, nbytes, blobs)
    assert time.perf_counter() - started < 5
    touched = [0, ((3 << 30) - shift) // PAGE * PAGE, (nbytes - 1) // PAGE * PAGE]
    assert places(found) == [(offset, min(PAGE, nbytes - offset)) for offset in touched]
    if shared:
        os.close(handle)


def test_a_page_of_a_shared_file_that_another_mapping_wrote_is_seen(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "DENSE", 0)
    handle = os.memfd_create("shared")
    os.ftruncate(handle, 100 * PAGE)
    ours = mmap.mmap(handle, 100 * PAGE)
    other = mmap.mmap(handle, 100 * PAGE)
    other[42 * PAGE] = 1
    address = int(np.frombuffer(ours, dtype=np.uint8).ctypes.data)
    assert places(snapshot(address, 100 * PAGE, blobs)) == [(42 * PAGE, PAGE)]
    os.close(handle)


def test_memory_that_is_not_mapped_is_an_error_and_not_empty(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "DENSE", 0)
    memory = mmap.mmap(-1, 4 * PAGE)
    address = int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)
    del memory
    with pytest.raises(OSError, match="are not mapped"):
        snapshot(address, 4 * PAGE, blobs)


def test_a_view_writes_through() -> None:
    data = np.zeros(8, dtype=np.uint8)
    view(int(data.ctypes.data) + 2, 3)[...] = 9
    assert data.tolist() == [0, 0, 9, 9, 9, 0, 0, 0]


def test_a_damaged_blob_is_named(blobs: BlobStore) -> None:
    name = blobs.put(b"bytes of a buffer")
    assert blobs.get(name, 17) == b"bytes of a buffer"
    path = blobs.directory / name[:2] / f"{name}.z"
    with pytest.raises(RecordError, match=f"blob {name}: 17 bytes in .*, the record says 18"):
        blobs.get(name, 18)
    path.write_bytes(zlib.compress(b"bytes of A buffer"))
    with pytest.raises(RecordError, match=f"blob {name}: the bytes in .* have sha256 "):
        blobs.get(name, 17)
    path.write_bytes(b"no zlib")
    with pytest.raises(RecordError, match=f"blob {name}: .* is damaged"):
        blobs.get(name, 17)
    path.unlink()
    with pytest.raises(RecordError, match=f"blob {name}: .* cannot be read"):
        blobs.get(name, 17)


def test_a_blob_that_would_expand_without_end_is_stopped_at_its_size(blobs: BlobStore) -> None:
    name = "0" * 64
    path = blobs.directory / "00" / f"{name}.z"
    path.parent.mkdir(parents=True)
    path.write_bytes(zlib.compress(bytes(1 << 26)))
    tracemalloc.start()
    with pytest.raises(RecordError, match=r"more bytes in .*, the record says 100"):
        blobs.get(name, 100)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_the_digest_depends_on_every_part() -> None:
    base = Content(10, (Extent(0, 2, "a" * 64),))
    others = [Content(11, base.extents), Content(10, ()), Content(10, (Extent(1, 2, "a" * 64),))]
    assert len({one.digest for one in (base, *others)}) == 4
