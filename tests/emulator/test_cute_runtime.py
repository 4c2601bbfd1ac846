"""CuTe DSL's own calls reach a device, and errors of the device reach the caller."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import sample_cute
import torch
from cuda.bindings import driver
from cutlass import cute
from cutlass.cute.runtime import from_dlpack
from cutlass.cutlass_dsl import CuTeDSL
from listener import Listener

from equiv.emulator import cute_runtime, cute_shim
from equiv.emulator.store import digest, shared_store
from equiv.errors import DeviceError, UnsupportedError

STREAM = driver.CUstream(0)


class Operands:
    """Two tensors, as torch and as CuTe tensors."""

    def __init__(self) -> None:
        self.x, self.y = torch.zeros(256), torch.zeros(256)
        self.cute = from_dlpack(self.x), from_dlpack(self.y)


@pytest.fixture
def operands() -> Operands:
    return Operands()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_an_implicit_call_arrives_with_its_dimensions_and_parameters(arch: str, operands: Operands) -> None:
    device = Listener(arch)
    with cute_runtime.active(device):
        sample_cute.turn(*operands.cute, 2.5, STREAM)
    ((launch, values),) = device.raw
    assert (launch.grid, launch.block, launch.cluster) == ((2, 1, 1), (128, 1, 1), (2, 1, 1))
    assert launch.dynamic_shared == 512
    assert launch.attributes == {"programmatic_serialization": 1}
    assert values == [
        struct.pack("<Q", operands.x.data_ptr()),
        struct.pack("<Q", operands.y.data_ptr()),
        struct.pack("<f", 2.5),
    ]
    image = shared_store().get(launch.image)
    assert (image.arch, image.digest) == (arch, digest(image.cubin))
    assert f".target {arch}" in image.ptx
    assert image.toolchain == {"nvidia-cutlass-dsl": "4.8.1"}


def test_a_compiled_function_runs_without_any_options(operands: Operands, tmp_path: Path) -> None:
    device = Listener("sm_90a")
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        with cute_runtime.active(device):
            compiled = cute.compile(sample_cute.turn, *operands.cute, 1.0, STREAM)
            compiled(*operands.cute, 4.0, STREAM)
    finally:
        os.chdir(here)
    assert [values[2] for _, values in device.raw] == [struct.pack("<f", 4.0)]
    assert list(tmp_path.iterdir()) == []


def test_files_that_the_user_asked_for_are_left_where_he_wants_them(operands: Operands, tmp_path: Path) -> None:
    device = Listener("sm_90a")
    with cute_runtime.active(device):
        options = f"--keep-ptx --dump-dir={tmp_path}"
        compiled = cute.compile(sample_cute.turn, *operands.cute, 1.0, STREAM, options=options)
        compiled(*operands.cute, 1.0, STREAM)
    (kept,) = tmp_path.iterdir()
    assert kept.suffix == ".ptx"
    assert kept.read_text().rstrip("\0") == shared_store().get(device.raw[0][0].image).ptx


def test_every_launch_of_a_host_function_arrives_in_order(operands: Operands) -> None:
    device = Listener("sm_90a")
    with cute_runtime.active(device):
        sample_cute.turn_twice(*operands.cute, 1.0, STREAM)
    assert [launch.grid for launch, _ in device.raw] == [(2, 1, 1), (1, 1, 1)]


def test_both_architectures_in_one_process_compile_apart(operands: Operands) -> None:
    devices = [Listener(arch) for arch in ("sm_90a", "sm_100a", "sm_90a")]
    for device in devices:
        with cute_runtime.active(device):
            sample_cute.turn(*operands.cute, 1.0, STREAM)
    images = [device.raw[0][0].image for device in devices]
    assert images[0] == images[2] != images[1]


def test_nested_blocks_and_errors_put_everything_back(operands: Operands) -> None:
    environment = CuTeDSL._get_dsl().envar
    before = dict(vars(environment))
    outer, inner = Listener("sm_90a"), Listener("sm_100a")

    def fail() -> None:
        with cute_runtime.active(outer):
            with cute_runtime.active(inner):
                sample_cute.turn(*operands.cute, 1.0, STREAM)
            sample_cute.turn(*operands.cute, 1.0, STREAM)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [len(device.raw) for device in (outer, inner)] == [1, 1]
    assert dict(vars(environment)) == before


def test_kernels_are_compiled_for_global_memory_as_for_a_gpu_also_with_operands_made_outside(
    operands: Operands,
) -> None:
    device = Listener("sm_90a")
    assert operands.cute[0].memspace.name == "generic"
    with cute_runtime.active(device):
        sample_cute.turn(*operands.cute, 1.0, STREAM)
        sample_cute.turn(from_dlpack(operands.x), from_dlpack(operands.y), 1.0, STREAM)
    first, second = (shared_store().get(launch.image).ptx for launch, _ in device.raw)
    assert "ld.global" in first
    assert "st.global" in first
    assert first == second


def test_an_error_of_the_device_is_raised_by_the_call_and_the_next_call_works(operands: Operands) -> None:
    device = Listener("sm_90a")
    with cute_runtime.active(device):
        device.raising = DeviceError("stopped")
        with pytest.raises(DeviceError) as caught:
            sample_cute.turn_twice(*operands.cute, 1.0, STREAM)
        assert caught.value is device.raising
        device.raising = None
        sample_cute.turn_twice(*operands.cute, 1.0, STREAM)
    assert len(device.raw) == 2


def test_a_compiled_function_outside_every_block_says_so(operands: Operands) -> None:
    with cute_runtime.active(Listener("sm_90a")):
        compiled = cute.compile(sample_cute.turn, *operands.cute, 1.0, STREAM)
    with pytest.raises(
        DeviceError, match=r"compiled on an emulated device ran outside every `device\.active\(\)` block"
    ):
        compiled(*operands.cute, 1.0, STREAM)


BOTH_SIDES = """if True:
    import re, sys, sample_cute, torch
    from cuda.bindings import driver
    from cutlass import cute
    from cutlass.base_dsl.common import DSLBaseError
    from cutlass.cute.runtime import from_dlpack
    from equiv.emulator import cute_runtime
    from equiv.errors import DeviceError
    from listener import Listener
    x, y = torch.zeros(256), torch.zeros(256)
    operands = from_dlpack(x), from_dlpack(y), 1.0, driver.CUstream(0)
    device = Listener("sm_90a")
    found = []

    def outside():
        found.append(cute.compile(sample_cute.turn, *operands, options="--gpu-arch=sm_100a"))
        try:
            found[-1](*operands)
        except DSLBaseError as error:
            print("driver:", re.search("cudaError[A-Za-z]+", str(error))[0])

    def inside():
        with cute_runtime.active(device):
            sample_cute.turn(*operands)
            cute.compile(sample_cute.turn, *operands)(*operands)
        print("emulated:", len(device.raw))

    for step in sys.argv[1:]:
        {"outside": outside, "inside": inside}[step]()
    with cute_runtime.active(device):
        try:
            found[0](*operands)
        except DeviceError as error:
            print("refused:", error)
