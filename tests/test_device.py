"""Devices by name, and whole launches on the emulated ones: bits, accounts, records, errors."""

from __future__ import annotations

import contextvars
import gc
import mmap
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
import sample_cute
import sample_triton
import torch
import triton
import triton.language as tl
from cuda.bindings import driver
from cutlass.cute.runtime import from_dlpack
from triton.tools.tensor_descriptor import TensorDescriptor

from equiv.device import device as named
from equiv.emulator.content import window
from equiv.emulator.device import EmulatedDevice
from equiv.emulator.record import RecordFolder
from equiv.emulator.replay import replay_directory
from equiv.emulator.vouch import Vouch
from equiv.errors import DeviceError, IllegalAccessError, RecordError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

STREAM = driver.CUstream(0)
ARCHITECTURES = ["sm_90a", "sm_100a"]


@pytest.fixture(params=ARCHITECTURES)
def device(request: pytest.FixtureRequest) -> EmulatedDevice:
    found = named(f"emulated:{request.param}")
    assert isinstance(found, EmulatedDevice)
    return found


def random(count: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count, dtype=np.float32))


def bits(tensor: torch.Tensor) -> list[int]:
    found: list[int] = tensor.numpy().view(np.uint32).tolist()
    return found


def fused(x: torch.Tensor, scale: float, other: torch.Tensor | float) -> torch.Tensor:
    """x * scale + other with one rounding: exact in float64, because a product of two float32 is."""
    exact = x.double() * float(np.float32(scale))
    total = exact + other if isinstance(other, float) else exact + other.double()
    return total.float()


@pytest.mark.parametrize("name", ["emulated:sm_80", "emulated", "cuda:", "cuda:-1", "cuda:x", "tpu:0", ""])
def test_a_name_that_does_not_exist_lists_those_that_do(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        named(name)
    assert str(caught.value) == f"no device named {name!r}; known: emulated:sm_90a, emulated:sm_100a, cuda:N, cuda"


def test_importing_the_module_loads_neither_torch_nor_a_compiler() -> None:
    code = "import sys, equiv.device; print(sorted({'torch', 'triton', 'cutlass', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_gpu_that_is_not_there_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError) as caught:
        named("cuda:0")
    assert (caught.value.needs, str(caught.value)) == ("gpu", "needs gpu: cuda:0 asked for, 0 present")


def test_a_gpus_capability_gives_its_architecture_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: ((9, 0), (12, 0))[index])
    assert named("cuda:0").arch == "sm_90a"
    with pytest.raises(UnsupportedError) as caught:
        named("cuda:1")
    assert str(caught.value) == "needs capability:12.0: cuda:1; kernels are known for 9.0, 10.0"


def test_a_triton_kernel_gives_the_bits_of_its_formula(device: EmulatedDevice) -> None:
    x, y, out = random(1000, 1), random(1000, 2), torch.full((1000,), torch.nan)
    with device.active():
        sample_triton.axpy[(8,)](x, y, out, 1000, 1.5, 1, False, None, (3, 2.5), BLOCK=128)
    assert bits(out) == bits(fused(x, 1.5, y) + 1)
    (count,) = device.launches
    assert (count.kernel, count.grid, count.block) == ("axpy", (8, 1, 1), (128, 1, 1))
    assert count.warp_instructions > 8 * 4
    assert count.lane_instructions > 8 * 128


def test_what_the_assembler_fuses_is_fused(device: EmulatedDevice) -> None:
    x, y = random(512, 1), random(512, 2)
    reciprocal = float(np.float32(1 / 3))
    expected = (x.double() * reciprocal + y.double()).float()
    assert bits(expected) != bits((x.double() * reciprocal).float() + y), "the inputs do not tell the two apart"
    with device.active():
        sample_triton.ratio[(4,)](x, y, 3.0, BLOCK=128)
    assert bits(y) == bits(expected)


def test_a_cute_kernel_gives_the_bits_of_its_formula(device: EmulatedDevice) -> None:
    x, y = random(256), torch.full((256,), torch.nan)
    with device.active():
        sample_cute.turn(from_dlpack(x), from_dlpack(y), 0.3, STREAM)
    assert bits(y) == bits(fused(x, 0.3, 1.0).reshape(2, 128).flip(1).reshape(-1))


