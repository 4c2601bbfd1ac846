"""The inputs of `dsa_index`: slots do what their names say, pieces lie in their columns, and nothing loads torch."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.dsa_index import PAIR, aimed
from equiv.dsa_index.regimes import FP4, FP8, REGIMES
from equiv.records import Case
from equiv.rounding.formats import F32, decode

if TYPE_CHECKING:
    import numpy.typing as npt


FAR: dict[str, Any] = {"pages": 10, "page_stride": 1 << 29}


def case(regimes: dict[str, str] | None = None, seed: int = 3, **axes: Any) -> Case:
    return Case("dsa_index", "x", "w", seed, ("pr",), axes, regimes or {})


def slots(name: str, batch: int, **axes: Any) -> npt.NDArray[np.int64]:
    return PAIR.inputs(case({"slots": name}, batch=batch, **axes))["slots"].view(np.int64)


def test_the_pair_and_its_inputs_load_neither_torch_nor_a_compiler() -> None:
    code = (
        "import sys; from equiv import pairs, casefile; p = pairs.get('dsa_index');"
        "[p.inputs(c) for c in casefile.load_all(pair_names=[p.name])[:3]];"
        "assert not {'torch', 'triton', 'cutlass'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", REGIMES["slots"])
@pytest.mark.parametrize("batch", [1, 2, 17, 64, 65, 129])
def test_no_slot_is_used_twice_and_all_lie_in_the_cache(name: str, batch: int) -> None:
    axes = FAR if name == "far_pages" else {}
    found = slots(name, batch, **axes)
    pages = {spec.name: spec for spec in PAIR.layout(case(batch=batch, **axes))}["cache"].shape[0]
    kept = found[found >= 0]
    assert len(found) == batch
    assert len(set(kept.tolist())) == len(kept)
    assert kept.max(initial=0) < 64 * pages


@pytest.mark.parametrize(
    ("name", "negative"),
    [
        ("permuted", []),
        ("skip_first", [0]),
        ("skip_last", [8]),
        ("skip_even", [0, 2, 4, 6, 8]),
        ("skip_odd", [1, 3, 5, 7]),
        ("skip_most", [0, 1, 2, 4, 5, 6, 7, 8]),
        ("skip_all", list(range(9))),
    ],
)
def test_negative_slots_are_where_the_name_says_and_spare_the_last_slot(name: str, negative: list[int]) -> None:
    found = slots(name, 9)
    assert np.flatnonzero(found < 0).tolist() == negative
    assert 127 not in found


def test_permuted_slots_never_take_the_last_one_even_when_all_others_are_used() -> None:
    assert sorted(slots("permuted", 127, pages=2).tolist()) == list(range(127))


def test_negative_slots_are_of_many_kinds() -> None:
    assert {-1, -64, -65, -(1 << 63), -(1 << 32)} <= set(slots("skip_all", 9).tolist())


def test_page_edges_put_the_last_of_a_page_beside_the_first_of_the_next() -> None:
    assert slots("page_edges", 9, pages=4).tolist() == [63, 64, 127, 128, 191, 192, 255, 0, 1]


def test_far_pages_reach_beyond_2_to_32_and_onto_their_image_in_32_bits() -> None:
    found = slots("far_pages", 18, **FAR)
    starts = {int(slot) // 64 * (1 << 29) for slot in found}
    assert {0, 1 << 31, 1 << 32} <= starts
    at_zero = {int(slot) % 64 for slot in found if slot // 64 == 0}
    assert at_zero == {int(slot) % 64 for slot in found if slot // 64 == 8}


def test_in_order_and_reversed_are_the_ends_of_the_cache() -> None:
    assert slots("in_order", 3).tolist() == [0, 1, 2]
    assert slots("reversed", 3).tolist() == [127, 126, 125]


def test_pieces_lie_in_their_columns_and_the_others_are_arbitrary_bits() -> None:
    inputs = PAIR.inputs(case({"key": "zero", "head_weights": "specials"}, batch=4, rows="packed"))
    row = inputs["projected"]
    assert not row[:, 2112:2240].any()
    assert set(np.unique(row[:, 2240:2272] & 0x7FFF).tolist()) == {
        0,
        1,
        0x7F,
        0x80,
        0x7F7F,
        0x7F80,
        0x7FC0,
        0x7F81,
        0x3F80,
    }
    assert len(np.unique(row[:, :2112])) > 4000


def test_a_larger_batch_keeps_the_rows_of_a_smaller_one() -> None:
    small, large = PAIR.inputs(case({"q": "midpoints"}, batch=3)), PAIR.inputs(case({"q": "midpoints"}, batch=30))
    np.testing.assert_array_equal(small["q"], large["q"][:3])
    np.testing.assert_array_equal(small["projected"][:, :160], large["projected"][:3])


def test_another_seed_changes_every_random_piece() -> None:
    first, second = PAIR.inputs(case()), PAIR.inputs(case(seed=4))
    assert all(not np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ["q", "key", "head_weights", "norm_w", "norm_b", "cache"])
@pytest.mark.parametrize("format_name", ["fp8", "fp4"])
def test_every_regime_fills_its_tensor_with_the_declared_shape_and_type(name: str, format_name: str) -> None:
    for regime in REGIMES[name]:
        wanted = case({name: regime}, batch=5, format=format_name, scale="mx")
        assert PAIR.check(wanted) == []
        inputs = PAIR.inputs(wanted)
        for spec in PAIR.layout(wanted):
            if spec.role != "output":
                assert inputs[spec.name].shape == spec.shape
                assert inputs[spec.name].dtype.itemsize == {"bf16": 2, "f32": 4, "u8": 1, "i64": 8}[spec.format]


def test_pow2_edges_lie_a_few_fp32_ulps_over_the_largest_value_times_a_power() -> None:
    for seed in range(20):
        bias = PAIR.inputs(case({"norm_b": "pow2_edges"}, seed=seed))["norm_b"] & 0x7FFFFFFF
        amax = int(bias.max())
        steps = amax & 0x7FFFFF
        assert 0x600000 < steps <= 0x600008
        assert 33 <= np.log2(decode(np.array([amax]), F32)[0] / 448).round() <= 63


@pytest.mark.parametrize("axes", [{}, {"key_round": "f32"}, {"format": "fp4", "scale": "mx"}])
def test_biases_aimed_at_tokens_bring_a_channel_of_each_to_a_midpoint(axes: dict[str, Any]) -> None:
    inputs = PAIR.inputs(case({"key": "mixed", "norm_b": "aimed_tokens"}, batch=16, **axes))
    keys = inputs["projected"][:, :128]
    y = np.stack([aimed.normalised(key, inputs["norm_w"], 1e-6) for key in keys]) + decode(inputs["norm_b"], F32)
    target, width = (FP4, 32) if axes.get("format") else (FP8, 128)
    amax = np.abs(y).reshape(16, -1, width).max(axis=2).repeat(width, axis=1)
    scaled = np.abs(y) / 2.0 ** np.ceil(np.log2(amax / target.top))
    mids = target.midpoints
    closest = mids[np.abs(scaled[..., None] - mids).argmin(axis=-1)]
    edge = 0.0 if axes.get("key_round") else 2.0 ** (np.floor(np.log2(closest)) - 8)
    beside = np.abs(np.abs(scaled - closest) - edge) / closest
    near = beside < 2.0**-20
    assert near.any(axis=1).mean() > 0.8, near.sum(axis=1)
    assert near.sum() > 60


def test_biases_aimed_at_tokens_are_zero_where_no_token_is_written() -> None:
    inputs = PAIR.inputs(case({"norm_b": "aimed_tokens", "slots": "skip_all"}, batch=3))
    assert not inputs["norm_b"].any()
