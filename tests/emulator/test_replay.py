"""Replaying compares every byte after every launch, and counts what it did not run."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv.emulator import replay
from equiv.emulator.content import snapshot
from equiv.emulator.record import BufferRecord, Capture, LaunchRecord, Pointer, RecordFolder
from equiv.emulator.store import Image
from equiv.errors import DeviceError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from equiv.emulator.content import Bytes, Content

IMAGE = Image(b"\x7fELF", "", "sm_90a", {"triton": "3.8.0"})
SIZE = 5000


class Adder:
    """A place whose only kernel adds 1 to the `count` bytes from a pointer on; `extra` are bits it flips by mistake."""

    name = "adder:0"
    arch = "sm_90a"

    def __init__(self) -> None:
        self.memory: dict[int, Bytes] = {}
        self.writes: list[tuple[int, int]] = []
        self.extra: dict[int, int] = {}
        self.launches = 0

    def allocate(self, name: str, nbytes: int, *, writable: bool) -> int:  # noqa: ARG002
        address = (len(self.memory) + 1) << 32
        self.memory[address] = np.zeros(nbytes, dtype=np.uint8)
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def _at(self, address: int) -> tuple[Bytes, int]:
        base = address >> 32 << 32
        return self.memory[base], address - base

    def clear(self, address: int, nbytes: int) -> None:
        memory, _ = self._at(address)
        memory[:nbytes] = 0

    def write(self, address: int, data: bytes) -> None:
        memory, start = self._at(address)
        memory[start : start + len(data)] = np.frombuffer(data, dtype=np.uint8)
        self.writes.append((start, len(data)))

    def read(self, address: int, into: Bytes) -> None:
        memory, start = self._at(address)
        into[...] = memory[start : start + len(into)]

    def launch(self, record: LaunchRecord, image: Image, params: bytes) -> None:  # noqa: ARG002
        assert image == IMAGE
        address, count = struct.unpack("<QQ", params)
        memory, start = self._at(address)
        memory[start : start + count] += 1
        for offset, amount in self.extra.items():
            memory[offset] ^= amount
        self.launches += 1


class Recording:
    """Makes records of what `Adder` does to one buffer of 5000 bytes."""

    def __init__(self, root: Path) -> None:
        self.folder = RecordFolder(root)
        self.folder.images.put(IMAGE)
        self.data = np.arange(SIZE, dtype=np.uint32).astype(np.uint8)
        self.launches: list[LaunchRecord] = []

    def content(self) -> Content:
        return snapshot(int(self.data.ctypes.data), SIZE, self.folder.blobs)

    def add(self, start: int, count: int) -> None:
        before = self.content()
        self.data[start : start + count] += 1
        buffers = (BufferRecord("x", True, before, self.content()),)
        params = struct.pack("<QQ", 0xDEAD, count)
        self.launches.append(
            LaunchRecord(IMAGE.digest, "add", "sm_90a", {}, (1, 1, 1), (1, 1, 1), (1, 1, 1), 0, {}, params,
                         (Pointer(0, "x", start),), buffers)
        )  # fmt: skip

    def save(self) -> RecordFolder:
        self.folder.save(Capture("one", "emulated:sm_90a", tuple(self.launches)))
        return self.folder


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def test_a_sequence_on_one_buffer_is_filled_once_and_equal_in_every_byte(recording: Recording) -> None:
    recording.add(10, 100)
    recording.add(4000, 1000)
    place = Adder()
    report = replay.replay(recording.save(), place)
    assert report.equal
    assert str(report) == (
        "adder:0: 1 capture(s), 2 of 2 launches equal, 2 of 2 buffers equal, 0 of 10000 bytes differ, "
        "0 launches skipped"
    )
    assert place.writes == [(0, SIZE)]
    assert place.memory == {}


def test_a_buffer_that_the_host_changed_between_launches_is_filled_again(recording: Recording) -> None:
    recording.add(10, 100)
    recording.data[7] = 99
    recording.add(10, 100)
    place = Adder()
    assert replay.replay(recording.save(), place).equal
    assert place.writes == [(0, SIZE), (0, SIZE)]


def test_a_difference_is_placed_and_does_not_spread_to_the_next_launch(recording: Recording) -> None:
    recording.add(10, 100)
    recording.add(10, 100)
    place = Adder()
    place.extra = {4999: 3, 20: 1}
    report = replay.replay(recording.save(), place)
    assert not report.equal
    assert (report.launches, report.launches_equal, report.bytes_different) == (2, 0, 4)
    assert [(one.launch, one.count, one.shown) for one in report.differences] == [
        (0, 2, ((20, 0x15, 0x14), (4999, 0x87, 0x84))),
        (1, 2, ((20, 0x16, 0x17), (4999, 0x87, 0x84))),
    ]
    assert "one launch 0 (add) x: 2 byte(s) differ: +20: 0x15 -> 0x14, +4999: 0x87 -> 0x84" in str(report)


def test_differences_beyond_one_window_have_their_offset_in_the_buffer(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "WINDOW", 1024)
    recording.add(10, 100)
    place = Adder()
    place.extra = dict.fromkeys(range(2040, 2060), 1)
    (difference,) = replay.replay(recording.save(), place).differences
    assert difference.count == 20
    assert [offset for offset, _, _ in difference.shown] == list(range(2040, 2048))


def test_launches_of_another_architecture_or_that_failed_are_skipped_and_said(recording: Recording) -> None:
    recording.add(10, 100)
    launch = recording.launches[0]
    recording.launches += [replace(launch, arch="sm_100a"), replace(launch, error="DeadlockError: all wait")]
    place = Adder()
    report = replay.replay(recording.save(), place)
    assert place.launches == 1
    assert report.skipped == [
        ("one", 1, "compiled for sm_100a, adder:0 is sm_90a"),
        ("one", 2, "it failed when it was recorded: DeadlockError: all wait"),
    ]
    assert "2 launches skipped\n  skipped 1: compiled for sm_100a" in str(report)


def test_nothing_run_is_not_equal(recording: Recording) -> None:
    recording.add(10, 100)
    recording.launches[0] = replace(recording.launches[0], arch="sm_100a")
    report = replay.replay(recording.save(), Adder())
    assert not report.equal
    assert report.differences == []


def test_an_unknown_device_is_a_usage_error(recording: Recording) -> None:
    with pytest.raises(UsageError, match=r"cannot replay on 'tpu:0'; known: cuda:N, emulated:sm_90a, emulated:sm_100a"):
        replay.replay_directory(recording.folder.root, "tpu:0")


def test_without_a_gpu_the_command_says_what_is_needed(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    recording.add(10, 100)
    recording.save()
    assert replay.main([str(recording.folder.root), "--device", "cuda:99"]) == UnsupportedError.exit_code
    assert "UnsupportedError: needs gpu" in capsys.readouterr().err


def test_an_empty_folder_is_named_by_the_command(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(recording.folder.root), "--device", "emulated:sm_90a"]) == 1
    assert "RecordError: " in capsys.readouterr().err


def test_a_buffer_that_this_machine_cannot_hold_is_an_error_that_names_it() -> None:
    place = replay._EmulatedPlace("sm_90a")
    with pytest.raises(
        DeviceError, match=r"emulated:sm_90a: no 4611686018427387904 bytes for `cache`: Cannot allocate"
    ):
        place.allocate("cache", 1 << 62, writable=True)
