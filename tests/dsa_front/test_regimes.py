"""The inputs of `dsa_front`: regimes do what their names say, and the key's are those of `dsa_index`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from front_cases import FP4, case

from equiv.dsa_front import PAIR
from equiv.dsa_front.regimes import REGIMES
from equiv.dsa_index import PAIR as INDEX
from equiv.records import Case
from equiv.rounding.formats import BF16, decode


def test_the_pair_and_its_inputs_load_neither_torch_nor_a_compiler() -> None:
    code = (
        "import sys; from equiv import casefile; from equiv.dsa_front import PAIR as p;"
        "[p.inputs(c) for c in casefile.load_all(pair_names=['dsa_front'])[:3]];"
        "assert not {'torch', 'triton', 'cutlass'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("piece", ["latent", "w_q", "w_qa"])
def test_every_regime_fills_its_tensor_with_the_declared_shape_and_type(piece: str) -> None:
    for name in REGIMES[piece]:
        for axes in ({"normalized": True}, FP4):
            one = case({piece: name}, **axes)
            assert PAIR.check(one) == []
            inputs = PAIR.inputs(one)
            specs = [spec for spec in PAIR.layout(one) if spec.role != "output"]
            assert set(inputs) == {spec.name for spec in specs}
            for spec in specs:
                assert inputs[spec.name].shape == spec.shape, (name, spec.name)
                assert inputs[spec.name].dtype.itemsize == {"bf16": 2, "f32": 4, "u8": 1, "i64": 8}[spec.format]


def test_key_weights_cache_and_slots_are_those_of_dsa_index() -> None:
    regimes = {"key": "cancelling", "head_weights": "specials", "norm_b": "midpoints", "slots": "skip_even"}
    mine = PAIR.inputs(case(regimes, rows="packed"))
    other = INDEX.inputs(Case("dsa_index", "x", "w", 7, (), {"batch": 5, "rows": "packed"}, regimes))
    for name in ("norm_w", "norm_b", "cache", "slots"):
        np.testing.assert_array_equal(mine[name], other[name], err_msg=name)
    np.testing.assert_array_equal(mine["projected"][:, 2112:], other["projected"][:, 2112:])


def test_the_latent_is_where_the_axis_says() -> None:
    plain, normalised = (PAIR.inputs(case({"latent": "integers"}, normalized=on)) for on in (False, True))
    np.testing.assert_array_equal(plain["projected"][:, :1536], normalised["q_c"])
    assert "q_c" not in plain
    assert (plain["projected"][:, :1536] != normalised["projected"][:, :1536]).any()


def test_uniform_weights_have_eight_significant_bits_and_the_right_size() -> None:
    values = decode(PAIR.inputs(case())["w_q"], BF16)
    assert np.abs(values).max() < 2.0**-4
    assert abs(values.mean()) < 1e-4
    assert values.std() == pytest.approx(2.0**-4 / np.sqrt(3), rel=1e-2)
    assert {bits % 128 for bits in PAIR.inputs(case())["w_q"].ravel()[:20000].tolist()} == set(range(128))


def test_integers_leave_every_sum_under_24_bits() -> None:
    inputs = PAIR.inputs(case({"latent": "integers", "w_q": "integers"}, normalized=True))
    for name in ("q_c", "w_q"):
        values = decode(inputs[name], BF16)
        assert set(np.unique(values).tolist()) == set(range(-8, 9))
    assert 1536 * 8 * 8 < 2**24


def test_a_selector_hands_each_head_columns_of_the_latent() -> None:
    weights = decode(PAIR.inputs(case({"w_q": "selector"}))["w_q"], BF16)
    assert (weights.sum(axis=1) == 1).all()
    assert np.argmax(weights, axis=1)[[0, 127, 1535, 1536, 4095]].tolist() == [0, 127, 1535, 0, 1023]


@pytest.mark.parametrize(("name", "apart"), [("mirrored", 768), ("neighbours", 1)])
def test_mirrored_products_cancel_but_for_one_pair_in_eight(name: str, apart: int) -> None:
    inputs = PAIR.inputs(case({"latent": name, "w_q": name}, normalized=True))
    x, w = (decode(inputs[tensor], BF16).reshape(len(inputs[tensor]), -1, 2, apart) for tensor in ("q_c", "w_q"))
    np.testing.assert_array_equal(w[:, :, 0], w[:, :, 1])
    left = (x[:, :, 0] + x[:, :, 1]).reshape(5, -1)
    if name == "mirrored":
        assert np.count_nonzero(left, axis=1).tolist() == [96] * 5
    size = np.abs(x.reshape(5, -1)) @ np.abs(w.reshape(4096, -1)).T
    assert (np.abs(x.reshape(5, -1) @ w.reshape(4096, -1).T) < size / 30).mean() > 0.9


def test_large_rows_lie_on_both_sides_of_the_largest_square_sum() -> None:
    x = decode(PAIR.inputs(case({"latent": "large"}, batch=20))["projected"][:, :1536], BF16)
    sums = np.sum(x * x, axis=1)
    assert 0 < (sums > 2.0**128).sum() < 20
    assert ((sums > 2.0**126) & (sums < 2.0**130)).any()


def test_zero_heads_have_zeros_of_both_signs_and_poisoned_ones_a_single_nan() -> None:
    heads = PAIR.inputs(case({"w_q": "zero_heads"}))["w_q"].reshape(32, -1)
    assert set(heads[0].tolist()) == {0}
    assert set(heads[3].tolist()) == {0x8000}
    assert (heads[1] & 0x7FFF).any()
    poisoned = PAIR.inputs(case({"w_q": "nan_channel"}))["w_q"]
    assert np.argwhere(poisoned == 0x7FC0)[:, 0].tolist() == [77 + 640 * i for i in range(7)]
