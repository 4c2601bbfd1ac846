"""The envelope of `dsa_index` holds what declared orders give, and nothing that no order explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from dsa_cases import CHAIN, FUSED, STOCK, WARP, bf16, case, inputs

from equiv.envelope import depth
from equiv.envelope import dsa as envelope
from equiv.envelope.dsa import dsa_envelope
from equiv.rounding import arithmetic as fp
from equiv.rounding import dsa
from equiv.rounding.declaration import Declaration
from equiv.rounding.dsa_ledger import LEDGER
from equiv.rounding.intervals import Interval, gamma, squares_about_mean, sum_of
from equiv.rounding.orders import Order, chain, leaves

if TYPE_CHECKING:
    from equiv.records import Bits, Case

CASES = [
    case(batch=40),
    case(batch=40, scale="mx"),
    case(batch=40, key_round="f32", key_floor=1e-10),
    case(batch=40, format="fp4"),
    case(batch=40, format="fp4", key_round="f32"),
]
BOTH = (STOCK, FUSED)
NAMES = ("key_codes", "key_scale")


def judged(
    one: Case, data: dict[str, Bits], outputs: dict[str, Bits], parties: tuple[Declaration | None, ...] = BOTH
) -> tuple[np.ndarray, np.ndarray, float]:
    found = dsa_envelope(one, data, parties).judge({"weights": dsa.model(one, data, FUSED)["weights"], **outputs})
    assert set(found) == {"weights", *NAMES}
    for name in NAMES:
        assert found[name][0].shape == outputs[name].shape
    return found["key_codes"][0], found["key_scale"][0], max(found[name][1] for name in NAMES)


def label(one: Case) -> str:
    return "-".join(str(one.axes[name]) for name in ("format", "scale", "key_round"))


def wide_inputs(one: Case, seed: int) -> dict[str, Bits]:
    """Keys of very different size, mean and spread, a constant one and one of zeros."""
    data = inputs(one, seed)
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((40, 128)) * 2.0 ** rng.integers(-20, 20, (40, 1)) + rng.integers(-300, 300, (40, 1))
    keys[3], keys[4], keys[5] = 7.5, 0.0, -0.0
    data["projected"][:, :128] = bf16(keys)
    data["norm_b"][::2] = fp.bits_of(0.0)
    return data


@pytest.mark.parametrize("one", CASES, ids=label)
def test_results_of_declared_and_shallower_orders_are_inside(one: Case) -> None:
    random_tree = Order.of(128, chain(leaves(np.random.default_rng(1).permutation(128).tolist())))
    third = Declaration("x", {}, "sm_90a", {"key.sum": random_tree, "key.squares": WARP}, {"dsa.K2b": "mul_add"})
    for seed in range(3):
        data = wide_inputs(one, seed)
        for party in (*BOTH, third):
            codes, scales, share = judged(one, data, dsa.model(one, data, party), (*BOTH, third))
            assert codes.all()
            assert scales.all()
            assert share <= 0.25


@pytest.mark.parametrize("one", CASES, ids=label)
def test_a_code_off_by_one_is_outside_unless_the_interval_straddles_a_boundary(one: Case) -> None:
    data = inputs(one, 3)
    outputs = dsa.model(one, data, FUSED)
    for change in (np.uint8(1), np.uint8(0x2)):
        moved = {**outputs, "key_codes": outputs["key_codes"] ^ change}
        codes, scales, share = judged(one, data, moved)
        assert codes.mean() < 0.002
        assert scales.all()
        assert share == 1.0


@pytest.mark.parametrize("one", CASES, ids=label)
def test_one_wrong_code_is_the_only_element_outside(one: Case) -> None:
    data = inputs(one, 4)
    outputs = dsa.model(one, data, STOCK)
    outputs["key_codes"] = outputs["key_codes"].copy()
    outputs["key_codes"][2, 17] ^= 1
    codes, scales, _ = judged(one, data, outputs)
    assert np.argwhere(~codes).tolist() == [[2, 17]]
    assert scales.all()


@pytest.mark.parametrize("one", CASES, ids=label)
def test_a_doubled_scale_with_matching_codes_is_outside_where_no_order_explains_it(one: Case) -> None:
    data = inputs(one, 5)
    outputs = dsa.model(one, data, FUSED)
    step = np.uint32(1 << 23) if outputs["key_scale"].dtype == np.uint32 else np.uint8(1)
    outputs["key_scale"] = outputs["key_scale"] + step
    codes, scales, _ = judged(one, data, outputs)
    assert not scales.any()
    assert codes.all()  # they are what the allowed scale explains


def test_scale_that_is_no_power_of_two_or_differs_among_its_copies_is_outside() -> None:
    plain, mx = CASES[0], CASES[1]
    data = inputs(plain, 6)
    outputs = dsa.model(plain, data, FUSED)
    outputs["key_scale"] = outputs["key_scale"] | np.uint32(1)
    assert not judged(plain, data, outputs)[1].any()
    outputs = dsa.model(mx, data, FUSED)
    outputs["key_scale"][1, 2] += 1
    assert np.argwhere(~judged(mx, data, outputs)[1][:, 0]).tolist() == [[1]]


def straddling(side: int) -> tuple[Case, dict[str, Bits], dict[str, Bits]]:
    """A key whose largest value is 448 * 2^k give or take an ulp, and its outputs with a channel on one side."""
    one = case(batch=1, key_round="f32")
    data = inputs(one, 9)
    data["norm_w"] = fp.bits_of(np.ones(128))
    data["norm_b"] = fp.bits_of(np.zeros(128))
    shape = dsa.Shape.of(one)
    middle = envelope.normalised_keys(shape, data, BOTH)
    top = int(np.argmax(fp.floats(middle.high[0])))
    goal = 2.0 ** np.ceil(np.log2(fp.floats(middle.high)[0, top] / 448)) * 448
    weight = goal / float(fp.floats(middle.low)[0, top]) * (1 + side * 2.0**-21)
    data["norm_w"][top] = fp.bits_of(weight)
    return one, data, dsa.model(one, data, FUSED)


def test_both_scales_are_allowed_where_the_interval_straddles_the_power_and_each_with_its_own_codes() -> None:
    one, data, outputs = straddling(0)
    codes, scales, _ = judged(one, data, outputs)
    assert codes.all()
    assert scales.all()
    allowed = dsa_envelope(one, data, BOTH)
    y = allowed.keys.y
    ends = [dsa.quantise_key(dsa.Shape.of(one), end, dsa.runner(FUSED)) for end in (y.low, y.high)]
    assert ends[0]["key_scale"] * 1 != ends[1]["key_scale"]
    for end in ends:
        codes, scales, _ = judged(one, data, end)
        assert codes.all()
        assert scales.all()
    mixed = {"key_codes": ends[0]["key_codes"], "key_scale": ends[1]["key_scale"]}
    codes, scales, _ = judged(one, data, mixed)
    assert scales.all()
    assert not codes.all()


def test_away_from_the_power_only_one_scale_is_allowed() -> None:
    one, data, outputs = straddling(64)
    assert judged(one, data, outputs)[1].all()
    outputs["key_scale"] = outputs["key_scale"] - np.uint32(1 << 23)
    assert not judged(one, data, outputs)[1].any()


def test_stock_log2_allows_the_halved_scale_only_where_it_is_declared() -> None:
    one = case(batch=1, key_round="f32")
    data = inputs(one, 1)
    data["projected"][:, :128] = bf16(1.0)  # constant: y is the bias
    data["norm_b"] = fp.bits_of(np.zeros(128))
    data["norm_b"][0] = fp.bits_of(448 * 2.0**40) + np.uint32(2)
    stock, fused = (dsa.model(one, data, party) for party in BOTH)
    assert stock["key_scale"] + np.uint32(1 << 23) == fused["key_scale"]
    for outputs in (stock, fused):
        codes, scales, _ = judged(one, data, outputs)
        assert codes.all()
        assert scales.all()
    assert not judged(one, data, stock, (FUSED, FUSED))[1].any()
    assert judged(one, data, stock, (None, FUSED))[1].all()


def test_an_unknown_party_may_use_any_order_and_widens_the_envelope() -> None:
    declared = depth(BOTH, "key.sum", 128, products=False)
    assert declared == CHAIN.roundings(products=False) == 127
    assert depth((FUSED, FUSED), "key.sum", 128, products=False) == 7
    assert depth((FUSED, None), "key.sum", 128, products=False) == 127
    assert depth((FUSED, None), "key.squares", 128, products=True) == 128
    assert len(envelope.steps((FUSED, None), "dsa.K3b")) == len(LEDGER["dsa.K3b"].names) == 2
    data = inputs(CASES[2], 8)
    shape = dsa.Shape.of(CASES[2])
    narrow, wide = (envelope.normalised_keys(shape, data, parties) for parties in ((FUSED, FUSED), (None, FUSED)))
    assert np.all(fp.floats(wide.low) <= fp.floats(narrow.low))
    assert np.all(fp.floats(wide.high) >= fp.floats(narrow.high))
    width = np.mean(fp.floats(narrow.high) - fp.floats(narrow.low))
    assert 1e-7 < width < 1e-5


def test_undefined_tokens_accept_anything_and_those_of_unbounded_y_nothing() -> None:
    one = CASES[0]
    data = inputs(one, 2)
    data["projected"][0, 5] = 0x7FC0  # NaN: undefined by the contract
    data["projected"][1, :128] = bf16(3e38)  # finite, but its sum overflows: undefined as well
    outputs = dsa.model(one, data, FUSED)
    outputs["key_codes"] = np.roll(outputs["key_codes"], 1, axis=1)
    outputs["key_codes"][2:] = dsa.model(one, data, FUSED)["key_codes"][2:]
    codes, scales, share = judged(one, data, outputs)
    assert codes.all()
    assert scales.all()
    assert share <= 0.25
    key = envelope.KeyEnvelope(
        dsa.Shape.of(one), BOTH, envelope.normalised_keys(dsa.Shape.of(one), data, BOTH), ~codes[:, 0]
    )
    codes, _ = key.judge(outputs)["key_codes"]
    assert np.argwhere(~codes.any(axis=1)).ravel().tolist() == [0, 1]


@pytest.mark.parametrize("one", CASES, ids=label)
def test_rows_whose_squares_overflow_or_may_are_inside_and_defined(one: Case) -> None:
    data = inputs(one, 12)
    rng = np.random.default_rng(12)
    sizes = np.resize([57, 58, 59, 60, 60.25, 60.5, 60.75, 61, 62, 64, 80, 100, 118, 120], (40, 1))
    data["projected"][:, :128] = bf16(rng.standard_normal((40, 128)) * 2.0**sizes)
    assert not dsa.undefined(one, data)["key_codes"].any()
    stock, fused = (dsa.model(one, data, party) for party in BOTH)
    for outputs in (stock, fused):
        codes, scales, _ = judged(one, data, outputs)
        assert codes.all()
        assert scales.all()
    bias = dsa.model(one, {**data, "norm_w": np.zeros(128, dtype=np.uint32)}, FUSED)["key_codes"]
    only_bias = (fused["key_codes"] == bias).all(axis=1)
    assert 0 < int(only_bias.sum()) < 40


def test_no_token_gives_empty_masks() -> None:
    for one in (CASES[0], CASES[3]):
        data = inputs(one, 2)
        data["slots"] = np.full(40, -1, dtype=np.int64).view(np.uint64)
        codes, scales, share = judged(one, data, dsa.model(one, data, FUSED))
        assert codes.size == scales.size == 0
        assert share == 0.0


def test_bounds_of_sums_hold_for_every_order_tried_and_are_of_its_size() -> None:
    rng = np.random.default_rng(3)
    x = bf16(rng.standard_normal((200, 128)) * 2.0 ** rng.integers(-6, 6, (200, 128)))
    wide = LEDGER["dsa.R10a"].steps["shift"](x)
    for order in (WARP, CHAIN):
        depth = order.roundings(products=False)
        interval, half = sum_of(wide, depth)
        total = fp.floats(order.sum(wide)[:, 0])
        assert np.all((fp.floats(interval.low) <= total) & (total <= fp.floats(interval.high)))
        assert np.allclose(half, gamma(depth) * np.abs(fp.floats(wide).astype(float)).sum(axis=1), rtol=1e-6)
        mean = fp.mul(order.sum(wide), fp.bits_of(2.0**-7))
        d = fp.sub(wide, mean)
        squares = squares_about_mean(wide, half / 128, order.roundings(products=True))
        found = fp.floats(order.dot(d, d)[:, 0])
        assert np.all((fp.floats(squares.low) <= found) & (found <= fp.floats(squares.high)))
    assert gamma(7) == pytest.approx(7 * 2.0**-24, rel=1e-6)


def test_magnitudes_of_an_interval_through_zero_start_at_zero() -> None:
    interval = Interval(fp.bits_of([-2.0, -3.0, 1.0]), fp.bits_of([1.0, -1.0, 2.0]))
    assert fp.floats(interval.magnitude().low).tolist() == [0.0, 1.0, 1.0]
    assert fp.floats(interval.magnitude().high).tolist() == [2.0, 3.0, 2.0]
    assert fp.floats(interval.shrunk(0.5).low).tolist() == [-1.25, -2.5, 1.25]
    assert (
        interval.shrunk(0.0).low.tolist() == interval.shrunk(0.0).high.tolist() == fp.bits_of([-0.5, -2, 1.5]).tolist()
    )


def every_weight(one: Case) -> dict[str, Bits]:
    """All 65536 BF16 patterns as head weights of all-zero heads."""
    data = inputs(one)
    data["projected"][:, 128:160] = np.arange(65536, dtype=np.uint16).reshape(2048, 32)
    data["q"] = np.broadcast_to(np.uint16(0), data["q"].shape)
    data["slots"] = np.full(2048, -1, dtype=np.int64).view(np.uint64)
    return data


@pytest.mark.parametrize(("one", "first"), [(case(batch=2048), 0x184F), (case(batch=2048, format="fp4"), 0x34F)])
def test_two_weights_are_allowed_for_six_patterns_of_all_and_one_for_the_others(one: Case, first: int) -> None:
    data = every_weight(one)
    allowed = envelope.folded_weights(dsa.Shape.of(one), data, BOTH)
    spread = np.flatnonzero((allowed.allowed != allowed.allowed[0]).any(axis=0))
    edges = np.array([first, first + 0x14, first + 0x28])
    np.testing.assert_array_equal(spread, np.concatenate([edges, edges | 0x8000]))
    stock, fused = (dsa.model(one, data, party)["weights"] for party in BOTH)
    assert (stock.ravel()[first], fused.ravel()[first]) == (0x67, 0x68)
    for weights in (stock, fused):
        inside, share = allowed.judge(weights)
        assert inside.all()
        assert share == 1.0
        for change in (1, 2, 0x8000):
            moved = allowed.judge(weights ^ np.uint16(change))[0].ravel()
            assert not np.delete(moved, spread).any()
    np.testing.assert_array_equal(allowed.judge(stock + np.uint16(2))[0].ravel()[spread], False)


def test_one_declared_product_allows_one_weight_and_an_unknown_party_every_product() -> None:
    one = case(batch=2048)
    data = every_weight(one)
    shape = dsa.Shape.of(one)
    stock, fused = (dsa.model(one, data, party)["weights"] for party in BOTH)
    alone = envelope.folded_weights(shape, data, (FUSED, FUSED))
    assert alone.judge(fused)[1] == 0.0
    assert alone.judge(fused)[0].all()
    assert int((~alone.judge(stock)[0]).sum()) == 6
    assert envelope.folded_weights(shape, data, (None, FUSED)).judge(stock)[0].all()
