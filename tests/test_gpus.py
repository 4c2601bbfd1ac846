"""Which GPU a process gets, from lists that no GPU is needed for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from equiv import gpus
from equiv.errors import UsageError

MIG = "MIG-4f1c/1/0,MIG-4f1c/2/0"


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, None),
        ("", ()),
        ("  ", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("4, 6", ("4", "6")),
        ("2,-1,3", ("2",)),
        ("GPU-8f1c3a2b-0d5e,GPU-22ab", ("GPU-8f1c3a2b-0d5e", "GPU-22ab")),
        (MIG, ("MIG-4f1c/1/0", "MIG-4f1c/2/0")),
    ],
)
def test_a_list_is_read_as_cuda_reads_it(value: str | None, entries: tuple[str, ...] | None) -> None:
    assert gpus.listed({} if value is None else {gpus.VISIBLE: value}) == entries


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0,gpu1", "entry 2, 'gpu1', is no index, no GPU-<uuid> and no MIG-<name>"),
        ("0,,1", "entry 2, '', is no index"),
        ("all", "entry 1, 'all', is no index"),
        ("-2", "entry 1, '-2', is no index"),
        ("1.0", "entry 1, '1.0', is no index"),
        ("3,4,3", "entry 3, '3', is there twice"),
    ],
)
def test_a_bad_entry_is_named_with_its_place_and_the_list(value: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"CUDA_VISIBLE_DEVICES={value}: {said}")):
        gpus.listed({gpus.VISIBLE: value})


@pytest.mark.parametrize(
    ("value", "devices", "pins"),
    [
        ("4,6", ["cuda:0", "cuda:1"], {"cuda:0": ("4",), "cuda:1": ("6",)}),
        ("4,6", ["cuda"], {"cuda": ("4", "6")}),
        ("4,6", ["cuda:2", "emulated:sm_90a"], {}),
        (MIG, ["cuda:1", "cuda"], {"cuda:1": ("MIG-4f1c/2/0",), "cuda": ("MIG-4f1c/1/0", "MIG-4f1c/2/0")}),
        ("", ["cuda", "cuda:0"], {}),
        (None, ["cuda:3", "emulated:sm_90a"], {"cuda:3": ("3",)}),
        ("what?", ["emulated:sm_90a"], {}),
    ],
)
def test_a_device_is_pinned_to_the_caller_s_entries(
    value: str | None, devices: list[str], pins: dict[str, tuple[str, ...]]
) -> None:
    assert gpus.pins(devices, {} if value is None else {gpus.VISIBLE: value}) == pins


def test_without_a_list_cuda_is_asked_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "count", lambda environment: 3)
    assert gpus.pins(["cuda"], {}) == {"cuda": ("0", "1", "2")}


def test_counting_happens_in_another_process_and_loads_no_cuda_here() -> None:
    program = "import sys; from equiv import gpus; print(gpus.count({gpus.VISIBLE: ''}), 'ctypes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0 False\n"


@pytest.mark.parametrize(
    ("device", "pinned", "number"),
    [("cuda", "", 0), ("cuda", "cuda", 0), ("cuda:3", "", 3), ("cuda:3", "cuda:3", 0), ("cuda:3", "cuda:1", 3)],
)
def test_a_pinned_process_finds_its_gpu_at_number_0(device: str, pinned: str, number: int) -> None:
    assert gpus.index(device, {gpus.PINNED: pinned} if pinned else {}) == number
