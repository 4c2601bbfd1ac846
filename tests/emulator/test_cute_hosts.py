"""What CuTe DSL host code sets up arrives: tensor maps, clusters, several kernels, large shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sample_cute_tiles as samples
import torch
from cuda.bindings import driver
from cutlass.cute.runtime import from_dlpack

from equiv.emulator.device import EmulatedDevice
from equiv.emulator.record import RecordFolder
from equiv.emulator.replay import replay_directory

if TYPE_CHECKING:
    from pathlib import Path

STREAM = driver.CUstream(0)


@pytest.fixture(params=["sm_90a", "sm_100a"])
def device(request: pytest.FixtureRequest) -> EmulatedDevice:
    return EmulatedDevice(request.param)


def random(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal(shape, dtype=np.float32))


def bits(tensor: torch.Tensor) -> Any:
    return tensor.numpy().view(np.uint32)


def given(tensor: torch.Tensor) -> Any:
    return from_dlpack(tensor, assumed_align=16)


def test_tensor_maps_of_host_code_load_clip_store_and_replay_elsewhere(device: EmulatedDevice, tmp_path: Path) -> None:
    x, whole = random(40, 72), torch.full((44, 80), torch.nan)
    y = whole[2:42, 4:76]
    with device.active(), device.recorded(tmp_path, "tiles"):
        samples.tiles(given(x).mark_layout_dynamic(), given(y).mark_layout_dynamic(), STREAM)
    assert np.array_equal(bits(y), (x.numpy() * np.float32(2)).view(np.uint32))
    assert whole.isnan().sum() == 44 * 80 - 40 * 72
    (launch,) = RecordFolder(tmp_path).load("tiles").launches
    assert launch.grid == (3, 3, 1)
    # Both maps lie in the parameters, each with the address of its tensor in its first word.
    assert [(one.offset % 64, one.displacement) for one in launch.pointers] == [(0, 0), (0, 4 * (2 * 80 + 4))]
    report = replay_directory(tmp_path, device.name)
    assert (report.equal, report.bytes_different, report.bytes) == (True, 0, 4 * (40 * 72 + 44 * 80))


def test_a_cluster_loads_one_tile_into_both_of_its_blocks(device: EmulatedDevice) -> None:
    x, y = random(samples.M, samples.N), torch.zeros(2, samples.M, samples.N)
    with device.active():
        samples.shared_tile(given(x), given(y), STREAM)
    assert np.array_equal(bits(y), np.broadcast_to(bits(x), y.shape))
    assert device.launches[0].cluster == (2, 1, 1)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_kernels_of_one_host_function_see_what_those_before_them_wrote(
    device: EmulatedDevice, steps: int, tmp_path: Path
) -> None:
    columns = 4 * samples.THREADS
    x, s, y, z = random(8, columns), *(torch.zeros(columns) for _ in range(3))
    operands = given(x), given(s), given(y), given(z)
    with device.active(), device.recorded(tmp_path, "chain"):
        samples.chain(*operands, steps, STREAM)
    total = np.zeros(columns, np.float32)
    for row in x.numpy()[:steps]:
        total = total + row
    assert np.array_equal(bits(s), total.view(np.uint32))
    assert np.array_equal(bits(y), (np.roll(total, -samples.THREADS) + np.float32(1)).view(np.uint32))
    assert np.array_equal(bits(z), bits(s))
    staged = samples.STAGES * columns * 4
    first, second, third = RecordFolder(tmp_path).load("chain").launches
    assert [one.attributes for one in (first, second, third)] == [{"programmatic_serialization": 1}] * 2 + [{}]
    assert (first.cluster, second.cluster) == ((1, 1, 1), (4, 1, 1))
    assert (first.dynamic_shared, third.dynamic_shared) == (staged, staged + samples.BIG)
    assert third.dynamic_shared > 48 * 1024
    assert replay_directory(tmp_path, device.name).launches_equal == 3
