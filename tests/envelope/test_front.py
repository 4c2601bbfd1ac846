"""The envelope of `dsa_front` holds what declared orders give, judges codes with their scale, and nothing else fits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from front_cases import FP4, case, oracle, sliced

from equiv.dsa_front import PAIR
from equiv.envelope import front as envelope
from equiv.rounding import arithmetic as fp
from equiv.rounding import front
from equiv.rounding.conversions import widen
from equiv.rounding.declarations.front import ROW_ORDERS, row_order
from equiv.rounding.formats import BF16, decode
from equiv.rounding.intervals import Interval

if TYPE_CHECKING:
    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration


def other(split: int, version: str = "3.6.0") -> Declaration:
    """Another order of everything, another formula of the factor."""
    known = sliced(split)
    orders = {**known.orders, "row.squares": row_order(ROW_ORDERS[version, "sm_90a"])}
    return replace(known, orders=orders, variants={**known.variants, "dsa.R3": "add", "dsa.R4": "rsqrt.approx"})


BOTH = (oracle(), other(4))
QUERY = ("q_codes", "q_scale", "weights")


@cache
def inputs_of(one_id: str, seed: int, batch: int, *, normalized: bool, fp4: bool = False) -> dict[str, Bits]:
    regimes = {} if one_id == "random" else {"latent": one_id, "w_q": "normal" if one_id == "large" else one_id}
    return PAIR.inputs(case(regimes, seed, batch=batch, normalized=normalized, **(FP4 if fp4 else {})))


def judged(one: Case, data: dict[str, Bits], outputs: dict[str, Bits], parties: Any = BOTH) -> dict[str, Any]:
    return dict(PAIR.envelope(one, data, parties).judge(outputs))


@pytest.mark.parametrize("axes", [{}, FP4, {"normalized": True}], ids=str)
def test_both_parties_lie_inside_and_use_some_of_it(axes: dict[str, Any]) -> None:
    one = case(batch=24, **axes)
    data = PAIR.inputs(one)
    outputs = [front.model(one, data, party) for party in BOTH]
    assert "format" in axes or (outputs[0]["q_codes"] != outputs[1]["q_codes"]).any()
    for found in outputs:
        verdicts = judged(one, data, found)
        assert set(verdicts) == {spec.name for spec in PAIR.output_specs(one)} - {"cache_rest"}
        for name, (inside, share) in verdicts.items():
            assert inside.shape == found[name].shape, name
            assert inside.all(), name
            assert 0 <= share <= 1
    assert "format" in axes or max(judged(one, data, found)["q_codes"][1] for found in outputs) > 0


@pytest.mark.parametrize("regime", ["mirrored", "neighbours", "wide", "zero_rows", "large"])
def test_regimes_that_strain_the_sums_lie_inside(regime: str) -> None:
    w_q = regime if regime in {"mirrored", "neighbours", "wide"} else "normal"
    one = case({"latent": regime, "w_q": w_q}, batch=10, normalized=w_q != "normal")
    data = PAIR.inputs(one)
    for party in (*BOTH, other(2)):
        for name, (inside, _) in judged(one, data, front.model(one, data, party)).items():
            assert inside.all(), name


def test_another_code_is_outside_almost_everywhere() -> None:
    one = case(batch=24)
    data = PAIR.inputs(one)
    found = front.model(one, data, BOTH[0])
    moved = {**found, "q_codes": found["q_codes"] ^ np.uint8(1)}
    inside, share = judged(one, data, moved)["q_codes"]
    assert inside.mean() < 2e-3
    assert share == 1.0


def test_in_rows_of_a_certain_latent_hardly_any_code_is_open() -> None:
    one = case(batch=24, normalized=True)
    data = PAIR.inputs(one)
    query = PAIR.envelope(one, data, BOTH).query  # type: ignore[attr-defined]
    q = query._rounded(query.total)
    least, most = query._exponents(q)
    low, high = query._ends(q, least)
    assert 1e-3 < (q.low != q.high).mean() < 1e-2
    assert (low != high).mean() < 1e-3
    assert (least != most).mean() < 1e-3


def test_a_latent_is_open_only_where_its_interval_holds_a_boundary() -> None:
    one = case(batch=96)
    data = PAIR.inputs(one)
    latent = envelope.normalised_latent(one, data, BOTH)
    wide = latent.low != latent.high
    assert 1e-5 < wide.mean() < 1e-3
    np.testing.assert_array_equal(latent.high[wide] & 0xFFFF, 0)
    steps = np.abs((latent.high[wide] >> 16).astype(int) - (latent.low[wide] >> 16).astype(int))
    assert steps.max() == 1


@pytest.mark.parametrize("fp4", [False, True])
def test_whole_numbers_admit_one_result_only(fp4: bool) -> None:
    one = case({"latent": "integers", "w_q": "integers"}, normalized=True, **(FP4 if fp4 else {}))
    data = PAIR.inputs(one)
    found = front.model(one, data, BOTH[1])
    for name in set(QUERY) & set(found):
        inside, share = judged(one, data, found)[name]
        assert inside.all()
        assert share == 0.0
    moved = {**found, "q_codes": found["q_codes"] ^ np.uint8(1)}
    assert not judged(one, data, moved)["q_codes"][0].any()


def straddling(axes: dict[str, Any]) -> tuple[Case, dict[str, Bits], dict[str, Bits]]:
    """A case whose first head's (block's) amax is a whole number of which the envelope is then told to be unsure."""
    one = case({"latent": "one_hot", "w_q": "selector"}, normalized=True, batch=1, **axes)
    data = PAIR.inputs(one)
    data["q_c"][:] = 0
    top = 6 if axes else 448
    data["q_c"][0, :5] = (fp.bits_of([top, 3.25, 1.0, -0.40625, 0.0]) >> 16).astype(np.uint16)
    data["projected"][0, 1664:1696] = 0x3F80
    return one, data, front.model(one, data, BOTH[0])


def unsure(one: Case, data: dict[str, Bits]) -> envelope.QueryEnvelope:
    """The query's envelope, widened at the largest value of the three heads that hold it to the BF16 value above."""
    query: envelope.QueryEnvelope = PAIR.envelope(one, data, BOTH).query  # type: ignore[attr-defined]
    high = query.total.high.copy()
    high[[0, 12, 24], 0, 0] += np.uint32(1 << 16)
    return replace(query, total=Interval(query.total.low, high))


