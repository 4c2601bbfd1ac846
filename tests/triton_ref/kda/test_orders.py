"""The stock KDA chain, emulated, has every bit of the model under the orders declared for it, in all its forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kda_cases import case

from equiv.emulator.device import EmulatedDevice
from equiv.kda import PAIR
from equiv.rounding.declaration import Declaration, differences
from equiv.rounding.declarations import find
from equiv.runner import run_party

ARCHES = ("sm_90a", "sm_100a")
FORMS: dict[str, dict[str, Any]] = {
    "packed": {},
    "packed-bf16": {"state": "bf16", "kernel": "wide"},
    "multi": {"tokens": 3, "gate_mode": 1},
    "multi-bf16": {"tokens": 3, "state": "bf16", "kernel": "wide"},
    "verify": {"tokens": 3, "mode": "commit"},
    "verify-bf16": {"tokens": 3, "mode": "commit", "state": "bf16", "kernel": "wide"},
}
CONTRACT_OF_THE_CANDIDATE = "y_absent"


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("form", FORMS)
def test_the_chain_is_bitwise_what_its_declaration_says(form: str, arch: str) -> None:
    one = case(batch=2, **FORMS[form])
    assert PAIR.form is not None
    assert PAIR.form("oracle", one, "sm_90a") == form
    given = PAIR.inputs(one)
    side = run_party(PAIR, "oracle", one, given, EmulatedDevice(arch))
    wanted = PAIR.model(one, given, PAIR.declared("oracle", side.toolchain, arch, one))
    assert side.faults == ()
    for name in set(wanted) - {CONTRACT_OF_THE_CANDIDATE}:
        assert np.array_equal(side.outputs[name], wanted[name]), name


@pytest.mark.parametrize(("batch", "rows"), [(8, 4), (9, 8), (17, 16), (33, 8)])
def test_the_number_of_state_rows_follows_the_programs_and_changes_no_order(batch: int, rows: int) -> None:
    from equiv.triton_ref.kda.recur import value_rows

    assert value_rows(6, batch) == rows
    one = case(batch=batch, tokens=2)
    given = PAIR.inputs(one)
    side = run_party(PAIR, "oracle", one, given, EmulatedDevice("sm_100a"))
    wanted = PAIR.model(one, given, PAIR.declared("oracle", side.toolchain, "sm_100a", one))
    assert np.array_equal(side.outputs["state"], wanted["state"])
    assert np.array_equal(side.outputs["y"], wanted["y"])


def declared(version: str, arch: str, form: str) -> Declaration:
    """What the oracle declares for one version."""
    found = find("kda", "oracle", {"triton": version}, arch, form)
    assert found is not None
    return found


def test_versions_and_architectures_add_in_different_orders() -> None:
    said = differences(declared("3.6.0", "sm_90a", "packed"), declared("3.8.0", "sm_90a", "packed"))
    assert [line.partition(":")[0] for line in said] == ["order dot", "order norm.squares", "order out"]
    said = differences(declared("3.8.0", "sm_100a", "multi"), declared("3.8.0", "sm_90a", "multi"))
    assert [line.partition(":")[0] for line in said] == [
        *("order dot", "order gate.0", "order gate.1", "order norm.squares", "order out", "order q.squares")
    ]
    assert find("kda", "oracle", {"triton": "3.7.0"}, "sm_90a", "packed") is None
