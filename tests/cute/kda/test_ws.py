"""`KdaWS`: bits of the model, the same whatever the CTAs, the schedule and the time copies take; races; its PTX.

`KdaWide` declares the same order for every sum, so the two kernels must agree in every bit of every tensor.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import kda_cases
import numpy as np
import pytest
from kda_fused import ARCHES, bits, compiled, resources, run
from kda_plain import Step

from equiv.cute.kda import host
from equiv.cute.kda.ws import KdaWS
from equiv.cute.kda.ws_layout import LIMIT, Layout
from equiv.device import device
from equiv.emulator import engine
from equiv.errors import EmulatorError, UsageError
from equiv.kda import PAIR
from equiv.runner import run_party

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODELLED: dict[str, dict[str, Any]] = {
    "t1": {"batch": 3},
    "t3-first-bias-gate1": {"tokens": 3, "gate_mode": 1, "bias": True, "window": "dim_first"},
    "t2-record": {"tokens": 2, "mode": "record"},
}


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", MODELLED)
def test_every_output_has_the_bits_of_the_model_under_its_declaration(name: str, arch: str) -> None:
    one = kda_cases.case(kernel="ws", ctas=4, **MODELLED[name])
    given = PAIR.inputs(one)
    side = run_party(PAIR, "candidate", one, given, device(f"emulated:{arch}"))
    assert not side.faults
    declaration = PAIR.declared("candidate", side.toolchain, arch, one)
    assert declaration is not None
    assert PAIR.model is not None
    for output, expected in PAIR.model(one, given, declaration).items():
        np.testing.assert_array_equal(side.outputs[output], expected, err_msg=output)


STEPS = {
    "t1": Step(batch=5, heads=3, absent=(1,)),
    "t1-first": Step(batch=4, heads=3, dim_first=True, absent=(3,)),
    "t5-last-bias": Step(tokens=5, batch=3, heads=2, bias=True, gate_mode=1, absent=(0,)),
    "t8-first": Step(tokens=8, batch=3, heads=2, dim_first=True, absent=(1,)),
    "t4-record": Step(tokens=4, batch=3, heads=2, record=True, absent=(0, 2)),
    "absent": Step(tokens=5, batch=3, heads=2, bias=True, gate_mode=1, absent=(0, 1, 2)),
}
ON = {"t1": "sm_90a", "t1-first": "sm_100a", "t5-last-bias": "sm_100a", "t8-first": "sm_90a", "t4-record": "sm_90a",
      "absent": "sm_100a"}  # fmt: skip
"""The architecture that a step runs on: compiling takes most of the time here."""


@cache
def by_wide(name: str) -> dict[str, Any]:
    return run(STEPS[name], ON[name], kernel="wide")


def assert_same_on(name: str, ctas: int = 1) -> None:
    found = run(STEPS[name], ON[name], kernel="ws", ctas=ctas)
    for tensor, expected in by_wide(name).items():
        if expected is not None:
            np.testing.assert_array_equal(bits(found[tensor]), bits(expected), err_msg=f"{name}: {tensor}")


@pytest.mark.parametrize("name", STEPS)
def test_every_tensor_has_the_bits_that_kda_wide_leaves(name: str) -> None:
    assert_same_on(name)


@pytest.mark.parametrize("ctas", [4, 40])
def test_any_number_of_ctas_gives_the_same_bits_and_idle_ones_end(ctas: int) -> None:
    assert_same_on("t1", ctas)


@contextmanager
def launched(**options: Any) -> Iterator[None]:
    """Launches inside run with these options of the engine."""
    with mock.patch.object(engine, "launch", partial(_overruling, engine.launch, options)):
        yield


def _overruling(launch: Any, options: dict[str, Any], *given: Any, **named: Any) -> Any:
    return launch(*given, **(named | options))


@pytest.mark.parametrize("options", [{"seed": 3}, {"completion": "late"}, {"seed": 8, "completion": "late"}], ids=str)
@pytest.mark.parametrize("name", ["t1", "t8-first", "t4-record"])
def test_no_schedule_and_no_late_copy_changes_a_bit(name: str, options: dict[str, Any]) -> None:
    with launched(**options):
        assert_same_on(name)


@pytest.mark.parametrize("name", ["t1", "t1-first", "t5-last-bias", "t4-record"])
def test_accesses_to_shared_memory_are_ordered_in_every_schedule(name: str) -> None:
    with launched(check="race"):
        assert_same_on(name)


class Hasty(KdaWS):
    """Reuses an operand block without waiting for the scan group."""

    def wait_for_block(self, shared: Any, index: Any, j: Any) -> None:
        pass


def test_a_block_that_is_reused_without_waiting_is_a_race() -> None:
    with (
        mock.patch("equiv.cute.kda.ws.KdaWS", Hasty),
        launched(check="race"),
        pytest.raises(EmulatorError, match=r"write of shared address .* nothing orders the two"),
    ):
        run(STEPS["t1"], "sm_90a", kernel="ws", ctas=1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(name, architecture) -> PTX and cubin."""
    made: dict[tuple[str, str], tuple[str, bytes]] = {}

    def get(name: str, arch: str) -> tuple[str, bytes]:
        if (name, arch) not in made:
            step = replace(STEPS[name], batch=1, heads=6, absent=())
            call = host.kda_record if step.record else host.kda_step
            arguments = {**step.copy(), **step.options, "kernel": "ws"}
            made[name, arch] = compiled(lambda: call(**arguments), arch, tmp_path_factory.mktemp("cute"))
        return made[name, arch]

    return get


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["t1", "t4-record"])
def test_both_roles_fit_their_registers(built: Any, name: str, arch: str, tmp_path: Path) -> None:
    ptx, cubin = built(name, arch)
    assert ".local" not in ptx
    assert re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32\s+(\d+)", ptx) == [("inc", "168"), ("dec", "88")]
    usage = resources(cubin, tmp_path)
    assert "REG:128 " in usage
    assert "STACK:0 " in usage


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["t1", "t4-record"])
def test_no_product_can_be_contracted_and_approximations_are_stocks(built: Any, name: str, arch: str) -> None:
    ptx, _ = built(name, arch)
    assert set(re.findall(r"\b(mul\.[\w.]*f32\w*)", ptx)) == (
        {"mul.rn.f32", "mul.rn.f32x2"} if arch == "sm_100a" else {"mul.rn.f32"}
    )
    assert set(re.findall(r"\b((?:ex2|rcp|sqrt|rsqrt|div)\.[\w.]*f32)", ptx)) == {
        "ex2.approx.f32",
        "rcp.approx.ftz.f32",
        "sqrt.approx.ftz.f32",
        "div.full.f32",
    }


