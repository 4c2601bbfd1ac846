"""Triton's own calls reach a device with the parameters that Triton's own launcher would pass."""

from __future__ import annotations

import struct

import pytest
import sample_triton
import torch
import triton
from listener import Listener

from equiv.emulator import triton_driver
from equiv.emulator.store import shared_store
from equiv.errors import DeviceError, UnsupportedError


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    return [torch.zeros(1000) for _ in range(3)]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_constants_none_and_ones_are_dropped_and_the_rest_is_packed_by_the_parameter_list(
    arch: str, tensors: list[torch.Tensor]
) -> None:
    device = Listener(arch)
    with triton_driver.active(device):
        sample_triton.axpy[(8,)](*tensors, 1000, 1.5, 1, True, None, (3, 2.5), BLOCK=128)
    (launch,) = device.launches
    assert (launch.grid, launch.block, launch.cluster) == ((8, 1, 1), (128, 1, 1), (1, 1, 1))
    x, y, out = (tensor.data_ptr() for tensor in tensors)
    # Three pointers, n, scale, flag, pair; then two scratch pointers that the kernel does not use.
    expected = struct.pack("<QQQifBxxxifxxxxQQ", x, y, out, 1000, 1.5, 1, 3, 2.5, 0, 0)
    assert launch.params == expected
    assert [(name, tensor.data_ptr()) for name, tensor in launch.tensors] == [
        ("x_ptr", x),
        ("y_ptr", y),
        ("out_ptr", out),
    ]
    assert shared_store().get(launch.image).arch == arch
    assert f".target {arch}" in shared_store().get(launch.image).ptx


def test_both_architectures_in_one_process_do_not_share_compiled_kernels(tensors: list[torch.Tensor]) -> None:
    devices = [Listener(arch) for arch in ("sm_90a", "sm_100a", "sm_90a")]
    for device in devices:
        with triton_driver.active(device):
            sample_triton.halve[(4,)](tensors[0], 0.5, BLOCK=128)
    images = [device.launches[0].image for device in devices]
    assert images[0] == images[2] != images[1]


def test_a_nested_block_goes_to_the_inner_device_and_then_back(tensors: list[torch.Tensor]) -> None:
    outer, inner = Listener("sm_90a"), Listener("sm_100a")
    with triton_driver.active(outer):
        with triton_driver.active(inner):
            sample_triton.halve[(4,)](tensors[0], 0.5, BLOCK=128)
        sample_triton.halve[(2,)](tensors[0], 0.5, BLOCK=128)
    assert [launch.grid for launch in inner.launches] == [(4, 1, 1)]
    assert [launch.grid for launch in outer.launches] == [(2, 1, 1)]


def test_the_driver_that_was_active_is_back_after_an_error() -> None:
    from triton.runtime import driver

    before = vars(driver)["_active"]
    with pytest.raises(KeyError), triton_driver.active(Listener("sm_90a")):
        raise KeyError
    assert vars(driver)["_active"] is before


def test_fp_fusion_is_on_inside_and_untouched_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    with triton_driver.active(Listener("sm_90a")):
        assert triton.knobs.language.default_fp_fusion is True
    assert triton.knobs.language.default_fp_fusion is False


def test_a_grid_may_be_a_function_of_the_arguments(tensors: list[torch.Tensor]) -> None:
    device = Listener("sm_90a")
    with triton_driver.active(device):
        sample_triton.halve[lambda meta: (triton.cdiv(1000, meta["BLOCK"]), 2)](tensors[0], 0.5, BLOCK=64)
    assert device.launches[0].grid == (16, 2, 1)


def test_an_empty_grid_launches_nothing(tensors: list[torch.Tensor]) -> None:
    device = Listener("sm_90a")
    with triton_driver.active(device):
        sample_triton.halve[(0,)](tensors[0], 0.5, BLOCK=64)
    assert device.launches == []


def test_an_error_of_the_device_is_raised_by_the_call(tensors: list[torch.Tensor]) -> None:
    device = Listener("sm_90a")
    device.raising = DeviceError("stopped")
    with triton_driver.active(device), pytest.raises(DeviceError) as caught:
        sample_triton.halve[(4,)](tensors[0], 0.5, BLOCK=128)
    assert caught.value is device.raising


def test_a_launch_says_what_its_kernel_was_specialised_for(tensors: list[torch.Tensor]) -> None:
    device = Listener("sm_90a")
    with triton_driver.active(device):
        sample_triton.halve[(8,)](tensors[0], 0.5, BLOCK=128, num_warps=2)
    (launch,) = device.launches
    assert launch.configuration == "BLOCK=128, num_warps=2, num_stages=3, num_ctas=1"
    assert launch.trial is False


def test_a_kept_launcher_goes_to_the_device_that_is_active_and_to_none_of_another_kind() -> None:
    first, second = Listener("sm_90a"), Listener("sm_90a")
    x = torch.zeros(512)
    with triton_driver.active(first):
        compiled = sample_triton.halve[(4,)](x, 0.5, BLOCK=128)
    run = compiled.run
    arguments = (4, 1, 1, 0, compiled.function, None, None, None, None, x, 0.5, 128)
    with triton_driver.active(second):
        run(*arguments)
    assert (len(first.launches), len(second.launches)) == (1, 1)
    with (
        triton_driver.active(Listener("sm_100a")),
        pytest.raises(DeviceError, match="halve was compiled for an emulated sm_90a, which is not active"),
    ):
        run(*arguments)


def test_another_version_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_driver, "version", lambda _: "4.1.0")
    with pytest.raises(UnsupportedError, match=r"version 4\.1\.0 is installed; emulated devices know 3\.6, 3\.7, 3\.8"):
        triton_driver.active(Listener("sm_90a")).__enter__()
