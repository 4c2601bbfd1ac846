"""The model of `dsa_front`: bits of the oracle, every row of its ledger, slices of K, and what it leaves open."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from front_cases import FP4, case, oracle, sliced

from equiv.device import device
from equiv.dsa_front import PAIR
from equiv.errors import RecordError, UsageError
from equiv.rounding import arithmetic as fp
from equiv.rounding import dsa, front
from equiv.rounding.declaration import Declaration
from equiv.rounding.dsa_ledger import LEDGER as INDEX_LEDGER
from equiv.rounding.formats import BF16, decode
from equiv.rounding.front_ledger import FRONT, LEDGER
from equiv.rounding.projection import part_of
from equiv.runner import run_party

if TYPE_CHECKING:
    from equiv.records import Bits
    from equiv.rounding.ledger import Ledger

CANDIDATE = {"dsa.R3": "add", "dsa.R4": "rsqrt.approx"}


@cache
def inputs_of(name: str, batch: int, *, normalized: bool) -> dict[str, Bits]:
    regimes = {} if name == "random" else {"latent": name, "w_q": name}
    return PAIR.inputs(case(regimes, batch=batch, normalized=normalized))


def latents(declaration: Declaration, ledger: Ledger) -> Bits:
    """Of so many rows that the last bit of a factor moves some latent across a boundary of BF16."""
    return front.normalised(
        case(batch=1024), inputs_of("random", 1024, normalized=False), declaration, dsa.runner(declaration, ledger)
    )


def totals(declaration: Declaration, ledger: Ledger, name: str) -> fp.U32:
    data = inputs_of(name, 5, normalized=True)
    part = part_of(declaration.order("projection"))
    return front.project(part, data["w_q"][:512], data["q_c"], dsa.runner(declaration, ledger))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("axes", [{}, FP4, {"normalized": True, "rows": "packed", "scale": "mx"}], ids=str)
def test_the_model_gives_the_bits_of_the_oracle(axes: dict[str, Any], arch: str) -> None:
    one = case(**axes)
    inputs = PAIR.inputs(one)
    found = run_party(PAIR, "oracle", one, inputs, device(f"emulated:{arch}"))
    declared = PAIR.declared("oracle", found.toolchain, arch, one)
    for name, bits in PAIR.model(one, inputs, declared).items():
        np.testing.assert_array_equal(bits, found.outputs[name], err_msg=name)


def test_the_ledger_holds_every_row_of_dsa_index_behind_its_own() -> None:
    assert [row.id for row in LEDGER] == [f"dsa.R{i}" for i in range(1, 11)] + [row.id for row in INDEX_LEDGER]
    assert all("DsaIndex" not in row.candidate for row in LEDGER)
    for mine, other in zip(list(LEDGER)[len(FRONT) :], INDEX_LEDGER, strict=True):
        assert replace(mine, candidate="") == replace(other, candidate="")


@pytest.mark.parametrize("row", ["dsa.R1", "dsa.R4", "dsa.R5", "dsa.R6", "dsa.R7"])
def test_switching_off_a_rounding_row_of_the_norm_changes_latents(row: str) -> None:
    assert (latents(oracle(), LEDGER) != latents(oracle(), LEDGER.without(row))).any()


@pytest.mark.parametrize("row", ["dsa.R2", "dsa.R3"])
def test_the_steps_of_mean_and_eps_give_different_factors(row: str) -> None:
    """Of 4096 square sums; in latents it takes millions of elements to see."""
    total, eps = fp.bits_of(np.random.default_rng(1).uniform(1000, 8000, 4096)), fp.bits_of(1e-6)
    plain = Declaration("x", {}, "sm_90a", {}, CANDIDATE)
    found = []
    for step in LEDGER[row].steps:
        run = dsa.runner(plain, LEDGER.replace(row, step))
        found.append(run("dsa.R4", run("dsa.R3", run("dsa.R2", total), total, eps)))
    for at, factors in enumerate(found):
        assert all((factors != other).any() for other in found[:at])


def test_where_eps_is_contracted_the_division_does_not_happen() -> None:
    np.testing.assert_array_equal(latents(oracle(), LEDGER), latents(oracle(), LEDGER.replace("dsa.R2", "div.full")))


@pytest.mark.parametrize(("row", "split"), [("dsa.R8", 1), ("dsa.R9", 4)])
def test_switching_off_a_rounding_row_of_the_sum_changes_accumulators(row: str, split: int) -> None:
    assert (totals(sliced(split), LEDGER, "random") != totals(sliced(split), LEDGER.without(row), "random")).any()


def test_switching_off_the_projections_rounding_changes_codes() -> None:
    one, inputs = case(normalized=True), inputs_of("random", 5, normalized=True)
    kept, cut = (front.model(one, inputs, oracle(), ledger) for ledger in (LEDGER, LEDGER.without("dsa.R10")))
    assert (kept["q_codes"] != cut["q_codes"]).any()
    np.testing.assert_array_equal(kept["key_codes"], cut["key_codes"])


def test_every_rounding_row_of_the_front_is_tried() -> None:
    tried = {"dsa.R1", "dsa.R4", "dsa.R5", "dsa.R6", "dsa.R7", "dsa.R8", "dsa.R9", "dsa.R10"}
    assert {row.id for row in FRONT if row.kind == "rounding"} == tried


def test_slices_change_accumulators_of_random_data_and_none_of_whole_numbers() -> None:
    whole = totals(sliced(1), LEDGER, "random")
    for split in (2, 4):
        assert (totals(sliced(split), LEDGER, "random") != whole).mean() > 0.5
    exact = totals(sliced(1), LEDGER, "integers")
    for split in (2, 4):
        np.testing.assert_array_equal(totals(sliced(split), LEDGER, "integers"), exact)
    data = inputs_of("integers", 5, normalized=True)
    expected = decode(data["q_c"], BF16) @ decode(data["w_q"][:512], BF16).T
    np.testing.assert_array_equal(fp.floats(exact), expected.astype(np.float32))


def test_an_accumulator_is_that_of_the_matrix_model_output_by_output() -> None:
    order = sliced(2).order("projection")
    data = inputs_of("random", 5, normalized=True)
    widen = LEDGER["dsa.R10a"].steps["shift"]
    rows = np.repeat(widen(data["q_c"][:1]), 3, axis=0)
    found = order.dot(rows, widen(data["w_q"][[0, 7, 511]]))
    np.testing.assert_array_equal(found[:, 0], totals(sliced(2), LEDGER, "random")[0, [0, 7, 511]])


def test_latents_are_those_of_float64_but_for_an_ulp() -> None:
    rows = inputs_of("random", 1024, normalized=False)
    x, gamma = decode(rows["projected"][:, :1536], BF16), decode(rows["w_qa"], BF16)
    expected = (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * gamma).astype(ml_dtypes.bfloat16)
    found = latents(oracle(), LEDGER)
    apart = np.abs(found.astype(np.int64) - expected.view(np.uint16))
    assert apart.max() == 1
    assert (apart > 0).mean() < 1e-3


def test_a_row_beyond_float32_has_the_root_zero_and_is_defined() -> None:
    one = case({"latent": "large"}, batch=20)
    inputs = PAIR.inputs(one)
    x = decode(inputs["projected"][:, :1536], BF16)
    beyond = (x * x).sum(axis=1) > 2.0**129
    found = front.model(one, inputs, oracle())
    assert beyond.any()
    assert not (found["q_codes"][beyond] & 0x7F).any()
    assert not any(mask.any() for mask in front.undefined(one, inputs).values())


def test_a_row_with_a_nan_is_open_as_a_whole_and_no_other() -> None:
    one = case({"latent": "nan_element"}, batch=7)
    inputs = PAIR.inputs(one)
    poisoned = dsa.not_finite(inputs["projected"][:, :1536]).any(axis=1)
    assert 0 < poisoned.sum() < 7
    open_ = front.undefined(one, inputs)
    np.testing.assert_array_equal(open_["q_codes"].all(axis=(1, 2)), poisoned)
    np.testing.assert_array_equal(open_["weights"].any(axis=1), poisoned)
    assert not open_["key_codes"].any()


def test_a_channel_with_a_nan_weight_opens_its_head_or_block() -> None:
    for axes, name, shape in (({}, "weights", (32,)), (FP4, "q_scale", (32, 4))):
        one = case({"w_q": "nan_channel"}, normalized=True, **axes)
        open_ = front.undefined(one, PAIR.inputs(one))[name][0]
        assert open_.shape == shape
        assert np.unique(np.argwhere(open_)[:, 0]).tolist() == [0, 5, 10, 15, 20, 25, 30]
        assert int(open_.sum()) == 7


def test_heads_that_may_overflow_are_open_and_their_neighbours_are_not() -> None:
    one = case({"w_q": "overflowing"})
    open_ = front.undefined(one, PAIR.inputs(one))["weights"]
    assert np.argwhere(open_[0]).ravel().tolist() == list(range(1, 32, 4))


def test_gamma_that_is_not_finite_opens_every_query() -> None:
    one = case()
    inputs = PAIR.inputs(one)
    inputs["w_qa"][3] = 0x7F80
    assert front.undefined(one, inputs)["weights"].all()


def test_an_undeclared_or_unfit_order_is_named() -> None:
    one, inputs = case(normalized=True), inputs_of("random", 5, normalized=True)
    orders = dict(oracle().orders)
    swapped = Declaration("x", {}, "sm_90a", {**orders, "projection": orders["row.squares"]}, {})
    with pytest.raises(UsageError, match="the order of a projection holds leaf"):
        front.model(one, inputs, swapped)
    del orders["projection"]
    with pytest.raises(RecordError, match=r"no order for 'projection'; declared: key\.squares, key\.sum, row\.squares"):
        front.model(one, inputs, Declaration("x", {}, "sm_90a", orders, {}))


def test_a_batch_of_128_takes_about_a_second() -> None:
    one = case(batch=128)
    inputs = PAIR.inputs(one)
    front.model(one, inputs, sliced(2))
    start = time.process_time()
    front.model(one, inputs, sliced(2))
    assert time.process_time() - start < 2.0
