"""Runs launch records again, in the emulator or on a GPU, and compares every byte of every buffer with the recording.

Needs NumPy and, for a GPU, `cuda-bindings`: no torch, no compiler, so a record made on a laptop replays on a bare GPU
machine:

    python -m equiv.emulator.replay RECORDS --device cuda:0

Within a capture buffers live on from launch to launch, as they did when it was recorded; a buffer is filled again only
where the host changed it in between, or where a launch left other bytes than recorded, so that one difference is not
counted again in all launches behind it.
"""

from __future__ import annotations

import argparse
import mmap
import re
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from equiv.emulator.content import BlobStore, Content, view, window
from equiv.emulator.record import BufferRecord, Capture, LaunchRecord, RecordFolder
from equiv.errors import DeviceError, EquivError, RecordError, UsageError
from equiv.terminal import visible

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.emulator.store import Image

    Bytes = npt.NDArray[np.uint8]

WINDOW = 1 << 26
"""Bytes compared at a time."""

ADDRESS = re.compile(r"0x[0-9a-f]+")

SHOWN = 8
"""Differing bytes shown of a buffer."""


class Place(Protocol):
    """Where records can be replayed."""

    name: str
    arch: str

    def allocate(self, name: str, nbytes: int, *, writable: bool) -> int:
        """Zeroed memory; its address."""
        ...

    def free(self, address: int) -> None:
        """Gives memory back."""
        ...

    def clear(self, address: int, nbytes: int) -> None:
        """Zeroes memory."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Copies bytes into memory."""
        ...

    def read(self, address: int, into: Bytes) -> None:
        """Copies bytes out of memory."""
        ...

    def launch(self, record: LaunchRecord, image: Image, params: bytes) -> None:
        """Runs a launch with another parameter block, to its end."""
        ...


@dataclass(frozen=True, slots=True)
class BufferDifference:
    """A buffer that holds other bytes than recorded; `shown` are (offset, recorded, found) of the first ones."""

    capture: str
    launch: int
    kernel: str
    buffer: str
    count: int
    shown: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        first = ", ".join(f"+{offset}: 0x{recorded:02x} -> 0x{found:02x}" for offset, recorded, found in self.shown)
        return (
            f"{self.capture} launch {self.launch} ({self.kernel}) {self.buffer}: {self.count} byte(s) differ: {first}"
        )


