"""`IndexFrontHopper` against the declared arithmetic, bit for bit; on the emulator.

Keys, weight loads and the last roundings are shared with `IndexFrontMma`, all else is its own: every tiling is run
here, and the other variants in some of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from sample_front import check, check_integers, check_ordered, check_schedules

THREADS = 320
CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {}),
    (5, {"fp4": True}),
    (17, {"mx": True}),
    (32, {"normalized": True}),
    (33, {"fp4": True}),
    (65, {"normalized": True, "fp4": True, "pitch": 2304}),
)
OTHERS: tuple[tuple[int, dict[str, Any]], ...] = (
    (16, {"pitch": 2304}),
    (48, {"normalized": True, "mx": True}),
    (49, {}),
    (64, {"pitch": 2304}),
    (97, {"mx": True}),
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


@pytest.mark.parametrize(("batch", "axes"), [(17, {"mx": True}), (64, {"pitch": 2304})], ids=str)
def test_no_schedule_changes_a_bit(batch: int, axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_schedules("sm_90a", batch, axes, monkeypatch)


@pytest.mark.parametrize(("batch", "axes"), [(12, {}), (33, {}), (63, {"normalized": True})], ids=str)
def test_no_access_to_shared_memory_is_left_unordered(batch: int, axes: dict[str, Any]) -> None:
    check_ordered("sm_90a", batch, axes)
