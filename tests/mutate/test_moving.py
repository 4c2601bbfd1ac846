"""Scenes that one process recorded and another plays."""

from __future__ import annotations

import mmap
import pickle
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mutant_pair
import numpy as np
import pytest

from equiv.buffers import PAGE
from equiv.emulator.store import Image, shared_store
from equiv.mutate.moving import pack, unpack
from equiv.mutate.mutants import Target
from equiv.mutate.scene import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.mutate.scene import Scene
    from equiv.pairs import Pair
    from equiv.records import Case

FOLLOW = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry follow(.param .u64 table)
.reqntid 32, 1, 1
{
.reg .b32 %r<4>; .reg .b64 %rd<8>;
mov.u32 %r1, %tid.x;
ld.param.b64 %rd1, [table]; ld.global.b64 %rd2, [%rd1]; ld.global.b64 %rd3, [%rd1+8];
mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd2, %rd4; add.s64 %rd6, %rd3, %rd4;
ld.global.b32 %r2, [%rd5]; st.global.b32 [%rd6], %r2;
ret;
}
"""
"""y = x of the first 32 elements, whose addresses are in memory."""


def follow(case: Case, tensors: Mapping[str, Any]) -> None:
    """The host keeps the addresses in memory that it allocates."""
    import torch

    from equiv.emulator.device import EmulatedDevice
    from equiv.emulator.launch import Launch

    image = shared_store().put(Image(b"follow", FOLLOW, "sm_100a", {}))
    # Across the end of a page.
    table = torch.from_numpy(np.frombuffer(mmap.mmap(-1, 2 * PAGE), np.int64)[PAGE // 8 - 1 : PAGE // 8 + 1])
    table[0], table[1] = tensors["x"].data_ptr(), tensors["y"].data_ptr()
    tensors["t"].fill_(0)
    tensors["y"][32:].fill_(0)
    params = struct.pack("<Q", table.data_ptr())
    EmulatedDevice.current[-1].run(
        Launch(image, "follow", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, {}, params, (("table", table),))
    )


def pair_of(candidate: Any = None, *, sparse: bool = False) -> Pair:
    pair = replace(
        mutant_pair.PAIR, layout=lambda case: tuple(replace(one, sparse=sparse) for one in mutant_pair.layout(case))
    )
    return replace(pair, candidate=SimpleNamespace(load=lambda: candidate)) if candidate else pair  # type: ignore[arg-type]


def moved(pair: Pair) -> tuple[Scene, Scene]:
    """A scene as recorded, its memory spoilt, and as it arrived."""
    scene = record(pair, mutant_pair.case(), "sm_100a")
    arrived = unpack(pickle.loads(pickle.dumps(pack(scene))), pair)
    for buffer in scene.buffers:
        buffer.image.bytes[:] = 5
    return scene, arrived


def play(scene: Scene) -> str:
    scene.play({key: Target(shared_store().get(key[0]), key[1]).program for key in scene.kernels})
    return scene.difference()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_scene_repeats_itself_where_it_arrives_and_nowhere_else(*, sparse: bool) -> None:
    scene, arrived = moved(pair_of(sparse=sparse))
    assert "of 40 elements" in arrived.difference()
    assert play(arrived) == ""
    assert (arrived.case, arrived.cost, arrived.kernels) == (scene.case, scene.cost, scene.kernels)
    assert all((buffer.image.bytes == 5).all() for buffer in scene.buffers)
    arrived.buffers[1].elements[0] ^= 1
    assert arrived.difference() == "y: 1 of 40 elements"
    scene.close()
    arrived.close()


def test_what_lies_in_registered_memory_arrives_as_addresses_there() -> None:
    scene, arrived = moved(pair_of())
    there, here = ([buffer.address for buffer in one.buffers] for one in (scene, arrived))
    assert not set(there) & set(here)
    for one, places in ((scene, there), (arrived, here)):
        assert {region.address for region in one.steps[0].regions} == set(places)
        assert struct.unpack("<QQI", one.steps[0].launch.params) == (*places[:2], mutant_pair.N)
        assert [address for address, _ in one.steps[1].writes] == places[2:]
        assert one.steps[1].host[0].tolist() == [places[2], 256]


def test_memory_that_the_host_allocated_arrives_and_addresses_in_it_do() -> None:
    scene, arrived = moved(pair_of(follow))
    ((was,), (now,)) = (
        [region for region in one.steps[0].regions if region.name == "table"] for one in (scene, arrived)
    )
    assert (now.address != was.address, now.nbytes) == (True, was.nbytes)
    assert now.address % PAGE == was.address % PAGE == PAGE - 8
    (memory,) = arrived.kept
    assert memory.bytes.ctypes.data + memory.size >= now.end
    assert play(arrived) == ""
    assert np.array_equal(arrived.buffers[1].elements[:32], arrived.buffers[0].elements[:32])


def test_an_image_that_this_process_does_not_know_arrives_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pair = pair_of()
    parcel = pack(record(pair, mutant_pair.case(), "sm_100a"))
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path))
    (image,) = parcel.images
    assert shared_store().find(image.digest) is None
    assert play(unpack(parcel, pair)) == ""
