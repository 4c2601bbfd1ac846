"""The generator is pinned to published and stored numbers; each regime is shown to hold what its name says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from equiv import inputs as make
from equiv.inputs import Draws, Target
from equiv.rounding.formats import BF16, E2M1, E4M3, F32, decode, is_finite, is_nan

if TYPE_CHECKING:
    from equiv.records import Bits

FP8 = Target(E4M3, -42, 119, (1e-10, 1e-4))
FP4 = Target(E2M1, -126, 125, (6 * 2.0**-126,))
PINNED = ["0xd92c1a746c15ec7", "0xd69e1da06bee2a59", "0xe7346754c62f2ec8"]
CODES = {E4M3: ml_dtypes.float8_e4m3fn, E2M1: ml_dtypes.float4_e2m1fn}


def values(bits: Bits) -> np.ndarray:
    return decode(bits, BF16 if bits.dtype == np.uint16 else F32)


def magnitudes(bits: Bits) -> np.ndarray:
    return (bits & (0x7FFF if bits.dtype == np.uint16 else 0x7FFFFFFF)).astype(np.int64)


def test_numpy_philox_gives_the_published_known_answer_of_philox4x64_10() -> None:
    last_counter = np.full(4, 2**64 - 1, dtype=np.uint64)
    block = np.random.Philox(counter=last_counter, key=np.zeros(2, dtype=np.uint64)).random_raw(4)
    assert [f"{int(word):016x}" for word in block] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]


def test_the_numbers_of_a_seed_and_name_never_change() -> None:
    assert [hex(word) for word in Draws(17, "q").words("value", (3,)).tolist()] == PINNED


def test_a_larger_shape_starts_with_the_numbers_of_a_smaller_one() -> None:
    draws = Draws(5, "q")
    np.testing.assert_array_equal(draws.words("x", (9, 4))[:2], draws.words("x", (2, 4)))


def test_seed_name_and_purpose_each_give_another_stream() -> None:
    streams = [Draws(1, "q").words("x", (4,)), Draws(2, "q").words("x", (4,)), Draws(1, "k").words("x", (4,))]
    streams.append(Draws(1, "q").words("y", (4,)))
    assert len({tuple(stream.tolist()) for stream in streams}) == 4


def test_bell_has_mean_zero_and_the_stated_deviation() -> None:
    bell = Draws(3, "q").bell("x", (200, 500))
    assert abs(bell.mean()) < 0.02
    assert abs(bell.std() - 1.1547) < 0.01
    assert np.abs(bell).max() <= 4


def test_exact_bf16_names_the_value_it_cannot_hold() -> None:
    assert make.exact_bf16([1.0, -0.0, 448 * 2.0**119]).tolist() == [0x3F80, 0x8000, 0x7F60]
    with pytest.raises(ValueError, match=r"not a BF16 value: .*1\.001953125"):
        make.exact_bf16([1.0, 1.001953125])
    with pytest.raises(ValueError, match=r"not an FP32 value: .*0\.1"):
        make.exact_f32([0.1])


@pytest.mark.parametrize("value", [1e-10, -1e-10, 5.3e-5, 1.0, -3.0000001])
def test_truncated_is_the_nearest_value_toward_zero(value: float) -> None:
    for fmt in (BF16, F32):
        bits = make.truncated(np.array([value]), fmt)
        assert abs(values(bits)[0]) <= abs(value) < abs(values(bits + fmt.dtype.type(1))[0])


@pytest.mark.parametrize("target", [FP8, FP4], ids=["e4m3", "e2m1"])
@pytest.mark.parametrize("fmt", [BF16, F32], ids=["bf16", "f32"])
def test_midpoints_are_ties_of_the_code_after_the_scale(target: Target, fmt: object) -> None:
    width = 128 if target is FP8 else 32
    bits = make.midpoints(Draws(9, "q"), (64, width), target, F32 if fmt is F32 else BF16)
    real = values(bits)
    amax = np.abs(real).max(axis=1, keepdims=True)
    scale = 2.0 ** np.ceil(np.log2(amax / target.top))
    assert np.all((amax / scale > target.top / 2) & (amax / scale <= target.top))
    quotient = np.abs(real / scale)
    exact = np.isin(quotient, target.midpoints)
    code = CODES[target.format]
    low = (quotient[exact] * (1 - 2.0**-20)).astype(code).view(np.uint8)
    high = (quotient[exact] * (1 + 2.0**-20)).astype(code).view(np.uint8)
    np.testing.assert_array_equal(high - low, 1)
    assert set(quotient[exact].tolist()) == set(target.midpoints.tolist())
    assert set(np.signbit(real[exact]).tolist()) == {True, False}
    assert 0.15 < exact.mean() < 0.4


@pytest.mark.parametrize("target", [FP8, FP4], ids=["e4m3", "e2m1"])
def test_midpoints_come_with_both_bf16_neighbours(target: Target) -> None:
    bits = make.midpoints(Draws(9, "q"), (64, 128), target)
    real = values(bits)
    scale = 2.0 ** np.ceil(np.log2(np.abs(real).max(axis=1, keepdims=True) / target.top))
    for step in (-1, 1):
        beside = values((bits.astype(np.int64) + step).astype(np.uint16))
        assert set(target.midpoints.tolist()) <= set(np.abs(beside / scale).ravel().tolist())


@pytest.mark.parametrize(("target", "width"), [(FP8, 128), (FP4, 32)], ids=["e4m3", "e2m1"])
def test_amax_edges_hold_every_power_and_both_neighbours(target: Target, width: int) -> None:
    exponents = range(target.low, target.high + 1)
    bits = make.amax_edges(Draws(2, "q"), (3 * len(exponents), width), target)
    amax = magnitudes(bits).max(axis=1)
    edges = {
        int(make.exact_bf16([target.top * 2.0**exponent])[0]) + step for exponent in exponents for step in (-1, 0, 1)
    }
    assert sorted(amax.tolist()) == sorted(edges)


def test_floors_straddle_each_floor() -> None:
    bits = make.floors(Draws(2, "q"), (10, 128), FP8)
    amax = sorted(np.abs(values(bits)).max(axis=1).tolist())
    assert sum(value < 1e-10 for value in amax) == 3
    assert sum(1e-10 < value < 2e-10 for value in amax) == 2
    assert sum(9e-5 < value < 1e-4 for value in amax) == 3
    assert sum(value > 1e-4 for value in amax) == 2


def test_finite_bits_have_no_nan_and_any_bits_have_some() -> None:
    draws = Draws(1, "q")
    assert bool(is_finite(make.finite_bits(draws, (300, 128)), BF16).all())
    assert 100 < int(is_nan(make.any_bits(draws, (300, 128)), BF16).sum()) < 600


def test_zero_groups_are_plus_zero_and_minus_zero_by_turns() -> None:
    bits = make.zero_groups(Draws(1, "q"), (9, 8))
    assert [set(row.tolist()) for row in bits[::3]] == [{0}, {0x8000}, {0}]
    assert np.all(magnitudes(bits[1::3]).max(axis=1) > 0)


def test_poisoned_groups_hold_exactly_one_pattern_each() -> None:
    bits = make.poisoned(Draws(1, "q"), (31, 32), make.NAN_BF16)
    counts = is_nan(bits, BF16).sum(axis=1)
    assert counts.tolist() == [int(row % 3 == 1) for row in range(31)]
    assert set(bits[is_nan(bits, BF16)].tolist()) == set(make.NAN_BF16)
    assert bool(is_nan(make.poisoned(Draws(1, "q"), (1, 32), (0x7FC0,)), BF16).any())


def test_constant_rows_and_large_means_have_the_variance_they_claim() -> None:
    assert np.all(np.ptp(make.constant(Draws(1, "k"), (5, 128)), axis=1) == 0)
    real = values(make.large_mean(Draws(1, "k"), (40, 128)))
    ratio = np.abs(real.mean(axis=1)) / real.std(axis=1)
    assert ratio.min() > 50


def test_cancelling_rows_sum_to_nearly_nothing() -> None:
    real = values(make.cancelling(Draws(1, "k"), (40, 128)))
    assert np.all(np.abs(real.sum(axis=1)) < 2.0**-6 * np.abs(real).sum(axis=1))
    assert np.all(np.abs(real.sum(axis=1)) > 0)


def test_subnormals_one_hot_and_specials_are_what_they_are_called() -> None:
    draws = Draws(1, "q")
    assert magnitudes(make.subnormals(draws, (20, 128))).max() == 127
    assert np.all((make.one_hot(draws, (20, 128)) != 0).sum(axis=1) == 1)
    assert set(make.specials(draws, (2, 9)).ravel().tolist()) == {
        code | sign for code in (0, 1, 0x7F, 0x80, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81, 0x3F80) for sign in (0, 0x8000)
    }


def test_wide_covers_all_exponents_it_names_and_no_other() -> None:
    exponents = magnitudes(make.wide(Draws(1, "q"), (40, 128), low=-3, high=4)) >> 7
    assert sorted(set(exponents.ravel().tolist())) == list(range(124, 132))
