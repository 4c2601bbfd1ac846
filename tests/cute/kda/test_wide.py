"""`KdaWide`: its results against float64 and, bit for bit, against the model; what it must not touch; its PTX.

Contract: windows, keys and raw gates of a record are exact; an absent request gets +0 and changes nothing else.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import kda_cases
import numpy as np
import pytest
import torch
from kda_fused import ARCHES, bits, compiled, resources, run
from kda_plain import Step, front, recur, wide

from equiv.cute.kda import host
from equiv.cute.kda.wide import KdaWide
from equiv.device import device
from equiv.errors import UsageError
from equiv.kda import PAIR
from equiv.runner import run_party

if TYPE_CHECKING:
    from pathlib import Path

STEPS = {
    "t1": Step(batch=3, absent=(1,)),
    "t3-gate1": Step(tokens=3, batch=3, gate_mode=1, absent=(0,)),
    "t2-bf16-bias-first": Step(tokens=2, state=torch.bfloat16, bias=True, dim_first=True),
    "record": Step(tokens=3, batch=3, record=True, absent=(2,)),
}


def real(step: Step) -> list[int]:
    return [b for b in range(step.batch) if b not in step.absent]


@cache
def after(name: str, arch: str) -> dict[str, Any]:
    return run(STEPS[name], arch)


@cache
def plain(name: str) -> tuple[Any, Any]:
    made = front(STEPS[name], offset=not STEPS[name].record)
    return made, recur(STEPS[name], made)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", STEPS)
def test_outputs_and_states_are_those_of_the_formulas(name: str, arch: str) -> None:
    step, found, (_, exact) = STEPS[name], after(name, arch), plain(name)
    y = wide(found["y"]).reshape(step.batch, step.tokens, step.heads, 128)
    narrow = step.state == torch.bfloat16
    for b in real(step):
        # A BF16 flip of o moves a whole row's norm by up to 2^-9, the output's own rounding comes on top.
        np.testing.assert_allclose(y[b], exact.y[b], rtol=2**-6, atol=2**-9)
        if step.record:
            np.testing.assert_allclose(wide(found["corrections"][b]).swapaxes(0, 1), exact.corrections[b], atol=2e-5)
            continue
        for t in range(step.tokens):
            state = wide(found["state"][int(step.tensors["slots"][b, t])])
            np.testing.assert_allclose(state, exact.states[b, t], rtol=2**-8 if narrow else 1e-5, atol=2e-5)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", STEPS)
def test_windows_become_the_last_inputs_and_their_other_columns_stay(name: str, arch: str) -> None:
    step, found, (made, _) = STEPS[name], after(name, arch), plain(name)
    for b in real(step):
        slot = int(step.tensors["slots"][b, 0])
        written = made.window[b][:, : step.tokens + 2]
        np.testing.assert_array_equal(wide(found["conv_state"][slot])[:, : step.tokens + 2], written)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", [name for name, step in STEPS.items() if step.record])
def test_records_hold_keys_and_raw_gates_exactly(name: str, arch: str) -> None:
    step, found, (made, _) = STEPS[name], after(name, arch), plain(name)
    for b in real(step):
        record = wide(found["key_gate"][b]).swapaxes(0, 1)
        for at, exact in ((0, made.k[b]), (128, made.raw[b])):
            # The reference rounds the exact value: a sum that another order puts across a midpoint is one step off.
            apart = np.abs(record[..., at : at + 128] - exact)
            assert (apart <= 2**-7 * np.abs(exact) + 1e-6).all()
            assert np.mean(apart != 0) < 0.01


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", STEPS)
def test_an_absent_request_gets_zeros_and_nothing_else_changes(name: str, arch: str) -> None:
    step, found, given = STEPS[name], after(name, arch), STEPS[name].tensors
    y = bits(found["y"]).reshape(step.batch, step.tokens, -1)
    for b in step.absent:
        assert not y[b].any(), "an absent request's rows must be +0"
    owned = given["slots"][real(step)]
    windows = np.setdiff1d(np.arange(len(given["conv_state"])), owned[:, 0].numpy())
    np.testing.assert_array_equal(bits(found["conv_state"][windows]), bits(given["conv_state"][windows]))
    written = owned.numpy() if not step.record else []
    pages = np.setdiff1d(np.arange(len(given["state"])), written)
    np.testing.assert_array_equal(bits(found["state"][pages]), bits(given["state"][pages]))
    for record in ("corrections", "key_gate") if step.record else ():
        untouched = [*step.absent]
        np.testing.assert_array_equal(bits(found[record][untouched]), bits(given[record][untouched]))
    for name_of in ("rows", "conv_w", "a_log", "dt_bias", "f_b", "norm_w", "slots", "accepted"):
        np.testing.assert_array_equal(bits(found[name_of]), bits(given[name_of]), err_msg=name_of)


def test_both_architectures_give_the_same_bits() -> None:
    for name in STEPS:
        one, other = (after(name, arch) for arch in ARCHES)
        for tensor in ("y", "state", "conv_state"):
            np.testing.assert_array_equal(bits(one[tensor]), bits(other[tensor]), err_msg=f"{name}: {tensor}")


@pytest.mark.parametrize("slots", [[[-1, 3]], [[0, 3]]], ids=["negative", "null"])
def test_a_request_without_a_first_slot_is_absent_whatever_it_accepted(slots: list[list[int]]) -> None:
    step = Step(batch=1, tokens=2, heads=1)
    given = step.copy()
    given["slots"], given["accepted"] = torch.tensor(slots).int(), torch.tensor([2]).int()
    found = run(step, "sm_100a", tensors=given)
    assert not bits(found["y"]).any()
    np.testing.assert_array_equal(bits(found["state"]), bits(step.tensors["state"]))
    np.testing.assert_array_equal(bits(found["conv_state"]), bits(step.tensors["conv_state"]))


MODELLED: dict[str, dict[str, Any]] = {
    "sm_90a": {"tokens": 2, "gate_mode": 1, "bias": True, "window": "dim_first"},
    "sm_100a": {"tokens": 2, "mode": "commit"},
}


@pytest.mark.parametrize("arch", MODELLED)
def test_every_output_has_the_bits_of_the_model_under_its_declaration(arch: str) -> None:
    one = kda_cases.case(kernel="wide", **MODELLED[arch])
    given = PAIR.inputs(one)
    side = run_party(PAIR, "candidate", one, given, device(f"emulated:{arch}"))
    assert not side.faults
    declaration = PAIR.declared("candidate", side.toolchain, arch, one)
    assert declaration is not None
    assert PAIR.model is not None
    for output, expected in PAIR.model(one, given, declaration).items():
        np.testing.assert_array_equal(side.outputs[output], expected, err_msg=output)


LARGE = {
    "t1": Step(batch=1, heads=1),
    "t8-record": Step(batch=1, heads=1, tokens=8, record=True, gate_mode=1),
    "t8-bf16": Step(batch=1, heads=1, tokens=8, state=torch.bfloat16),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(name, architecture) -> PTX and cubin."""
    made: dict[tuple[str, str], tuple[str, bytes]] = {}

    def get(name: str, arch: str) -> tuple[str, bytes]:
        if (name, arch) not in made:
            step = LARGE[name]
            call = host.kda_record if step.record else host.kda_step
            arguments = {**step.copy(), **step.options, "kernel": "wide"}
            made[name, arch] = compiled(lambda: call(**arguments), arch, tmp_path_factory.mktemp("cute"))
        return made[name, arch]

    return get


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", LARGE)
def test_the_state_stays_in_registers(built: Any, name: str, arch: str, tmp_path: Path) -> None:
    ptx, cubin = built(name, arch)
    assert ".local" not in ptx
    usage = resources(cubin, tmp_path)
    assert "STACK:0 " in usage
    assert "LOCAL:0 " in usage


