"""Values of `kda`: pieces lie in their columns, wrong slots hold NaNs, and nothing loads torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from kda_cases import case

from equiv.buffers import storage
from equiv.inputs import Draws
from equiv.kda import PAIR
from equiv.kda.regimes import REGIMES, STATE
from equiv.rounding.arithmetic import bits_of
from equiv.rounding.formats import BF16, F32, decode, is_nan
from equiv.rounding.kda_prepare import Execution, decays

VALUES = ("q", "k", "v", "out_gate", "f_a", "beta", "conv_w", "conv_bias", "a_log", "dt_bias", "f_b", "norm_w",
          "conv_state", "state")  # fmt: skip


def test_the_pair_and_its_inputs_load_neither_torch_nor_a_compiler() -> None:
    code = (
        "import sys; from equiv import pairs, casefile; p = pairs.get('kda');"
        "[p.inputs(c) for c in casefile.load_all(pair_names=[p.name])[:3]];"
        "assert not {'torch', 'triton', 'cutlass'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("piece", VALUES)
@pytest.mark.parametrize("options", [{"bias": True}, {"bias": True, "kernel": "wide", "state": "bf16", "tokens": 2}])
def test_every_regime_fills_its_tensor_with_the_declared_shape_and_finite_numbers(
    piece: str, options: dict[str, Any]
) -> None:
    for name in REGIMES[piece]:
        wanted = case({piece: name}, batch=3, **options)
        if name.startswith("aimed") and "state" in options:
            continue
        assert PAIR.check(wanted) == []
        inputs = PAIR.inputs(wanted)
        for spec in PAIR.layout(wanted):
            if spec.role != "output":
                assert inputs[spec.name].shape == spec.shape, (name, spec.name)
                assert inputs[spec.name].dtype == np.dtype(storage(spec).bits), (name, spec.name)
        for tensor in ("rows", "conv_w", "conv_bias", "a_log", "dt_bias", "f_b", "norm_w"):
            bits = inputs[tensor]
            assert not is_nan(bits, F32 if bits.itemsize == 4 else BF16).any(), (name, tensor)


def test_pieces_lie_in_their_columns() -> None:
    found = PAIR.inputs(case({"k": "zero", "f_a": "zero"}, batch=3, tokens=2))["rows"]
    assert found.shape == (6, 3206)
    zero = np.atleast_1d(~found.any(axis=0))
    assert zero[768:1536].all()
    assert zero[3072:3200].all()
    assert not zero[:768].any()
    assert not zero[1536:3072].any()
    assert not zero[3200:].any()


@pytest.mark.parametrize("state", ["f32", "bf16"])
def test_only_the_slots_that_are_read_first_hold_numbers(state: str) -> None:
    wanted = case({"absent": "middle"}, batch=3, tokens=3, kernel="wide", state=state)
    inputs = PAIR.inputs(wanted)
    table, accepted = (inputs[name].view(np.int32) for name in ("slots", "accepted"))
    nan = is_nan(inputs["state"], F32 if state == "f32" else BF16)
    read = [int(table[at, accepted[0, at] - 1]) for at in (0, 2)]
    assert not nan[read].any()
    assert nan[[slot for slot in range(len(nan)) if slot not in read]].all()
    window = is_nan(inputs["conv_state"], BF16)
    own = [int(table[at, 0]) for at in (0, 2)]
    assert not window[own].any()
    assert window[[slot for slot in range(len(window)) if slot not in own]].all()


def test_the_poison_of_pools_and_records_differs_from_slot_to_slot() -> None:
    inputs = PAIR.inputs(case(tokens=2, mode="commit"))
    assert is_nan(inputs["corrections"], F32).all()
    assert is_nan(inputs["key_gate"], BF16).all()
    nan = is_nan(inputs["state"], F32).all(axis=(1, 2, 3))
    pages = inputs["state"][nan].reshape(int(nan.sum()), -1)
    assert len(np.unique(pages[:, 0])) > 1
    assert len(np.unique(pages)) == 1 << 14


def test_ordinary_states_are_never_zero_and_below_two() -> None:
    for wide in (True, False):
        bits = STATE["normal"](Draws(1, "state"), (3, 6, 128, 128), wide)
        size = np.abs(decode(bits, F32 if wide else BF16))
        assert size.min() >= 2.0**-10
        assert 0.5 < size.max() < 2
        assert 0.45 < float((decode(bits, F32 if wide else BF16) < 0).mean()) < 0.55


def test_a_larger_batch_keeps_the_values_of_a_smaller_one() -> None:
    small, large = PAIR.inputs(case(batch=2)), PAIR.inputs(case(batch=5))
    np.testing.assert_array_equal(small["rows"], large["rows"][:2])
    for name in ("state", "conv_state"):
        first, second = (given[name][given["slots"].view(np.int32)[:2, 0]] for given in (small, large))
        np.testing.assert_array_equal(first, second)


def test_another_seed_changes_every_random_tensor() -> None:
    axes: dict[str, Any] = {"bias": True, "tokens": 4, "mode": "commit", "batch": 8}
    first, second = PAIR.inputs(case(**axes)), PAIR.inputs(case(seed=4, **axes))
    same = {name for name in first if np.array_equal(first[name], second[name])}
    assert same == {"accepted", "boundary", "boundary_counts"}


def test_amplitudes_go_from_one_to_two_to_the_minus_14() -> None:
    row = PAIR.inputs(case({"q": "amplitudes"}, batch=5))["rows"][:, :768]
    sizes = np.log2(np.abs(decode(row, BF16)).reshape(30, 128).max(axis=1))
    assert sizes.max() > 0
    assert sizes.min() < -12


def test_flat_gates_reach_from_8_to_256() -> None:
    gate = np.abs(decode(PAIR.inputs(case({"out_gate": "flat"}))["rows"][:, 2304:3072], BF16))
    assert gate.min() >= 8
    assert 128 < gate.max() < 256


def test_decays_next_to_one_and_next_to_the_bound() -> None:
    near_one = decode(PAIR.inputs(case({"dt_bias": "near_one"}))["dt_bias"], F32)
    assert near_one.min() >= -18
    assert near_one.max() <= -7
    mixed = np.asarray(decode(PAIR.inputs(case({"dt_bias": "mixed"}))["dt_bias"], F32))
    assert all(some.any() for some in (mixed < -7, np.abs(mixed) < 5, mixed > 7))


def test_powers_of_two_decayed_as_the_bf16_cases_say_are_ties() -> None:
    wanted = case({"state": "powers", "a_log": "largest", "beta": "flat"}, state="bf16", lower_bound=-1.322)
    inputs = PAIR.inputs(wanted)
    assert not (inputs["state"][~is_nan(inputs["state"], BF16)] & 0x7F).any()
    declared = PAIR.declared("candidate", {"nvidia-cutlass-dsl": "4.8.1"}, "sm_90a", wanted)
    assert declared is not None
    found = decays(np.zeros((6, 128), np.uint32), inputs, bits_of(-1.322), Execution(declared))
    assert np.unique(found).tolist() == [0x3E888000, 0x3F800000]  # nine significant bits; 1