def test_one_scale_must_explain_all_codes_of_a_head_and_its_weight() -> None:
    one, data, found = straddling({})
    query = unsure(one, data)
    assert all(mask.all() for mask, _ in query.judge(found).values())
    data["q_c"][0, 0] += 1  # 450: the scale doubles
    above = front.model(one, data, BOTH[0])
    assert above["weights"][0, 0] == found["weights"][0, 0] + 0x80
    assert all(mask.all() for mask, _ in query.judge(above).values())
    codes, weights = query.judge({**above, "weights": found["weights"]}).values()
    assert weights[0].all()  # the weight's scale is an allowed one
    assert np.argwhere(~codes[0]).tolist() == [[0, head, channel] for head in (0, 12, 24) for channel in range(4)]
    codes, weights = query.judge({**above, "weights": above["weights"] + np.uint16(0x80)}).values()
    assert np.argwhere(~weights[0]).tolist() == [[0, head] for head in range(32)]


def test_a_weight_of_zero_says_nothing_of_the_scale() -> None:
    one, data, _ = straddling({})
    data["projected"][0, 1664:1696] = 0
    query = unsure(one, data)
    data["q_c"][0, 0] += 1
    assert all(mask.all() for mask, _ in query.judge(front.model(one, data, BOTH[0])).values())


def test_a_stored_scale_must_explain_its_block() -> None:
    one, data, found = straddling(FP4)
    query = unsure(one, data)
    data["q_c"][0, 0] += 1
    above = front.model(one, data, BOTH[0])
    assert above["q_scale"][0, 0, 0] == found["q_scale"][0, 0, 0] + 1
    for outputs in (found, above):
        assert all(mask.all() for mask, _ in query.judge(outputs).values())
    codes, scales = query.judge({**above, "q_scale": found["q_scale"]}).values()
    assert scales[0].all()
    assert (~codes[0]).any()
    codes, scales = query.judge({**above, "q_scale": above["q_scale"] + np.uint8(1)}).values()
    assert not scales[0][0, 0, 0]


def test_away_from_the_power_a_doubled_scale_is_outside() -> None:
    one, data = case(), inputs_of("random", 7, 5, normalized=False)
    found = front.model(one, data, BOTH[0])
    nonzero = (found["weights"] & 0x7FFF) != 0
    inside, share = judged(one, data, {**found, "weights": found["weights"] + np.uint16(0x80)})["weights"]
    assert not inside[nonzero].any()
    assert share == 1.0


def test_undefined_rows_and_heads_accept_anything_and_those_beside_them_do_not() -> None:
    one = case({"latent": "nan_element"}, batch=7)
    data = PAIR.inputs(one)
    found = front.model(one, data, BOTH[0])
    open_ = front.undefined(one, data)["weights"]
    moved = {**found, "q_codes": found["q_codes"] ^ np.uint8(1)}
    inside = judged(one, data, moved)["q_codes"][0]
    assert inside[open_].all()
    assert inside[~open_].mean() < 2e-2
    one = case({"w_q": "overflowing"}, batch=3)
    data = PAIR.inputs(one)
    assert all(mask.all() for mask, _ in judged(one, data, front.model(one, data, BOTH[1])).values())


def test_an_unknown_party_widens_the_latent_and_the_sum() -> None:
    one, data = case(batch=5), inputs_of("random", 7, 5, normalized=False)
    known, wide = (PAIR.envelope(one, data, parties).query.total for parties in (BOTH, (None, oracle())))  # type: ignore[attr-defined]
    assert (fp.floats(wide.low) <= fp.floats(known.low)).all()
    assert (fp.floats(wide.high) >= fp.floats(known.high)).all()
    found = front.model(one, data, BOTH[1])
    assert all(mask.all() for mask, _ in judged(one, data, found, (None, oracle())).values())


def test_square_sums_of_any_declared_order_lie_inside() -> None:
    data = inputs_of("large", 7, 20, normalized=False)
    x = widen(data["projected"][:, :1536], BF16)
    interval = envelope.squares(x, 30)
    for order in (oracle().order("row.squares"), other(1).order("row.squares")):
        total = fp.floats(order.dot(x, x)[:, 0])
        assert (fp.floats(interval.low) <= total).all()
        assert (total <= fp.floats(interval.high)).all()
    real = decode(data["projected"][:, :1536], BF16)
    exact = (real * real).sum(axis=1)
    sure = exact < 2.0**127
    width = (fp.floats(interval.high)[sure].astype(float) - fp.floats(interval.low)[sure]) / exact[sure]
    assert width.max() < 5e-6