@dataclass
class ReplayReport:
    """What a replay found.

    Attributes:
        launches, buffers, bytes: compared; `*_equal` of them without a difference (for bytes: `bytes_different`).
        skipped: (capture, launch, why) of launches that were not run: they failed when recorded, or have no code here.
    """

    device: str
    captures: int = 0
    launches: int = 0
    launches_equal: int = 0
    buffers: int = 0
    buffers_equal: int = 0
    bytes: int = 0
    bytes_different: int = 0
    differences: list[BufferDifference] = field(default_factory=list)
    skipped: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Something was compared, and all of it was equal."""
        return self.launches > 0 and self.launches == self.launches_equal

    def exit_code(self, *, strict: bool = False) -> int:
        """0 if `equal`, else 1; under `strict` 1 too if launches were skipped."""
        return 0 if self.equal and not (strict and self.skipped) else 1

    def __str__(self) -> str:
        counts = (
            f"{self.captures} capture(s)",
            f"{self.launches_equal} of {self.launches} launches equal",
            f"{self.buffers_equal} of {self.buffers} buffers equal",
            f"{self.bytes_different} of {self.bytes} bytes differ",
            f"{len(self.skipped)} launches skipped",
        )
        lines = [f"{self.device}: {', '.join(counts)}"]
        lines += [f"  {one}" for one in self.differences]
        reasons = sorted({why for _, _, why in self.skipped})
        lines += [f"  skipped {sum(one[2] == why for one in self.skipped)}: {why}" for why in reasons]
        return "\n".join(lines)


@dataclass(slots=True)
class _Live:
    """A buffer in the place; `holds` is the digest of what it contains, or None if that is not known."""

    address: int
    nbytes: int
    writable: bool
    holds: str | None


def replay_directory(path: Path, device: str, *, names: tuple[str, ...] = (), failing: bool = False) -> ReplayReport:
    """Replays the captures of a record folder (all, or those named) on `cuda:N` or `emulated:ARCH`.

    Args:
        path: the folder.
        device: where to run.
        names: captures; all if empty.
        failing: in the emulator also run launches that failed when they were recorded: they have to fail alike.

    Raises:
        RecordError: a record is damaged.
        UnsupportedError: no such GPU, or a package is missing.
        DeviceError: the place could not run a launch that ran when it was recorded.
        UsageError: no such kind of device.
    """
    place = _place(device)
    return replay(RecordFolder(path), place, names, failing=failing and isinstance(place, _EmulatedPlace))


def replay(folder: RecordFolder, place: Place, names: tuple[str, ...] = (), *, failing: bool = False) -> ReplayReport:
    """The same in any place that kernels can run in.

    Raises:
        RecordError: a record is damaged.
    """
    report = ReplayReport(place.name)
    for name in names or folder.names():
        _replay(folder, folder.load(name), place, report, failing=failing)
    return report


def _place(device: str) -> Place:
    kind, _, which = device.partition(":")
    if kind == "cuda" and which.isdigit():
        from equiv.emulator.cuda_driver import CudaGpu

        return CudaGpu(int(which))
    if kind == "emulated":
        from equiv.emulator.device import CAPABILITIES

        if which in CAPABILITIES:
            return _EmulatedPlace(which)
    raise UsageError(f"cannot replay on {device!r}; known: cuda:N, emulated:sm_90a, emulated:sm_100a")


def _replay(folder: RecordFolder, capture: Capture, place: Place, report: ReplayReport, *, failing: bool) -> None:
    live: dict[str, _Live] = {}
    report.captures += 1
    try:
        for index, record in enumerate(capture.launches):
            image = folder.images.get(record.image)
            why = _reason_to_skip(record, place)
            if failing and record.error is not None and record.arch == place.arch:
                _fails_alike(folder, record, live, place)
                report.launches += 1
                report.launches_equal += 1
                continue
            if why is not None:
                report.skipped.append((capture.name, index, why))
                for one in live.values():
                    one.holds = None
                continue
            for buffer in record.buffers:
                _fill(buffer, live, place, folder.blobs)
            place.launch(record, image, _relocated(record, live))
            found = [_compare(buffer, live[buffer.name], place, folder.blobs) for buffer in record.buffers]
            report.launches += 1
            report.launches_equal += all(count == 0 for count, _ in found)
            for buffer, (count, shown) in zip(record.buffers, found, strict=True):
                report.buffers += 1
                report.buffers_equal += count == 0
                report.bytes += buffer.before.nbytes
                report.bytes_different += count
                if count:
                    report.differences.append(
                        BufferDifference(capture.name, index, record.kernel, buffer.name, count, tuple(shown))
                    )
    finally:
        for one in live.values():
            place.free(one.address)


def _fails_alike(folder: RecordFolder, record: LaunchRecord, live: dict[str, _Live], place: Place) -> None:
    """Runs a launch that failed when it was recorded.

    Raises:
        RecordError: it does not fail, or with other words up to the first address, which is another one here.
    """
    for buffer in record.buffers:
        _fill(buffer, live, place, folder.blobs)
    found = "nothing"
    try:
        place.launch(record, folder.images.get(record.image), _relocated(record, live))
    except DeviceError as error:
        found = f"{type(error).__name__}: {error}"
    for one in live.values():
        one.holds = None
    assert record.error is not None  # only such launches come here
    if ADDRESS.split(found, 1)[0] != ADDRESS.split(record.error, 1)[0]:
        raise RecordError(f"{record.kernel} failed with {record.error!r} when it was recorded, now with {found!r}")


def _reason_to_skip(record: LaunchRecord, place: Place) -> str | None:
    if record.error is not None:
        return f"it failed when it was recorded: {record.error}"
    if any(buffer.after is None for buffer in record.buffers):
        return "the recording has no bytes after the launch"
    if record.arch != place.arch:
        return f"compiled for {record.arch}, {place.name} is {place.arch}"
    return None


def _fill(buffer: BufferRecord, live: dict[str, _Live], place: Place, blobs: BlobStore) -> None:
    """Makes a buffer hold what it held before the launch."""
    nbytes = buffer.before.nbytes
    one = live.get(buffer.name)
    if one is not None and (one.nbytes, one.writable) != (nbytes, buffer.writable):
        place.free(live.pop(buffer.name).address)
        one = None
    if one is None:
        address = place.allocate(buffer.name, nbytes, writable=buffer.writable)
        one = live[buffer.name] = _Live(address, nbytes, buffer.writable, Content(nbytes, ()).digest)
    if one.holds != buffer.before.digest:
        place.clear(one.address, nbytes)
        for extent in buffer.before.extents:
            place.write(one.address + extent.offset, blobs.get(extent.blob, extent.size))
        one.holds = buffer.before.digest


def _relocated(record: LaunchRecord, live: dict[str, _Live]) -> bytes:
    params = bytearray(record.params)
    for pointer in record.pointers:
        struct.pack_into("<Q", params, pointer.offset, live[pointer.buffer].address + pointer.displacement)
    return bytes(params)


def _compare(
    buffer: BufferRecord, one: _Live, place: Place, blobs: BlobStore
) -> tuple[int, list[tuple[int, int, int]]]:
    """(number of differing bytes, the first of them)."""
    content = buffer.after
    assert content is not None  # `_reason_to_skip`
    count = 0
    shown: list[tuple[int, int, int]] = []
    for start in range(0, content.nbytes, WINDOW):
        end = min(start + WINDOW, content.nbytes)
        found = np.empty(end - start, dtype=np.uint8)
        place.read(one.address + start, found)
        recorded = window(content, start, end, blobs)
        places = np.flatnonzero(found != recorded)
        count += len(places)
        shown += [(start + int(at), int(recorded[at]), int(found[at])) for at in places[: SHOWN - len(shown)]]
    one.holds = None if count else content.digest
    return count, shown


class _EmulatedPlace:
    """An emulated device of its own, with memory of this process."""

    def __init__(self, arch: str) -> None:
        from equiv.emulator.device import EmulatedDevice

        self._device = EmulatedDevice(arch)
        self.name = self._device.name
        self.arch = arch
        self._memory: dict[int, tuple[str, mmap.mmap, Bytes]] = {}

    def allocate(self, name: str, nbytes: int, *, writable: bool) -> int:
        # Private: reading a page of it that nobody wrote costs nothing, and `clear` can give pages back.
        try:
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise DeviceError(f"{self.name}: no {nbytes} bytes for `{name}`: {error.strerror}") from error
        array = np.frombuffer(memory, dtype=np.uint8)
        address = int(array.ctypes.data)
        self._memory[address] = (name, memory, array)
        self._device.register(name, (address, nbytes), writable=writable)
        return address

    def free(self, address: int) -> None:
        name, _, _ = self._memory.pop(address)
        self._device.unregister(name)

    def clear(self, address: int, nbytes: int) -> None:
        # Writing zeros over gigabytes would make all their pages exist; giving the pages back zeroes them too.
        _, memory, _ = self._memory[address]
        memory.madvise(mmap.MADV_DONTNEED, 0, nbytes)

    def write(self, address: int, data: bytes) -> None:
        view(address, len(data))[...] = np.frombuffer(data, dtype=np.uint8)

    def read(self, address: int, into: Bytes) -> None:
        into[...] = view(address, into.nbytes)

    def launch(self, record: LaunchRecord, image: Image, params: bytes) -> None:
        from equiv.emulator.launch import Launch
        from equiv.emulator.store import shared_store

        with shared_store().lent(image):
            self._device.run(
                Launch(
                    image=record.image,
                    kernel=record.kernel,
                    grid=record.grid,
                    block=record.block,
                    cluster=record.cluster,
                    dynamic_shared=record.dynamic_shared,
                    attributes=record.attributes,
                    params=params,
                )
            )


def main(arguments: list[str] | None = None) -> int:
    """The command: 0 if all is equal, 1 if something differs or nothing was compared, 2 and 3 as `equiv` itself."""
    parser = argparse.ArgumentParser(prog="python -m equiv.emulator.replay", description="Replay launch records.")
    parser.add_argument("records", type=Path, help="a folder with captures/, images/ and blobs/")
    parser.add_argument("--device", default="cuda:0", help="cuda:N or emulated:sm_90a, emulated:sm_100a")
    parser.add_argument("--capture", action="append", default=[], help="name of a capture; all if not given")
    parser.add_argument("--strict", action="store_true", help="launches that are skipped fail; else they are counted")
    given = parser.parse_args(arguments)
    try:
        report = replay_directory(given.records, given.device, names=tuple(given.capture))
    except EquivError as error:
        print(visible(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return error.exit_code
    print(visible(str(report)))
    return report.exit_code(strict=given.strict)


if __name__ == "__main__":
    sys.exit(main())
