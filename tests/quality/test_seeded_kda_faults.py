"""Does equiv find the bug in KDA? The faults that its issue names are caught on both architectures, and named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kda_faults import NINE, SCHEDULE
from seeded import Fault, faulty, found

from equiv.casefile import load
from equiv.device import device
from equiv.kda import PAIR
from equiv.records import Status, Verdict
from equiv.verify import verify

DEVICES = ("emulated:sm_90a", "emulated:sm_100a")
CASES = {case.id: case for case in load(Path(__file__).parents[2] / "cases" / "kda.toml", PAIR)}


def verdict(fault: Fault, on: str, check: str | None = None) -> Verdict:
    return verify(faulty(PAIR, fault, "kda_faults"), CASES[fault.case], device(on, check=check))


@pytest.mark.parametrize("on", DEVICES)
@pytest.mark.parametrize("fault", NINE, ids=lambda fault: fault.name)
def test_a_fault_is_a_mismatch_of_the_candidate_with_its_model_in_the_outputs_it_reaches(fault: Fault, on: str) -> None:
    assert "pr" in CASES[fault.case].suites
    seen = verdict(fault, on)
    assert seen.status is Status.MISMATCH
    bad = [output for output in seen.outputs if output.status is Status.MISMATCH]
    assert {output.blamed for output in bad} == {"candidate"}
    assert {output.output for output in bad} == set(fault.wrong)


@pytest.mark.parametrize("fault", NINE, ids=lambda fault: fault.name)
def test_a_fault_is_placed_at_its_ledger_row_or_is_a_fault_of_the_state(fault: Fault) -> None:
    on = DEVICES[NINE.index(fault) % 2]
    assert fault.named in found(PAIR, "kda_faults", fault, CASES[fault.case], on)


@pytest.mark.parametrize("on", DEVICES)
def test_an_operand_block_that_is_reused_too_early_is_named_by_both_accesses(on: str) -> None:
    seen = verdict(SCHEDULE[0], on, "race")
    assert seen.status is Status.ERROR
    assert re.search(
        r"PTX line \d+ `st\.shared\.b32`, CTA \(0, 0, 0\) warp 11 lane 0: write of shared address \S+ .* "
        r"after the read by PTX line \d+ `ld\.shared\.\S+`, CTA \(0, 0, 0\) warp 7: nothing orders the two",
        seen.summary,
    )
    plain = verdict(SCHEDULE[0], on)
    assert plain.status is Status.ERROR
    assert "128 of 128 arrivals are missing" in plain.summary


@pytest.mark.parametrize("name", sorted({fault.case for fault in (*NINE, *SCHEDULE)}))
def test_the_sound_candidate_passes_the_cases_that_catch_the_faults(name: str) -> None:
    seen = verify(PAIR, CASES[name], device("emulated:sm_90a", check="race"))
    assert seen.status in {Status.IDENTICAL, Status.REORDERED}
