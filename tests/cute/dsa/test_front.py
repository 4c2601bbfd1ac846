"""`IndexFrontMma` against the declared arithmetic, bit for bit, over every tiling; on the emulator.

Contract: q_out, w_out and cache are, in every byte, what `DsaIndex` makes of the projection that the declared order
gives: no padded row, no row of another tile, no byte beside the written tokens is touched.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import sample_front
from sample_front import check, check_integers, check_ordered, check_schedules, same

import equiv
from equiv.cute.dsa.front import IndexFrontMma
from equiv.cute.dsa.front_host import dsa_front
from equiv.errors import UsageError

CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {}),
    (5, {"fp4": True}),
    (17, {"mx": True}),
    (33, {}),
    (49, {}),
    (65, {"normalized": True, "fp4": True, "pitch": 2304}),
    (97, {"normalized": True}),
    (129, {"pitch": 2304}),
)
LARGE: tuple[tuple[int, dict[str, Any]], ...] = (
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
    check("sm_100a", 192, batch, axes)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "axes"), LARGE, ids=str)
def test_every_byte_follows_from_the_declared_order_in_large_batches(batch: int, axes: dict[str, Any]) -> None:
    check("sm_100a", 192, batch, axes)


def test_sums_of_integers_are_those_of_float64() -> None:
    check_integers("sm_100a")


@pytest.mark.parametrize(("batch", "axes"), [(17, {"mx": True}), (129, {"pitch": 2304})], ids=str)
def test_no_schedule_changes_a_bit(batch: int, axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_schedules("sm_100a", batch, axes, monkeypatch)


@pytest.mark.parametrize(("batch", "axes"), [(33, {}), (129, {"pitch": 2304})], ids=str)
def test_no_access_to_shared_memory_is_left_unordered(batch: int, axes: dict[str, Any]) -> None:
    check_ordered("sm_100a", batch, axes)


def test_rows_of_zeros_and_of_large_norm_are_normalised_too() -> None:
    given = sample_front.inputs(8)
    rows = given["projected"]
    rows[1, : sample_front.RANK] = 0
    rows[2, : sample_front.RANK] *= 2.0**60
    rows[3, : sample_front.RANK] *= 2.0**-60
    rows[4, : sample_front.RANK] = -0.0
    device = equiv.device("emulated:sm_100a")
    got = sample_front.run(device, given)
    same(got, sample_front.expected(device, given))
    assert not got["q_out"][[1, 4]].view(np.uint8).any(), "codes of a row of zeros"


def test_a_row_has_the_same_bits_in_every_batch_of_a_tiling_and_others_across_tilings() -> None:
    device = equiv.device("emulated:sm_100a")
    given = sample_front.inputs(49)

    def first(batch: int) -> Any:
        names = ("projected", "slots", "q_out", "w_out")
        return sample_front.query(given | {name: given[name][:batch] for name in names}, "sm_100a")[:33]

    def run(batch: int) -> Any:
        names = ("projected", "slots", "q_out", "w_out")
        return sample_front.run(device, given | {name: given[name][:batch] for name in names})["q_out"][:33]

    np.testing.assert_array_equal(run(33), run(48))
    np.testing.assert_array_equal(first(33), first(48))
    assert 0 < (first(48) != first(49)).sum() < first(48).size // 100, "slices of K change between 48 and 49 rows"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 1025}, "batch must be 1 to 1024; got batch=1025"),
        ({"key": 1538}, "key must be a multiple of 4 columns, a lane loads that many at once; got key=1538"),
        ({"row_pitch": 1500}, "row_pitch must be 0, or a multiple of 8 from 1536; got row_pitch=1500"),
        ({"row_pitch": 1700}, "row_pitch must be 0, or a multiple of 8 from 1536; got row_pitch=1700"),
        ({"key_round": "f16"}, "key_round must be 'bf16' or 'f32'; got key_round='f16'"),
    ],
)
def test_arguments_that_the_kernel_cannot_take_are_refused(changed: dict[str, Any], message: str) -> None:
    arguments = {"batch": 16, "key": 1536, "weight": 1664} | changed
    with pytest.raises(UsageError, match=re.escape(message)):
        IndexFrontMma(**arguments)


def test_weights_of_another_shape_are_refused() -> None:
    given = sample_front.inputs(1)
    given["w_q"] = given["w_q"][:, :1024].contiguous()
    with pytest.raises(UsageError, match=re.escape("w_q must be [4096, 1536]; got (4096, 1024)")):
        dsa_front(**given, **sample_front.options(given))


def test_an_architecture_without_a_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = sample_front.inputs(1)
    monkeypatch.setattr("equiv.cute.dsa.front_host.architecture", lambda: "sm_80")
    with pytest.raises(UsageError, match="the front has no form for sm_80, only for sm_90a, sm_100a"):
        dsa_front(**given, **sample_front.options(given))


def test_batches_of_one_tiling_share_their_code() -> None:
    one, other = (IndexFrontMma(batch, 1536, 1664).variant for batch in (33, 48))
    assert one == other
    assert IndexFrontMma(49, 1536, 1664).variant != one
    assert IndexFrontMma(33, 1536, 1664, normalized=True).variant != one
