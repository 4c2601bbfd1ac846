"""Does equiv find the bug in the front? Known faults of such kernels, seeded into `IndexFrontMma`, are caught."""

from __future__ import annotations

from pathlib import Path

import pytest
from front_faults import faulty

from equiv.casefile import load
from equiv.device import device
from equiv.dsa_front import PAIR
from equiv.explain import explain
from equiv.records import Status, Verdict
from equiv.report.text import case_text
from equiv.verify import verify

CASES = {case.id: case for case in load(Path(__file__).parents[2] / "cases" / "dsa_front.toml", PAIR)}


def verdict(fault: str, name: str) -> Verdict:
    return verify(faulty(fault), CASES[name], device("emulated:sm_100a"))


@pytest.mark.parametrize(
    ("fault", "name", "counts"),
    [
        ("last_block_dropped", "fp8-b16-integers", {"q_codes": 61572, "weights": 14}),
        ("slices_in_descending_order", "fp8-cancelling-halves", {"q_codes": 63}),
        ("norm_rounded_twice", "fp8-b17-random", {"q_codes": 6459, "weights": 2}),
        ("scale_rounded_down", "fp8-b16-amax-edges", {"q_codes": 41681, "weights": 328}),
    ],
)
def test_a_fault_of_the_arithmetic_is_the_candidates_and_shows_in_these_outputs(
    fault: str, name: str, counts: dict[str, int]
) -> None:
    found = verdict(fault, name)
    assert found.status is Status.MISMATCH
    bad = [output for output in found.outputs if output.status is Status.MISMATCH]
    assert {output.blamed for output in bad} == {"candidate"}
    assert {output.output: output.differences[0].count for output in bad} == counts
    assert all("the oracle equals its own" in output.summary for output in bad)
    floor = "q_codes with weights: scale convention: 512 of 512 heads fit floor, 2^floor(log2(amax / 448))"
    assert (floor in " ".join(found.notes)) == (fault == "scale_rounded_down")


def test_an_epilogue_that_does_not_wait_for_the_products_reads_what_nobody_wrote() -> None:
    found = verdict("accumulator_read_early", "fp8-b16-integers")
    assert found.status is Status.ERROR
    text = case_text(found)
    assert "`tcgen05.ld.sync.aligned.32x32b.x16.b32`" in text
    assert "512 words of tensor memory from 0x00000000 are read, and none of them was ever written" in text


def test_a_mailbox_that_expects_too_few_bytes_is_read_before_they_have_come() -> None:
    found = verdict("mailbox_expects_too_few", "fp8-b16-integers")
    assert found.status is Status.ERROR
    text = case_text(found)
    assert "`ld.shared." in text
    assert "never written" in text


def test_split_sums_added_in_the_wrong_order_are_named_as_an_order() -> None:
    (found,) = explain(faulty("slices_in_descending_order"), CASES["fp8-cancelling-halves"], device("emulated:sm_100a"))
    assert found.explained
    assert ("the terms of projection were added in another order: its last additions taken in reverse",) in [
        reading.changes for reading in found.readings
    ]