@pytest.mark.parametrize("arch", ARCHES)
def test_no_product_can_be_contracted_and_approximations_are_stocks(built: Any, arch: str) -> None:
    ptx, _ = built("t8-record", arch)
    assert set(re.findall(r"\b(mul\.[\w.]*f32\w*)", ptx)) == (
        {"mul.rn.f32", "mul.rn.f32x2"} if arch == "sm_100a" else {"mul.rn.f32"}
    )
    assert set(re.findall(r"\b((?:ex2|rcp|sqrt|rsqrt|div)\.[\w.]*f32)", ptx)) == {
        "ex2.approx.f32",
        "rcp.approx.ftz.f32",
        "sqrt.approx.ftz.f32",
        "div.full.f32",
    }


def test_only_sm_100a_has_packed_arithmetic(built: Any) -> None:
    assert "f32x2" not in built("t1", "sm_90a")[0]
    packed = built("t1", "sm_100a")[0]
    # A thread's 64 elements: decayed and added to the dot, updated and added to the output, in pairs.
    assert packed.count("mul.rn.f32x2") == 32 + 2 * 8
    assert packed.count("fma.rn.f32x2") == 32 + 2 * 24


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"heads": 0}, "heads must be at least 1; got heads=0"),
    "tokens": ({"tokens": 9}, "tokens must be 1 to 8; got tokens=9"),
    "record": ({"tokens": 1, "record": True}, "record needs more than one token a request; got tokens=1"),
    "gate": ({"gate_mode": 2}, r"gate_mode must be 0 \(one chain\) or 1 \(four chains\); got gate_mode=2"),
    "window": ({"window": 3}, r"window must hold tokens \+ 2 = 4 columns; got window=3"),
    "ctas": ({"ctas": 4}, "ctas must be 0 for KdaWide, which gives every item a CTA; got ctas=4"),
    "state": ({"state": "f16"}, "state must be 'f32' or 'bf16'; got state='f16'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_constructor_argument_out_of_range_is_named(name: str) -> None:
    given, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        KdaWide(**({"heads": 2, "tokens": 2, "window": 4} | given))