def tile_of(source: torch.Tensor, width: int) -> torch.Tensor:
    """What `move_tile` leaves of a 64 by 64 tensor: rows 56 to 63, the columns right of the tile moved to the left."""
    expected = torch.zeros(64, 64)
    expected[56:, :width] = source[56:, width : 2 * width]
    return expected


@pytest.mark.parametrize("width", [8, 16, 32])
def test_host_tensor_descriptors_reach_the_kernel_and_clip(device: EmulatedDevice, width: int, tmp_path: Path) -> None:
    source, target = random(64 * 64).reshape(64, 64), torch.zeros(64, 64)
    operands = [TensorDescriptor.from_tensor(one, [16, width]) for one in (source, target)]
    with device.active(), device.recorded(tmp_path, "tiles"):
        sample_triton.move_tile[(1,)](*operands, 56, M=16, N=width)
    assert bits(target) == bits(tile_of(source, width))
    (launch,) = RecordFolder(tmp_path).load("tiles").launches
    # The address is the first word of a tensor map, and nothing else in it looks like one.
    assert [(one.buffer, one.displacement) for one in launch.pointers] == [("source", 0), ("target", 0)]
    assert len(launch.params) > 256
    assert replay_directory(tmp_path, device.name).equal


def test_a_kernel_makes_its_own_tensor_descriptors_in_scratch_memory(device: EmulatedDevice) -> None:
    source, target = random(64 * 64).reshape(64, 64), torch.zeros(64, 64)
    asked = []

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        asked.append(size)
        return torch.zeros(size + 16, dtype=torch.uint8)[16:]  # never aligned to 128 bytes as the kernel wants it

    context = contextvars.copy_context()
    context.run(triton.set_allocator, allocate)

    def run() -> None:
        with device.active():
            sample_triton.move_tile_described[(1,)](source, target, 64, 64, 56, M=16, N=32)

    context.run(run)
    assert bits(target) == bits(tile_of(source, 32))
    assert asked == [256, 384]


def test_devices_nest_and_each_counts_its_own_launches() -> None:
    outer, inner = EmulatedDevice("sm_90a"), EmulatedDevice("sm_100a")
    x = torch.full((512,), 8.0)
    with outer.active():
        sample_triton.halve[(4,)](x, 0.5, BLOCK=128)
        with inner.active():
            sample_triton.halve[(4,)](x, 0.5, BLOCK=128)
        sample_triton.halve[(4,)](x, 0.5, BLOCK=128)
    assert x.unique().tolist() == [1.0]
    assert (len(outer.launches), len(inner.launches)) == (2, 1)
    with outer.active():
        pass
    assert outer.launches == []


def test_every_image_that_ran_is_vouched_for(device: EmulatedDevice) -> None:
    with device.active():
        sample_triton.halve[(4,)](torch.zeros(512), 0.5, BLOCK=128)
    assert list(device.vouches()) == [device.launches[0].image]
    assert device.remarks() == ()


