"""Values that cancel: what is there twice, what is there with both signs, and what rounding leaves of it."""

from __future__ import annotations

import numpy as np
import pytest
from kda_cases import case

from equiv.geometry.kda import DIM
from equiv.kda import PAIR
from equiv.kda.regimes import REGIMES, regime
from equiv.kda.residues import LEVEL, VALUES
from equiv.rounding.formats import BF16, F32, decode


def test_they_stand_for_regimes_where_a_case_names_none() -> None:
    wanted = case({"values": "mirrored", "q": "ties", "k": "normal"})
    assert [regime(wanted, piece) for piece in ("q", "k", "beta", "state")] == [
        "ties",
        "mirrored",
        "normal",
        "mirrored",
    ]
    assert regime(case({"values": "residues"}), "conv_w") == "cancelling"
    for pieces in VALUES.values():
        assert all(name in REGIMES[piece] for piece, name in pieces.items())


@pytest.mark.parametrize("state", ["f32", "bf16"])
def test_four_and_four_channels_are_alike_but_for_the_sign_of_their_states(state: str) -> None:
    wanted = case({"values": "mirrored"}, heads=2, tokens=2, bias=True, kernel="wide", state=state)
    found = PAIR.inputs(wanted)
    slots = found["slots"].view(np.int32)
    tables = {
        "rows": (found["rows"][:, : 3 * 2 * DIM], 1),
        "conv_w": (found["conv_w"], 4),
        "conv_bias": (found["conv_bias"], 1),
        "f_b": (found["f_b"], DIM),
        "dt_bias": (found["dt_bias"], 1),
        "conv_state": (found["conv_state"][slots[:, 0]], 4),
    }
    for name, (bits, inner) in tables.items():
        fours = bits.reshape(-1, 2, 4 * inner)
        np.testing.assert_array_equal(fours[:, 0], fours[:, 1], name)
        assert len(np.unique(fours[:, 0])) > DIM // 4, name
    source = slots[np.arange(2), found["accepted"].view(np.int32)[0] - 1]
    states = decode(found["state"][source], F32 if state == "f32" else BF16).reshape(-1, 2, 4)
    np.testing.assert_array_equal(states[:, 0], -states[:, 1])
    assert 2.0**15 <= np.median(np.abs(states)) < 2.0**19


def test_a_convolution_leaves_the_errors_of_its_products() -> None:
    found = PAIR.inputs(case({"values": "residues"}))
    slots = found["slots"].view(np.int32)
    assert (found["rows"][:, : 3 * 6 * DIM] == LEVEL).all()
    assert (found["conv_state"][slots[:, 0]] == LEVEL).all()
    taps = decode(found["conv_w"], F32)
    assert not taps.sum(axis=1).any()
    total = np.zeros(len(taps), np.float32)
    for tap in taps.T:  # the product is exact in 53 bits, and so is the sum
        total = (tap * float(decode(np.array([LEVEL], np.uint16), BF16)[0]) + total).astype(np.float32)
    assert (total != 0).mean() > 0.8
    assert np.abs(total).max() < 0.25