def test_a_window_is_stored_in_bulk_only_where_its_channels_are_rows(built: Any) -> None:
    store = "cp.async.bulk.global.shared::cta"
    assert built("t8-first", "sm_90a")[0].count(store) == 3
    assert store not in built("t1", "sm_90a")[0]


def test_one_token_leaves_room_for_two_state_pages_and_few_for_f_b() -> None:
    sizes = [(Layout(tokens, 3).pages, Layout(tokens, 3).resident) for tokens in (1, 2, 5, 6, 8)]
    assert sizes == [(2, True), (1, True), (1, True), (1, False), (1, False)]
    assert max(Layout(tokens, columns).bytes for tokens in range(1, 9) for columns in (3, tokens + 2)) <= LIMIT


def test_the_largest_step_fits_a_cta() -> None:
    assert Layout(8, 10).bytes <= LIMIT
    with pytest.raises(UsageError, match=r"tokens=8 and window=40 need \d+ shared bytes of the 232448 there are"):
        KdaWS(6, 8, False, 0, False, True, 40, 8)
    KdaWS(6, 8, False, 0, False, False, 40, 8)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"heads": 0}, "heads must be positive; got heads=0"),
    "tokens": ({"tokens": 9}, "tokens must be 1 to 8; got tokens=9"),
    "record": ({"tokens": 1, "record": True}, "record needs more than one token; got tokens=1"),
    "gate": ({"gate_mode": 2}, "gate_mode must be 0 or 1; got gate_mode=2"),
    "window": ({"window": 3}, r"window must be at least tokens \+ 2 = 4 columns; got window=3"),
    "ctas": ({"ctas": 0}, "ctas must be positive; got ctas=0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_constructor_argument_out_of_range_is_named(name: str) -> None:
    given, message = WRONG[name]
    right = {"heads": 2, "tokens": 2, "record": False, "gate_mode": 0, "has_bias": False, "conv_dim_first": False}
    with pytest.raises(UsageError, match=message):
        KdaWS(**({**right, "window": 4, "ctas": 1} | given))