def test_an_image_that_nothing_vouches_for_is_remarked_once(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equiv.emulator.device._VOUCHES", {})
    monkeypatch.setattr("equiv.emulator.vouch.vouch", lambda *_: Vouch(ok=False, detail="other SASS", ptxas=""))
    with device.active():
        for _ in range(2):
            sample_triton.halve[(4,)](torch.zeros(512), 0.5, BLOCK=128)
    assert device.remarks() == ("not vouched for: halve: other SASS",)


def test_a_registered_span_is_all_that_a_kernel_may_touch(device: EmulatedDevice) -> None:
    whole = torch.ones(1024)
    device.register("x", whole[:500])
    with device.active(), pytest.raises(IllegalAccessError, match="halve"):
        sample_triton.halve[(4,)](whole, 0.5, BLOCK=128)
    device.unregister("x")
    assert whole[500:].sum() == 524
    whole.fill_(1)
    device.register("x", whole[:512], writable=False)
    with device.active(), pytest.raises(IllegalAccessError, match="x"):
        sample_triton.halve[(4,)](whole, 0.5, BLOCK=128)
    device.unregister("x")
    assert whole.sum() == 1024
    assert device.memory.regions == ()


def test_a_name_is_registered_once_and_only_for_memory_of_the_host(device: EmulatedDevice) -> None:
    device.register("x", torch.zeros(4))
    with pytest.raises(DeviceError, match=f"{device.name}: a buffer named 'x' is registered already"):
        device.register("x", torch.zeros(4))
    with pytest.raises(DeviceError, match="buffer 'y' is on meta; emulated devices take CPU tensors"):
        device.register("y", torch.zeros(4, device="meta"))
    device.unregister("x")
    device.register("empty", torch.zeros(0, 4))
    device.unregister("empty")
    assert device.memory.regions == ()


def test_a_tensor_that_nobody_registered_is_found_behind_a_raw_pointer(device: EmulatedDevice) -> None:
    x, y = random(256), torch.zeros(256)
    operands = from_dlpack(x), from_dlpack(y)
    with device.active():
        sample_cute.turn(*operands, 0.3, STREAM)
    assert device.memory.regions == ()
    assert y.count_nonzero() == 256


class Raw:
    """An address that Triton takes for a tensor."""

    dtype = torch.float32

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def test_a_tensor_under_another_type_is_found(device: EmulatedDevice) -> None:
    x = torch.ones(512).view(torch.int32)
    with device.active():
        sample_triton.halve[(4,)](triton.reinterpret(x, tl.float32), 0.5, BLOCK=128)
        sample_triton.halve[(4,)](Raw(x.data_ptr()), 0.5, BLOCK=128)
    assert x.view(torch.float32).unique().tolist() == [0.25]


def test_tensors_made_inside_the_block_are_found_and_those_that_are_gone_are_not(device: EmulatedDevice) -> None:
    with device.active():
        x = torch.ones(4096)
        whole = torch.empty(8192)
        sample_triton.halve[(32,)](x, 0.5, BLOCK=128)
        sample_triton.halve[(32,)](whole[4096:], 0.5, BLOCK=128)
        assert x.unique().tolist() == [0.5]
        assert device.memory.regions == ()
        memory = mmap.mmap(-1, 4 * 4096)
        lent = torch.frombuffer(memory, dtype=torch.float32)
        operand = from_dlpack(lent[:256]), from_dlpack(torch.ones(256))
        sample_cute.turn(*operand[::-1], 0.5, STREAM)
        address = lent.data_ptr()
        del lent, operand
        gc.collect()
        # The memory is still there, but it belongs to no tensor any more.
        with pytest.raises(IllegalAccessError) as caught:
            sample_triton.halve[(2,)](Raw(address), 0.5, BLOCK=128)
    assert f"hold {address:#x}: memory of this process, but of no registered buffer" in caught.value.__notes__[0]


def test_a_registered_tensor_lives_until_it_is_unregistered(device: EmulatedDevice) -> None:
    x = torch.ones(512)
    seen = weakref.ref(x)
    device.register("x", x)
    del x
    gc.collect()
    assert seen() is not None
    device.unregister("x")
    assert seen() is None


def test_a_pointer_to_memory_of_no_tensor_is_explained(device: EmulatedDevice) -> None:
    array = np.zeros(256, dtype=np.float32)
    x, y = torch.zeros(256), from_dlpack(array)
    with device.active(), pytest.raises(IllegalAccessError) as caught:
        sample_cute.turn(from_dlpack(x), y, 0.3, STREAM)
    (note,) = caught.value.__notes__
    assert f"hold {int(array.ctypes.data):#x}: memory of this process, but of no registered buffer" in note


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block": (64, 1, 1)}, "halve: block (64, 1, 1), but the kernel requires (128,) (.reqntid)"),
        ({"cluster": (3, 1, 1)}, "halve: grid (4, 1, 1) is not a multiple of cluster (3, 1, 1)"),
        ({"grid": (1, 70000, 1)}, "halve: grid (1, 70000, 1) is beyond (2^31 - 1, 65535, 65535)"),
        ({"dynamic_shared": 232449}, "halve: 232449 bytes of shared memory a CTA; sm_90a has 232448"),
        ({"image": "0" * 64}, f"no PTX is known for the cubin {'0' * 64}; compile it inside `device.active()`"),
        ({"kernel": "other"}, "other: not in the PTX of image"),
    ],
)
def test_a_launch_that_a_driver_would_refuse_is_refused_with_its_numbers(change: dict[str, object], said: str) -> None:
    from dataclasses import replace

    from listener import Listener

    from equiv.emulator import triton_driver

    listener = Listener("sm_90a")
    x = torch.zeros(512)
    with triton_driver.active(listener):
        sample_triton.halve[(4,)](x, 0.5, BLOCK=128)
    with pytest.raises(DeviceError) as caught:
        EmulatedDevice("sm_90a").run(replace(listener.launches[0], **change))  # type: ignore[arg-type]
    assert said in str(caught.value)
    with pytest.raises(DeviceError, match="halve was compiled for sm_90a, the active device is emulated:sm_100a"):
        EmulatedDevice("sm_100a").run(listener.launches[0])


