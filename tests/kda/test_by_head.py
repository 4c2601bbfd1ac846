"""The values "by_head": each head has its own kind, and what is aimed at a tie is at one, for every token."""

from __future__ import annotations

import numpy as np
import pytest
from kda_cases import case

from equiv.kda import PAIR, aimed, mixed, states
from equiv.kda.mixed import BY_HEAD, KINDS, STATES
from equiv.kda.regimes import REGIMES, regime
from equiv.rounding.formats import BF16, F32, decode

BY = {"values": "by_head"}


def test_it_stands_for_the_regimes_that_are_the_first_ones_only() -> None:
    wanted = case({**BY, "q": "ties", "k": "normal"})
    assert regime(wanted, "q") == "ties"
    assert regime(wanted, "k") == regime(wanted, "state") == "by_head"
    assert regime(wanted, "beta") == "normal"
    assert regime(case(), "k") == "normal"
    assert all(name in (*REGIMES[piece], "mixed") for piece, names in BY_HEAD.items() for name in names)
    assert {name for names in STATES for name in names} <= set(REGIMES["state"])


def test_heads_differ_in_kind_and_the_seventh_is_like_the_first() -> None:
    inputs = PAIR.inputs(case(BY, heads=12, batch=3))
    q = np.abs(decode(inputs["rows"][:, : 12 * 128], BF16)).reshape(3, 12, 128).max(axis=(0, 2))
    assert (q[[1, 7]] > 32).all()
    assert (q[[4, 10]] < 2.0**-126).all()
    assert (q[[2, 5, 8, 11]] > 0.1).all()
    rates = decode(inputs["a_log"], F32)
    assert np.flatnonzero(rates > 87).tolist() == [4, 10]
    assert np.flatnonzero(rates < -87).tolist() == [5, 11]
    windows = inputs["conv_state"][inputs["slots"].view(np.int32)[:, 0]].reshape(3, 3, 12, -1)
    tiny = np.abs(decode(windows, BF16)).max(axis=(0, 3)) < 2.0**-126
    assert [np.flatnonzero(part).tolist() for part in tiny] == [[4, 10], [4, 10], [5, 11]]


def test_gated_values_are_those_of_one_kind_in_every_head() -> None:
    wanted = case({"values": "gated"}, batch=3, tokens=2)
    assert mixed.kinds(wanted).tolist() == [2] * 6
    assert regime(wanted, "k") == "by_head"
    assert (mixed.states(wanted, 3) == "aimed_gates").all()
    found = PAIR.inputs(wanted)
    plain = PAIR.inputs(case({"f_b": "ties", "out_gate": "pairs", "state": "normal"}, batch=3, tokens=2))
    changed = (found["conv_w"][:, 3] != plain["conv_w"][:, 3]).reshape(3, 6, 128).mean(axis=2)
    assert (changed > 0.9).all()  # the last tap of nearly every channel is aimed at a tie of SiLU


@pytest.mark.parametrize("tokens", [1, 4])
def test_outputs_of_all_tokens_meet_their_goals(tokens: int) -> None:
    wanted = case(BY, tokens=tokens)
    inputs = PAIR.inputs(wanted)
    table, accepted = (inputs[name].view(np.int32) for name in ("slots", "accepted"))
    source = table[np.arange(2), accepted[0] - 1]
    state = decode(inputs["state"][source], F32).reshape(12, 128, 128)
    step = states.first_step(wanted, inputs, np.arange(2))
    for token in range(tokens):
        weight, known = step.output(token)
        found = states.total(state * weight[:, None, :]) + known
        for item in (0, 1):
            bits = found[item].astype(np.float32).view(np.uint32).astype(np.int64)
            assert np.median(np.abs((bits & 0xFFFF) - 0x8000)) < 8
        for item, mean in ((2, 1.0), (3, 4 / 9), (6, 4 / 9), (7, 1.0), (8, 1.0), (9, 4 / 9)):
            rounded = decode(((found[item].astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16), BF16)
            assert abs(float((rounded * rounded).mean()) + 1e-5 - mean) < 2.0**-20
            assert np.abs(found[item] - rounded).max() < 2.0**-10


@pytest.mark.parametrize("bias", [False, True])
def test_the_third_head_has_silus_at_ties(bias: bool) -> None:
    wanted = case(BY, bias=bias)
    inputs = PAIR.inputs(wanted)
    given = states._windows(wanted, inputs, np.arange(2))[:, :, 256:384]
    start = decode(inputs["conv_bias"], F32)[256:384] if bias else 0.0
    summed = start + (given * np.moveaxis(decode(inputs["conv_w"], F32)[256:384], 1, 0)).sum(axis=1)
    bits = (summed * aimed.sigmoid(summed)).astype(np.float32).view(np.uint32).astype(np.int64)
    off = np.abs((bits & 0xFFFF) - 0x8000).min(axis=0)  # a channel is aimed at one of the requests
    assert np.mean(off < 8) > 0.9


def test_gates_and_significands_that_go_together_are_at_ties() -> None:
    gates, significands = aimed.gate_pairs()
    product = np.frexp(aimed.sigmoid(decode(gates, BF16)) * significands)[0] * 256
    assert len(gates) > 20
    assert np.abs(product % 1 - 0.5).max() < 4 * 2.0**-16


def test_bf16_states_and_large_batches_are_not_aimed() -> None:
    for axes in ({"state": "bf16", "kernel": "wide"}, {"batch": 17}):
        wanted = case(BY, **axes)
        assert PAIR.check(wanted) == []
        assert not np.char.startswith(mixed.states(wanted, 2), "aimed").any()
    assert len(BY_HEAD["q"]) == KINDS
