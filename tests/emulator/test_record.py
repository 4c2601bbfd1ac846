"""Launch records survive a round trip, and a wrong one says which field is wrong."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from equiv.emulator.content import Content, Extent
from equiv.emulator.record import BufferRecord, Capture, LaunchRecord, Pointer, RecordFolder
from equiv.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = Content(10000, (Extent(4096, 4096, "a" * 64),))
AFTER = Content(10000, (Extent(4096, 4096, "b" * 64), Extent(8192, 1808, "c" * 64)))

LAUNCH = LaunchRecord(
    image="d" * 64,
    kernel="axpy",
    arch="sm_90a",
    toolchain={"triton": "3.8.0"},
    grid=(8, 1, 1),
    block=(128, 1, 1),
    cluster=(2, 1, 1),
    dynamic_shared=512,
    attributes={"programmatic_serialization": 1},
    params=bytes(range(32)),
    pointers=(Pointer(8, "x", 64),),
    buffers=(BufferRecord("x", True, BEFORE, AFTER), BufferRecord("y", False, BEFORE, BEFORE)),
)


@pytest.fixture
def folder(tmp_path: Path) -> RecordFolder:
    return RecordFolder(tmp_path)


def test_a_capture_is_read_back_as_it_was(folder: RecordFolder) -> None:
    failed = LaunchRecord(**{**{name: getattr(LAUNCH, name) for name in LaunchRecord.__slots__}, "error": "stopped"})
    capture = Capture("case-1.oracle", "emulated:sm_90a", (LAUNCH, failed, LAUNCH))
    folder.save(capture)
    assert folder.names() == ("case-1.oracle",)
    assert folder.load("case-1.oracle") == capture


def test_a_launch_that_failed_has_no_bytes_after_it(folder: RecordFolder) -> None:
    buffers = (BufferRecord("x", True, BEFORE, None),)
    failed = LaunchRecord(
        **{**{name: getattr(LAUNCH, name) for name in LaunchRecord.__slots__}, "error": "E: e", "buffers": buffers}
    )
    folder.save(Capture("failed", "emulated:sm_90a", (failed,)))
    assert folder.load("failed").launches[0].buffers[0].after is None


def test_a_name_is_used_once_and_cannot_leave_the_folder(folder: RecordFolder) -> None:
    folder.save(Capture("one", "emulated:sm_90a", ()))
    with pytest.raises(RecordError, match=r"captures/one\.json exists already"):
        folder.save(Capture("one", "emulated:sm_90a", ()))
    for name in ("../one", "", "a/b", ".hidden"):
        with pytest.raises(RecordError, match="capture name '"):
            folder.save(Capture(name, "emulated:sm_90a", ()))


def test_an_empty_folder_is_an_error(folder: RecordFolder) -> None:
    with pytest.raises(RecordError, match=r"no captures/\*\.json"):
        folder.names()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema", 2, "$.schema is 2, wanted 1, the version this program reads"),
        ("device", 5, "$.device is 5, wanted a text"),
        ("launches", {}, "$.launches is {}, wanted a list"),
        ("launches.0.image", "../x", "$.launches[0].image is '../x', wanted a text like [0-9a-f]{64}"),
        ("launches.0.kernel", None, "$.launches[0].kernel is None, wanted a text"),
        ("launches.0.arch", "sm_80", "$.launches[0].arch is 'sm_80', wanted one of sm_90a, sm_100a"),
        ("launches.0.toolchain", [], "$.launches[0].toolchain is [], wanted an object of names and versions"),
        ("launches.0.toolchain.triton", 3, "$.launches[0].toolchain.triton is 3, wanted a text"),
        ("launches.0.grid", [1, 2], "$.launches[0].grid is [1, 2], wanted 3 values"),
        ("launches.0.grid.2", 70000, "$.launches[0].grid[2] is 70000, wanted an integer in 1..65535"),
        ("launches.0.block.0", True, "$.launches[0].block[0] is True, wanted an integer in 1..1024"),
        ("launches.0.cluster.1", 0, "$.launches[0].cluster[1] is 0, wanted an integer in 1..16"),
        ("launches.0.dynamic_shared", -1, "$.launches[0].dynamic_shared is -1, wanted an integer in 0..232448"),
        ("launches.0.attributes", {"odd": 1}, "$.launches[0].attributes is {'odd': 1}, wanted an object with coop"),
        ("launches.0.params", "0G", "$.launches[0].params is '0G', wanted a text like ([0-9a-f]{2})*"),
        ("launches.0.params", "00" * 40000, "wanted at most 32764 bytes in hexadecimal"),
        ("launches.0.pointers.0.0", 25, "$.launches[0].pointers[0][0] is 25, wanted an integer in 0..24"),
        ("launches.0.pointers.0.0", 7, "$.launches[0].pointers[0][0] is 7, wanted a multiple of 8"),
        ("launches.0.pointers.0.1", "z", "$.launches[0].pointers[0][1] is 'z', wanted a buffer of this launch: x, y"),
        ("launches.0.pointers.0.2", 10000, "$.launches[0].pointers[0][2] is 10000, wanted an integer in 0..9999"),
        ("launches.0.buffers.0.name", "y", "wanted buffers of different names"),
        (
            "launches.0.buffers.0.nbytes",
            2**41,
            f"$.launches[0].buffers[0].nbytes is {2**41}, wanted an integer in 1..{2**40}",
        ),
        ("launches.0.buffers.0.writable", 1, "$.launches[0].buffers[0].writable is 1, wanted true or false"),
        ("launches.0.buffers.0.after.extents.1.0", 8191, "extents[1][0] is 8191, wanted an integer in 8192..9999"),
        ("launches.0.buffers.0.after.extents.1.1", 1809, "extents[1][1] is 1809, wanted an integer in 1..1808"),
        ("launches.0.buffers.0.after.extents.1.2", "C" * 64, "extents[1][2] is 'CCC"),
        ("launches.0.buffers.0.before.sha256", "0" * 64, "before.sha256 is '000000"),
        ("launches.0.extra", 1, "$.launches[0] has missing or unknown fields: extra"),
        ("launches.0.error", 1, "$.launches[0].error is 1, wanted a text"),
    ],
)
def test_every_wrong_field_is_named_with_its_value(folder: RecordFolder, path: str, value: Any, said: str) -> None:
    file = folder.save(Capture("one", "emulated:sm_90a", (LAUNCH,)))
    data = copy.deepcopy(json.loads(file.read_text()))
    *parents, last = path.split(".")
    place = data
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[int(last) if isinstance(place, list) else last] = value
    file.write_text(json.dumps(data))
    with pytest.raises(RecordError) as caught:
        folder.load("one")
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100000, "\xff"])
def test_text_that_is_no_json_is_a_record_error(folder: RecordFolder, text: str) -> None:
    file = folder.save(Capture("one", "emulated:sm_90a", (LAUNCH,)))
    file.write_bytes(text.encode("latin1"))
    with pytest.raises(RecordError, match=r"captures/one\.json"):
        folder.load("one")


def test_a_missing_capture_is_a_record_error(folder: RecordFolder) -> None:
    with pytest.raises(RecordError, match=r"captures/two\.json"):
        folder.load("two")