def test_a_recorded_sequence_replays_to_the_same_bytes(device: EmulatedDevice, tmp_path: Path) -> None:
    x, y, out = random(1000, 1), random(1000, 2), torch.zeros(1000)
    a, b = random(256, 3), torch.zeros(256)
    device.register("shared", x)
    with device.active(), device.recorded(tmp_path, "steps"):
        sample_triton.axpy[(8,)](x, y, out, 1000, 1.5, 7, True, None, (3, 2.5), BLOCK=128)
        sample_triton.halve[(7,)](x, 0.5, BLOCK=128)
        sample_cute.turn(from_dlpack(a), from_dlpack(b), 0.3, STREAM)
    folder = RecordFolder(tmp_path)
    capture = folder.load("steps")
    first, second, third = capture.launches
    assert [one.kernel for one in (first, second)] == ["axpy", "halve"]
    assert sorted(one.name for one in first.buffers) == ["out_ptr", "shared", "y_ptr"]
    assert [(one.offset, one.buffer, one.displacement) for one in first.pointers] == [
        (0, "shared", 0),
        (8, "y_ptr", 0),
        (16, "out_ptr", 0),
    ]
    assert [one.name for one in second.buffers] == ["shared"]
    assert second.buffers[0].before == first.buffers[[one.name for one in first.buffers].index("shared")].after
    assert (third.cluster, third.dynamic_shared, third.attributes) == (
        (2, 1, 1),
        512,
        {"programmatic_serialization": 1},
    )
    assert second.buffers[0].after is not None
    assert window(second.buffers[0].after, 0, 4000, folder.blobs).tobytes() == x.numpy().tobytes()
    report = replay_directory(tmp_path, device.name)
    assert str(report) == (
        f"{device.name}: 1 capture(s), 3 of 3 launches equal, 6 of 6 buffers equal, 0 of 18048 bytes differ, "
        "0 launches skipped"
    )


def test_a_failed_launch_is_recorded_with_its_error_and_not_replayed(device: EmulatedDevice, tmp_path: Path) -> None:
    x = torch.zeros(1024)
    device.register("x", x[:500])
    with pytest.raises(IllegalAccessError), device.active(), device.recorded(tmp_path, "failed"):
        sample_triton.halve[(4,)](x, 0.5, BLOCK=128)
    (launch,) = RecordFolder(tmp_path).load("failed").launches
    assert launch.error is not None
    assert launch.error.startswith("IllegalAccessError: ")
    report = replay_directory(tmp_path, device.name)
    assert (report.launches, report.equal, len(report.skipped)) == (0, False, 1)


def test_a_capture_name_that_is_taken_is_refused_before_anything_runs(device: EmulatedDevice, tmp_path: Path) -> None:
    with device.recorded(tmp_path, "one"):
        pass
    with pytest.raises(RecordError, match=r"one\.json exists already"), device.recorded(tmp_path, "one"):
        pytest.fail("the block was entered")


def test_gigabytes_of_sparse_memory_are_recorded_and_replayed(device: EmulatedDevice, tmp_path: Path) -> None:
    size = 3 << 30
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    end = whole[-512:]
    end += 4
    device.register("pool", whole)
    with device.active(), device.recorded(tmp_path, "sparse"):
        sample_triton.halve[(4,)](end, 0.5, BLOCK=128)
    (launch,) = RecordFolder(tmp_path).load("sparse").launches
    assert launch.pointers[0].displacement == size - 2048
    assert [(one.offset, one.size) for one in launch.buffers[0].before.extents] == [(size - 4096, 4096)]
    assert sum(path.stat().st_size for path in (tmp_path / "blobs").rglob("*.z")) < 4096
    assert replay_directory(tmp_path, device.name).equal
