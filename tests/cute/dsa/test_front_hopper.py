"""`IndexFrontHopper` against the declared arithmetic, bit for bit; on the emulator.

Its epilogue, norm, loads and keys are `IndexFrontMma`'s: what is its own are `wgmma` and the way from its fragments to
the epilogue, so that every tiling is run here, and each other variant once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import sample_front
import torch
from sample_front import check, same

import equiv
from equiv.cute.dsa.front_hopper import PITCH
from equiv.cute.dsa.tiling import CtaPlan, front_tiling
from equiv.emulator import engine

THREADS = 512
CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (5, {"fp4": True}),
    (17, {"mx": True}),
    (33, {}),
    (65, {"normalized": True, "fp4": True, "pitch": 2304}),
    (129, {"pitch": 2304}),
)
OTHERS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {}),
    (49, {}),
    (97, {"normalized": True}),
    (145, {"fp4": True}),
    (193, {"normalized": True}),
    (257, {"mx": True}),
    (321, {"fp4": True, "pitch": 2304}),
    (385, {"normalized": True, "mx": True}),
    (512, {}),
    (1024, {"pitch": 2304}),
)


@pytest.mark.parametrize(("batch", "axes"), CASES, ids=str)
def test_every_byte_follows_from_the_declared_order(batch: int, axes: dict[str, Any]) -> None:
    check("sm_90a", THREADS, batch, axes)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "axes"), OTHERS, ids=str)
def test_every_byte_follows_from_the_declared_order_in_the_other_tilings(batch: int, axes: dict[str, Any]) -> None:
    check("sm_90a", THREADS, batch, axes)


def test_sums_of_integers_are_those_of_float64() -> None:
    given = sample_front.inputs(100, normalized=True, integers=True)
    exact = given["q_c"].double() @ given["w_q"].double().T
    np.testing.assert_array_equal(sample_front.query(given, "sm_90a"), sample_front.words(exact.to(torch.bfloat16)))
    device = equiv.device("emulated:sm_90a")
    same(sample_front.run(device, given), sample_front.expected(device, given))


@pytest.mark.parametrize(("batch", "axes"), [(17, {"mx": True}), (129, {"pitch": 2304})], ids=str)
def test_no_schedule_changes_a_bit(batch: int, axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mx = axes.get("mx", False)
    device = equiv.device("emulated:sm_90a")
    given = sample_front.inputs(batch, **{name: value for name, value in axes.items() if name != "mx"})
    in_order = sample_front.run(device, given, mx=mx)
    stock = engine.launch
    for seed, completion in ((None, "late"), (1, "eager"), (2, "late")):
        monkeypatch.setattr(engine, "launch", partial(stock, seed=seed, completion=completion))
        same(sample_front.run(device, given, mx=mx), in_order)


@pytest.mark.parametrize(("batch", "axes"), [(33, {}), (129, {"pitch": 2304})], ids=str)
def test_no_access_to_shared_memory_is_left_unordered(batch: int, axes: dict[str, Any]) -> None:
    device = equiv.device("emulated:sm_90a", check="race")
    sample_front.run(device, sample_front.inputs(batch, **axes))
    (launch,) = device.launches
    assert launch.notes == ()


def test_complete_sums_fit_into_the_ring_of_every_tiling() -> None:
    for batch in range(129, 1025):
        plan = CtaPlan.of(front_tiling(batch))
        assert plan.n * PITCH * 4 <= plan.stages * plan.stage_bytes, batch
