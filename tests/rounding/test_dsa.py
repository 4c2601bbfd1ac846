"""The model of `dsa_index`: worked examples of spec dsa 5, every row of its ledger, and what it leaves open."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from dsa_cases import FUSED, STOCK, bf16, case, inputs

from equiv.errors import RecordError, UsageError
from equiv.rounding import arithmetic as fp
from equiv.rounding import dsa, dsa_steps
from equiv.rounding.declaration import Declaration
from equiv.rounding.dsa_ledger import LEDGER
from equiv.rounding.formats import BF16, E4M3, F32, decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.records import Bits, Case
    from equiv.rounding.ledger import Ledger

FP8, FP4 = case(), case(format="fp4")
UNROUNDED = case(key_round="f32", key_floor=1e-10)
UNROUNDED_FP4 = case(key_round="f32", format="fp4")


def differ(a: dict[str, Bits], b: dict[str, Bits]) -> set[str]:
    return {name for name in a if not np.array_equal(a[name], b[name])}


def changed(one: Case, data: dict[str, Bits], declaration: Declaration, ledger: Ledger) -> set[str]:
    return differ(dsa.model(one, data, declaration), dsa.model(one, data, declaration, ledger))


def cancelling(declaration: Declaration, one: Case, seed: int, *, product: bool = False) -> dict[str, Bits]:
    """Inputs whose bias cancels the normalised key of request 0 exactly, so that any other bit upstream shows.

    With `product` the bias cancels the rounded product with random weights: a fused affine leaves its remainder.
    """
    data = inputs(one, seed)
    weights = data["norm_w"] if product else fp.bits_of(np.ones(128))
    zero = {**data, "norm_w": weights, "norm_b": fp.bits_of(np.zeros(128))}
    plain = Declaration("x", {}, "sm_90a", declaration.orders, {**declaration.variants, "dsa.K2b": "mul_add"})
    x = dsa_steps.WIDEN["shift"](data["projected"][:1, :128])
    y = dsa.normalise(dsa.Shape.of(UNROUNDED), zero, x, plain, dsa.runner(plain))
    return {**zero, "norm_b": fp.negate(y[0])}


def subnormal_weights() -> dict[str, Bits]:
    """Head weights whose folded product is a BF16 subnormal, ties among them."""
    data = inputs(FP8)
    data["projected"][:, 128:160] = (48 << 7) + np.arange(4 * 32, dtype=np.uint16).reshape(4, 32)  # 2^-79
    data["q"] = bf16(np.zeros((4, 32, 128)))
    return data


def random_inputs(one: Case) -> Callable[[int], dict[str, Bits]]:
    return lambda seed: inputs(one, seed)


MATTERS: dict[str, tuple[Case, Declaration, Callable[[int], dict[str, Bits]]]] = {
    "dsa.R14": (FP8, FUSED, random_inputs(FP8)),
    "dsa.R15b": (FP8, STOCK, random_inputs(FP8)),
    "dsa.F2b": (FP4, FUSED, random_inputs(FP4)),
    "dsa.F3b": (FP4, STOCK, random_inputs(FP4)),
    **{
        row: (UNROUNDED, FUSED, lambda seed: cancelling(FUSED, UNROUNDED, seed))
        for row in ("dsa.K1a", "dsa.K1b", "dsa.K1c", "dsa.K1d", "dsa.K1e", "dsa.K2a")
    },
    "dsa.K2c": (FP8, FUSED, random_inputs(FP8)),
    "dsa.K3d": (FP8, FUSED, random_inputs(FP8)),
    "dsa.K4c": (FP4, FUSED, random_inputs(FP4)),
}


def test_every_rounding_row_is_tried() -> None:
    assert set(MATTERS) == {row.id for row in LEDGER if row.kind == "rounding"}


@pytest.mark.parametrize("row", MATTERS)
def test_switching_off_a_rounding_row_changes_bits(row: str) -> None:
    one, declaration, make = MATTERS[row]
    expected = "weights" if row in {"dsa.R15b", "dsa.F3b"} else "q_codes" if row[4] in "RF" else "key_codes"
    found = [changed(one, make(seed), declaration, LEDGER.without(row)) for seed in range(12)]
    assert any(expected in names for names in found)


def test_rounding_the_weight_matters_to_the_candidate_among_bf16_subnormals() -> None:
    assert changed(FP8, subnormal_weights(), FUSED, LEDGER.without("dsa.R15b")) == {"weights"}


@pytest.mark.parametrize("row", [row.id for row in LEDGER if row.kind == "exact"])
def test_no_step_of_an_exact_row_changes_a_bit(row: str) -> None:
    edges = np.array([0x7F7F, 0x0001, 0x8000, 0x0080, 0x43E0, 0x43E1, 0x43DF, 0x40C0, 0x40C1, 0x2EDB, 0x2EDC, 0x38D1])
    for one in (FP8, FP4, UNROUNDED, UNROUNDED_FP4):
        data = inputs(one, 5)
        data["q"][:3, :, ::9] = np.resize(edges, data["q"][:3, :, ::9].shape)
        data["q"][3] = np.random.default_rng(6).integers(0, 0x7F80, (32, 128), dtype=np.uint16)
        data["q"][0, 0] = 0
        for declaration in (FUSED, STOCK):
            for step in LEDGER[row].steps:
                assert changed(one, data, declaration, LEDGER.replace(row, step)) == set(), step


def test_scale_of_every_bf16_maximum_is_the_same_in_all_variants() -> None:
    amax = np.maximum(np.arange(0x7F80, dtype=np.uint32) << np.uint32(16), dsa.QUERY_FLOOR)
    scales = [power(ratio(amax)) for power in dsa_steps.POWER.values() for ratio in dsa_steps.RATIO.values()]
    assert all(np.array_equal(scales[0], other) for other in scales[1:])
    ratio = decode(amax, F32) / decode(scales[0], F32)
    assert np.all((ratio > 224) & (ratio <= 448))
    blocks = np.maximum(np.arange(0x7F80, dtype=np.uint32) << np.uint32(16), dsa.MX_FLOOR)
    exponents = [step(blocks) for step in dsa_steps.EXPONENT.values()]
    assert np.array_equal(exponents[0], exponents[1])
    ratio = decode(blocks, F32) / 2.0 ** exponents[0]
    assert np.all((ratio > 3) & (ratio <= 6))


def just_above(limit: float) -> fp.U32:
    """Float32 numbers from 1 to 30 ulps above limit * 2^40."""
    return np.asarray(fp.bits_of(limit * 2.0**40) + np.arange(1, 31), dtype=np.uint32)


@pytest.mark.parametrize(("row", "value"), [("dsa.K3b", 448.0), ("dsa.K3a", 448.0), ("dsa.K4a", 6.0)], ids=str)
def test_variant_rows_of_the_key_scale_differ_just_above_a_power_of_two(row: str, value: float) -> None:
    one = UNROUNDED_FP4 if row == "dsa.K4a" else UNROUNDED
    shape = dsa.Shape.of(one)
    y = np.zeros((30, 128), dtype=np.uint32)
    y[:, 0] = just_above(value)
    first, second = (
        dsa.quantise_key(shape, y, dsa.runner(STOCK, LEDGER.replace(row, name))) for name in LEDGER[row].names
    )
    assert differ(first, second) == {"key_codes", "key_scale"}


def test_variant_rows_of_weight_and_affine_differ() -> None:
    assert "weights" in changed(FP8, subnormal_weights(), FUSED, LEDGER.replace("dsa.R15a", "two_constants"))
    data = inputs(FP4)
    data["projected"][:, 128:160] = (6 << 7) + np.arange(4 * 32, dtype=np.uint16).reshape(4, 32)  # 2^-121
    assert changed(FP4, data, FUSED, LEDGER.replace("dsa.F3a", "two_constants")) == {"weights"}
    cancelled = cancelling(FUSED, UNROUNDED, 1, product=True)
    assert "key_codes" in changed(UNROUNDED, cancelled, FUSED, LEDGER.without("dsa.K2b"))


def test_another_order_changes_bits_that_cancellation_exposes() -> None:
    other = Declaration("x", {}, "sm_90a", STOCK.orders, FUSED.variants)
    cases = [cancelling(FUSED, UNROUNDED, seed) for seed in range(6)]
    found = [differ(dsa.model(UNROUNDED, data, FUSED), dsa.model(UNROUNDED, data, other)) for data in cases]
    assert {"key_codes", "key_scale"} in found


def test_a_zero_head_has_the_floor_of_its_scale_in_the_weight() -> None:
    data = inputs(FP8)
    data["q"][0, 0] = 0
    data["q"][0, 1] = 0x8000
    data["projected"][0, 128:130] = bf16([1.0, -3.0])
    found = dsa.model(FP8, data, FUSED)
    assert set(found["q_codes"][0, 0]) == {0}
    assert set(found["q_codes"][0, 1]) == {0x80}
    assert found["weights"][0, :2].tolist() == bf16([2.0**-48, -3 * 2.0**-48]).tolist()
    block = dsa.model(FP4, {**inputs(FP4), "q": data["q"]}, FUSED)
    assert block["q_scale"][0, 0].tolist() == [1] * 4
    assert set(block["q_codes"][0, 1]) == {8}


def test_the_largest_magnitude_gets_the_top_code_at_448_and_the_next_scale_above() -> None:
    data = inputs(FP8)
    data["q"][:] = 0
    data["q"][0, :3, 5] = [0x43E0, 0x43E1, 0x43DF]  # 448, 450, 446
    data["projected"][0, 128:131] = bf16([1.0] * 3)
    found = dsa.model(FP8, data, STOCK)
    assert found["q_codes"][0, :3, 5].tolist() == [0x7E, 0x76, 0x7E]
    assert found["weights"][0, :3].tolist() == bf16([2.0**-6, 2.0**-5, 2.0**-6]).tolist()


def test_a_constant_key_row_gives_its_bias() -> None:
    data = inputs(FP8)
    data["projected"][:, :128] = bf16(3.0)
    found = dsa.model(FP8, data, FUSED)
    bias = bf16(fp.floats(data["norm_b"]))
    amax = np.max(np.abs(decode(bias, BF16)))
    scale = 2.0 ** np.ceil(np.log2(amax / 448))
    assert decode(found["key_scale"], F32).tolist() == [scale] * 3
    got = decode(found["key_codes"], E4M3) * scale
    assert np.max(np.abs(got - decode(bias, BF16))) <= amax / 16


def test_mx_stores_the_exponent_four_times_and_skipped_tokens_leave_no_trace() -> None:
    mx, plain = (dsa.model(case(scale=scale), inputs(FP8), FUSED) for scale in ("mx", "f32"))
    assert mx["key_scale"].tolist() == [[int(bits) >> 23] * 4 for bits in plain["key_scale"]]
    assert plain["key_codes"].shape == (3, 128)
    assert plain["cache_rest"].size == 2 * 8448 - 3 * 132
    assert differ(mx, plain) == {"key_scale"}


def test_owned_bytes_are_the_tokens_own() -> None:
    data = inputs(FP8)
    mask = dsa.owned_bytes(dsa.Shape.of(FP8), data)
    owned = {(int(page), int(byte)) for page, byte in np.argwhere(mask)}
    spans = [(1, 6), (0, 3), (1, 0)]
    expected = {(p, t * 128 + i) for p, t in spans for i in range(128)}
    expected |= {(p, 8192 + 4 * t + i) for p, t in spans for i in range(4)}
    assert owned == expected


def test_columns_of_a_packed_row_are_found() -> None:
    packed = case(rows="packed")
    data = inputs(packed)
    dense = {
        **data,
        "projected": np.concatenate([data["projected"][:, 2112:2240], data["projected"][:, 2240:]], axis=1),
    }
    assert differ(dsa.model(packed, data, FUSED), dsa.model(FP8, dense, FUSED)) == set()


def test_heads_and_keys_with_nan_or_infinity_are_undefined_and_nothing_else() -> None:
    data = inputs(FP8)
    data["q"][1, 2, 3], data["q"][2, 5, 40] = 0x7F80, 0xFFFF
    data["projected"][1, 7] = 0x7FC0
    data["projected"][0, 140] = 0x7F80  # a head weight: defined
    open_ = dsa.undefined(FP8, data)
    assert np.argwhere(open_["q_codes"].any(axis=-1)).tolist() == [[1, 2], [2, 5]]
    assert np.argwhere(open_["weights"]).tolist() == [[1, 2], [2, 5]]
    assert open_["key_scale"].tolist() == [False, True, False]
    blocks = dsa.undefined(FP4, {**inputs(FP4), "q": data["q"], "projected": data["projected"]})
    assert np.argwhere(blocks["q_scale"]).tolist() == [[1, 2, 0], [2, 5, 1]]
    assert int(blocks["q_codes"].sum()) == 64
    assert "weights" not in blocks
    assert blocks["key_scale"].tolist() == [[False] * 4, [True] * 4, [False] * 4]
    for one in (FP8, FP4):
        for name, mask in dsa.undefined(one, inputs(one)).items():
            assert mask.shape == dsa.model(one, inputs(one), FUSED)[name].shape
            assert not mask.any()


def test_keys_that_some_order_of_their_sum_makes_infinite_are_undefined() -> None:
    one, zero = fp.bits_of(np.ones(128)), fp.bits_of(np.zeros(128))
    rows = np.zeros((6, 128))
    rows[0, :] = 2.0**121  # the sum is 2^128
    rows[1, :] = 255 * 2.0**113  # ... and here 255 * 2^120
    rows[2, :64], rows[2, 64:] = 2.0**122, -(2.0**122)  # sums to 0 if no half is added up first
    rows[3, ::2], rows[3, 1::2] = 2.0**121, -(2.0**121)  # halves of 2^127
    rows[4, :2] = -(2.0**127)
    rows[5, :2] = 2.0**127, -(2.0**127)
    expected = [True, False, True, False, True, False]
    assert dsa.may_overflow(bf16(rows), one, zero).tolist() == expected
    assert dsa.may_overflow(bf16(-rows), one, zero).tolist() == expected
    data = inputs(FP8)
    data["projected"][[3, 0], :128] = bf16(rows[:2])
    assert dsa.undefined(FP8, data)["key_scale"].tolist() == [False, False, True]  # request 2 has no slot, 3 is third


def test_keys_that_the_norm_can_make_infinite_are_undefined() -> None:
    row = bf16(np.ones((2, 128)))
    w, b = fp.bits_of(np.ones(128)), fp.bits_of(np.zeros(128))
    for weights, expected in ((2.0**124, False), (2.0**125, True), (np.inf, True), (np.nan, True)):
        w[77] = fp.bits_of(weights)
        assert dsa.may_overflow(row, w, b).tolist() == [expected] * 2
    w[77] = fp.bits_of(1.0)
    for bias, expected in ((3.3e38, False), (-3.3e38, False), (3.4e38, True), (-np.inf, True)):
        b[5] = fp.bits_of(bias)
        assert dsa.may_overflow(row, w, b).tolist() == [expected] * 2


def test_a_key_with_a_signalling_nan_may_overflow_without_a_warning() -> None:
    row = bf16(np.ones((2, 128)))
    row[1, 9] = 0x7F81
    assert dsa.may_overflow(row, fp.bits_of(np.ones(128)), fp.bits_of(np.zeros(128))).tolist() == [False, True]


def test_a_normalised_channel_is_at_most_twelve_before_the_weight() -> None:
    hot = np.zeros((3, 128))
    hot[0, 9], hot[1, 9], hot[2, 9] = 2.0**60, 1.0, 2.0**-20
    data = inputs(UNROUNDED) | {"norm_w": fp.bits_of(np.ones(128)), "norm_b": fp.bits_of(np.zeros(128))}
    y = dsa.normalise(dsa.Shape.of(UNROUNDED), data, fp.bits_of(hot), FUSED, dsa.runner(FUSED))
    assert 11.26 < float(fp.floats(y).max()) < 12


def test_weights_follow_ieee_beside_undefined_heads() -> None:
    data = inputs(FP8)
    data["projected"][0, 128:132] = [0x7F80, 0x8000, 0x7FC0, 0xFF80]
    found = dsa.model(FP8, data, FUSED)["weights"][0, :4]
    assert found.tolist() == [0x7F80, 0x8000, 0x7FFF, 0xFF80]


def test_a_declaration_must_name_what_the_model_reads() -> None:
    with pytest.raises(RecordError, match=r"no order for 'key\.squares'; declared: key\.sum"):
        dsa.model(FP8, inputs(FP8), Declaration("x", {}, "sm_90a", {"key.sum": FUSED.orders["key.sum"]}, {}))
    with pytest.raises(UsageError, match=r"no ledger row 'dsa\.R99'"):
        dsa.model(FP8, inputs(FP8), Declaration("x", {}, "sm_90a", FUSED.orders, {"dsa.R99": "rn"}))


def test_no_token_written_is_a_case_like_any_other() -> None:
    data = inputs(FP8)
    data["slots"] = np.full(4, -1, dtype=np.int64).view(np.uint64)
    found = dsa.model(FP8, data, FUSED)
    assert found["key_codes"].shape == (0, 128)
    assert np.array_equal(found["cache_rest"], data["cache"].ravel())


def test_a_batch_of_129_takes_a_fraction_of_a_second() -> None:
    large = case(batch=129)
    data = inputs(large)
    data["cache"] = np.zeros((4, 8448), dtype=np.uint8)
    dsa.model(large, data, FUSED)
    start = time.perf_counter()
    dsa.model(large, data, FUSED)
    assert time.perf_counter() - start < 0.5