"""


@pytest.mark.parametrize("order", ["outside inside", "inside outside", "inside outside inside outside"])
def test_functions_for_a_gpu_and_emulated_ones_live_side_by_side_in_any_order(order: str) -> None:
    steps = order.split()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", BOTH_SIDES, *steps], env=environment, check=True, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    wanted = [f"emulated: {2 * (number // len(set(steps)) + 1)}" for number in range(len(steps))]
    for step, line, emulated in zip(steps, lines, wanted, strict=False):
        # Without a GPU the real runtime has an error of its own; the shim's would be Unknown or InitializationError.
        if step == "inside":
            assert line == emulated
        else:
            assert re.fullmatch(r"driver: cudaError(InsufficientDriver|NoDevice)", line)
    assert re.fullmatch(
        r"refused: cutlass_turn_\S+ was compiled for a GPU, outside every `device\.active\(\)` block, and called "
        r"inside a block of listener:sm_90a; compile it inside the block",
        lines[len(steps)],
    )
    assert len(lines) == len(steps) + 1


def test_every_cuda_call_of_the_shipped_runtime_is_answered_or_refused_by_name() -> None:
    shipped = [one for one in CuTeDSL._get_dsl().envar.shared_libs.split(os.pathsep) if "cute_dsl_runtime" in one]
    table = subprocess.run(["nm", "-D", "--defined-only", *shipped], check=True, capture_output=True, text=True).stdout
    calls = set(re.findall(r" T (_cu\w+|cuda_dialect_\w+library_once)$", table, re.MULTILINE))
    with cute_shim.answering(Listener("sm_90a")) as shim:
        assert calls
        assert set(shim.symbols) == calls
        refused = ctypes.CFUNCTYPE(ctypes.c_int)(shim.symbols["_cudaMalloc"])
        assert refused() == cute_shim.FAILED
        assert str(cute_shim.take_error()).startswith("needs cuda:_cudaMalloc: the emulated device does not offer")
    exported = subprocess.run(["nm", "-D", "--defined-only", shim.path], check=True, capture_output=True, text=True)
    assert {line.split()[-1] for line in exported.stdout.splitlines()} == {"equiv_shim_set", "equiv_shim_symbols"}


def test_occupancy_hints_are_answered_from_the_devices_attributes(operands: Operands) -> None:
    device = Listener("sm_90a")
    with cute_runtime.active(device):
        sample_cute.turn_dense(*operands.cute, 1.0, STREAM)
    assert len(device.raw) == 1


def test_an_attribute_that_the_device_does_not_know_is_refused_by_number(operands: Operands) -> None:
    device = Listener("sm_90a")
    device.device_attributes = {16: 132}
    with cute_runtime.active(device):
        compiled = cute.compile(sample_cute.turn, *operands.cute, 1.0, STREAM)
        with pytest.raises(UnsupportedError) as caught:
            compiled(*operands.cute, 1.0, STREAM)
    assert caught.value.needs == "cudaDeviceAttr:97"


def test_another_version_is_refused_with_the_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute_runtime, "version", lambda _: "5.0.1")
    cute_runtime._internals.cache_clear()
    with pytest.raises(UnsupportedError, match=r"version 5\.0\.1 is installed; emulated devices know 4\.8\.x"):
        cute_runtime.active(Listener("sm_90a")).__enter__()


def test_code_for_another_architecture_than_the_active_ones_is_refused(operands: Operands) -> None:
    with cute_runtime.active(Listener("sm_90a")), pytest.raises(UnsupportedError) as caught:
        cute.compile(sample_cute.turn, *operands.cute, 1.0, STREAM, options="--gpu-arch=sm_100a")
    assert str(caught.value).startswith("needs arch:sm_100a: cutlass_turn_")


def test_a_function_from_an_earlier_process_is_compiled_again_rather_than_found_without_its_ptx(tmp_path: Path) -> None:
    code = """if True:
        import sample_cute, torch
        from cuda.bindings import driver
        from cutlass.cute.runtime import from_dlpack
        from equiv.emulator import cute_runtime
        from listener import Listener
        device = Listener("sm_90a")
        x, y = torch.zeros(256), torch.zeros(256)
        with cute_runtime.active(device):
            sample_cute.turn(from_dlpack(x), from_dlpack(y), 1.0, driver.CUstream(0))
        print(len(device.raw))"""
    environment = {**os.environ, "EQUIV_CACHE_DIR": str(tmp_path), "CUTE_DSL_CACHE_DIR": str(tmp_path / "cute")}
    for _ in range(2):
        shutil.rmtree(tmp_path / "images", ignore_errors=True)
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
        assert done.stdout == "1\n"


def test_after_an_error_nothing_more_runs_until_it_is_taken() -> None:
    calls = []

    def fail(number: int) -> None:
        calls.append(number)
        raise KeyError(number)

    answer = cute_shim._keeping(fail)
    assert [answer(1), answer(2)] == [cute_shim.FAILED, cute_shim.FAILED]
    assert isinstance(cute_shim.take_error(), KeyError)
    assert cute_shim.take_error() is None
    assert answer(3) == cute_shim.FAILED
    assert isinstance(cute_shim.take_error(), KeyError)
    assert calls == [1, 3]


def test_a_fat_binary_with_something_else_in_it_is_refused() -> None:
    def read(data: bytes) -> bytes:
        buffer = ctypes.create_string_buffer(data, len(data))
        return cute_shim.read_fatbin(ctypes.addressof(buffer))

    entry = struct.pack("<HHIQ", 2, 0x101, 64, 4) + bytes(48) + b"\x7fELF"
    assert read(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry) == b"\x7fELF"
    with pytest.raises(UnsupportedError, match="2 cubins in one library"):
        read(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2 * len(entry)) + 2 * entry)
    with pytest.raises(UnsupportedError, match="starts with 0x464c457f"):
        read(b"\x7fELF" + bytes(12))
    packed = entry[:40] + struct.pack("<Q", 0x2000) + entry[48:]
    with pytest.raises(UnsupportedError, match=r"compressed \(flags 0x2000\)"):
        read(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(packed)) + packed)


LAZY = """
import sys
from equiv.device import device
from equiv.emulator import cute_runtime

outer, inner = device("emulated:sm_90a"), device("emulated:sm_100a")
assert cute_runtime.installed()
with outer.active():
    pass
print("cutlass" in sys.modules)
with outer.active():
    with inner.active():
        import cutlass
        from cutlass.cutlass_dsl import CuTeDSL

        settings = CuTeDSL._get_dsl().envar
        print(settings.arch)
    print(settings.arch)
print(settings._arch, any(isinstance(one, cute_runtime._OnImport) for one in sys.meta_path))
"""


def test_a_block_without_cute_does_not_import_it_and_an_import_inside_prepares_every_open_block() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["False", "sm_100a", "sm_90a", "None False"]
