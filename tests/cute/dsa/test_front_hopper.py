"""`IndexFrontHopper` against the declared arithmetic, bit for bit; on the emulator.

Its epilogue, norm, loads and keys are `IndexFrontMma`'s: what is its own are `wgmma` and the way from its fragments to
the epilogue, so that every tiling is run here, and each other variant once.
"""

from __future__ import annotations

from typing import Any

import pytest
from sample_front import check, check_integers, check_ordered, check_schedules

from equiv.cute.dsa.front_hopper import PITCH
from equiv.cute.dsa.tiling import CtaPlan, front_tiling

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
    check_integers("sm_90a")


@pytest.mark.parametrize(("batch", "axes"), [(17, {"mx": True}), (129, {"pitch": 2304})], ids=str)
def test_no_schedule_changes_a_bit(batch: int, axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_schedules("sm_90a", batch, axes, monkeypatch)


@pytest.mark.parametrize(("batch", "axes"), [(33, {}), (129, {"pitch": 2304})], ids=str)
def test_no_access_to_shared_memory_is_left_unordered(batch: int, axes: dict[str, Any]) -> None:
    check_ordered("sm_90a", batch, axes)


def test_complete_sums_fit_into_the_ring_of_every_tiling() -> None:
    for batch in range(129, 1025):
        plan = CtaPlan.of(front_tiling(batch))
        assert plan.n * PITCH * 4 <= plan.stages * plan.stage_bytes, batch
