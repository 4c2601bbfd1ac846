"""Constructed values of `kda` are where they were aimed: checked exactly, or with sums by `math.fsum`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kda_cases import case

from equiv.inputs import Draws
from equiv.kda import PAIR, aimed, states
from equiv.rounding.declarations.kda import DECLARATIONS
from equiv.rounding.formats import BF16, F32, decode


def test_one_and_a_half_times_a_row_tie_is_halfway_between_two_bf16_values() -> None:
    values = decode(aimed.row_ties(Draws(1, "q"), (64, 128)), BF16) * 1.5
    bits = values.astype(np.float32).view(np.uint32)
    assert (bits.view(np.float32).astype(np.float64) == values).all()
    assert (bits & 0xFFFF == 0x8000).all()
    assert (np.abs(values).min() >= 48, np.abs(values).max() < 768) == (True, True)
    assert 0.05 < float((values < 0).mean()) < 0.2
    assert len(np.unique(bits)) > 100


def test_taps_leave_a_tie_alone_or_tip_it_or_do_so_only_together() -> None:
    taps = decode(aimed.tap_ties(Draws(1, "w"), (600, 4)), F32)
    assert (taps[:, 3] == 1.5).all()
    kinds = {tuple(row) for row in taps[:, :3].tolist()}
    assert len(kinds) == 6
    assert (0.0, 0.0, 0.0) in kinds
    big, small = np.float32(96.0), np.float32(48 * 2.0**-26)
    assert big + small == big
    assert big + (small + small + small) == big  # less than half an ulp together: only a chain from the small end ...
    assert np.float32(96.0) + np.float32(3 * 255 * 2.0**-26) > big  # ... of larger samples tips it


def test_raw_gates_are_halfway_between_two_bf16_values_but_for_a_remainder() -> None:
    f_a = decode(aimed.f_a_ties(Draws(1, "a"), (8, 128)), BF16)
    f_b = decode(aimed.f_b_ties(Draws(1, "b"), (256, 128)), BF16)
    sums = np.array([[math.fsum(a * b) for b in f_b] for a in f_a])
    least = f_b.copy()
    least[np.abs(least) >= 2.0**-8] = 0
    remainder = np.array([[math.fsum(a * b) for b in least] for a in f_a])
    main = (sums - remainder).astype(np.float32)
    assert (main.astype(np.float64) == sums - remainder).all()
    ties = main.view(np.uint32) & 0xFFFF == 0x8000
    assert ties.mean() > 0.98  # 1 - 2**-8 is a BF16 value
    assert len(np.unique(np.abs(remainder))) == 5
    assert (np.count_nonzero(f_b, axis=1) >= 2).all()


def test_exponentials_are_right_to_4e_12_and_never_overflow() -> None:
    x = np.linspace(-60, 60, 1001)
    assert np.abs(aimed.exp(x) / np.exp(x) - 1).max() < 4e-12
    assert np.isfinite(aimed.exp(np.array([-1e9, 1e9]))).all()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("axes", [{}, {"kernel": "wide"}, {"tokens": 3}])
def test_aimed_midpoints_show_the_difference_between_declared_orders(arch: str, axes: dict[str, Any]) -> None:
    differing = {}
    for name in ("normal", "aimed_midpoints"):
        wanted = case({"state": name}, batch=2, **axes)
        inputs = PAIR.inputs(wanted)
        models = [
            PAIR.model(wanted, inputs, known)["y"][:, :, 0]
            for party in ("oracle", "candidate")
            for known in DECLARATIONS
            if (known.party, known.form, known.arch) == (party, PAIR.form(party, wanted, arch), arch)  # type: ignore[misc]
            and known.toolchain != {"triton": "3.6.0"}
        ]
        assert len(models) == 2
        differing[name] = float((models[0] != models[1]).mean())
    assert differing["normal"] < 0.02
    assert differing["aimed_midpoints"] > 0.1


@pytest.mark.parametrize("bias", [False, True])
def test_aimed_dots_and_outputs_cancel(bias: bool) -> None:
    for name, output in (("aimed_dot_zero", "dot"), ("aimed_out_zero", "o")):
        wanted = case({"state": name}, batch=2, tokens=2, bias=bias, mode="record")
        inputs = PAIR.inputs(wanted)
        step = states.first_step(wanted, inputs, np.arange(2))
        state = decode(inputs["state"][inputs["slots"].view(np.int32)[:, 0]], F32).reshape(12, 128, 128)
        state = state * step.decay[:, 0, None, :]
        terms = state * step.key[:, 0, None, :]
        dot = np.apply_along_axis(math.fsum, -1, terms)
        after = state + ((step.value[:, 0] - dot) * step.beta[:, :1])[..., None] * step.key[:, 0, None, :]
        out = np.apply_along_axis(math.fsum, -1, after * step.query[:, 0, None, :])
        size = np.abs(terms).sum(axis=-1)
        assert (np.abs(dot if output == "dot" else out) / size).max() < 2e-6
        assert np.median(np.abs(out if output == "dot" else dot) / size) > 1e-3


def test_an_aimed_state_differs_from_the_ordinary_one_in_one_element_a_row() -> None:
    plain, moved = (PAIR.inputs(case({"state": name}))["state"] for name in ("normal", "aimed_midpoints"))
    assert set(np.unique((plain != moved).sum(axis=-1)).tolist()) <= {0, 1}
    assert int((plain != moved).sum()) > 1400


@pytest.mark.parametrize("name", states.AIMED)
def test_nothing_is_aimed_at_where_every_request_is_absent(name: str) -> None:
    wanted = case({"state": name, "absent": "all"})
    assert PAIR.check(wanted) == []
    assert PAIR.inputs(wanted)["state"].shape[1:] == (6, 128, 128)
