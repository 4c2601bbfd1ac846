"""Does equiv find the bug? Known faults of such kernels, seeded into the candidate, are caught and named to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from dsa_faults import faulty

from equiv.casefile import load
from equiv.device import device
from equiv.dsa_index import PAIR
from equiv.records import Case, Difference, Status, Verdict
from equiv.report.text import case_text
from equiv.verify import verify

DEVICES = ("emulated:sm_90a", "emulated:sm_100a")
CASES = {case.id: case for case in load(Path(__file__).parents[2] / "cases" / "dsa_index.toml", PAIR)}


def case(name: str) -> Case:
    return CASES[name]


def verdict(fault: str, name: str, on: str) -> Verdict:
    return verify(faulty(fault), case(name), device(on))


def wrong(found: Verdict) -> dict[str, Difference]:
    """Output -> how the candidate differs from its model, of the outputs that do not match; nobody else is blamed."""
    assert found.status is Status.MISMATCH
    bad = [output for output in found.outputs if output.status is Status.MISMATCH]
    assert {output.blamed for output in bad} == {"candidate"}
    for output in bad:
        assert output.summary.startswith("the candidate differs from its model in ")
        assert output.summary.endswith("; the oracle equals its own")
    return {output.output: difference for output in bad for difference in output.differences}


@pytest.mark.parametrize("on", DEVICES)
def test_a_truncating_e4m3_conversion_is_named_with_element_and_bits(on: str) -> None:
    found = verdict("truncating_e4m3", "fp8-b17-ties", on)
    differences = wrong(found)
    assert set(differences) == {"q_codes", "key_codes"}
    codes = differences["q_codes"]
    assert (codes.left, codes.right, codes.format) == ("model", "candidate", "e4m3")
    assert codes.pattern == "each one code towards zero"
    assert (codes.count, codes.total) == (33357, 17 * 32 * 128)
    for element in codes.worst:
        request, head, channel = element.index
        assert element.place == f"request {request}, head {head}, channel {channel}"
        assert (element.expected_bits - element.got_bits, element.ulps) == (1, 1)
        assert abs(element.got) < abs(element.expected)
    assert (
        "      at      [0, 0, 2] request 0, head 0, channel 2  expected 0xac -0.375   got 0xab -0.34375   1 ulp\n"
    ) in case_text(found)


@pytest.mark.parametrize("on", DEVICES)
def test_a_scale_exponent_off_by_one_for_exact_powers_shows_in_weights_and_codes(on: str) -> None:
    differences = wrong(verdict("doubled_exact_powers", "fp8-b16-amax-edges", on))
    assert set(differences) == {"q_codes", "weights"}
    weights, codes = differences["weights"], differences["q_codes"]
    assert weights.pattern == "each 2 times the expected value"
    assert codes.pattern == "each 0.5 times the expected value"
    assert (weights.count, weights.total) == (166, 512)
    assert (codes.count, codes.total) == (166 * 128, 512 * 128)
    for element in weights.worst:
        assert element.place == f"request {element.index[0]}, head {element.index[1]}"
        assert (element.got_bits - element.expected_bits, element.ulps) == (0x80, 0x80)


@pytest.mark.parametrize("on", DEVICES)
def test_a_negative_slot_that_wraps_to_the_last_slot_is_named_by_the_bytes_it_overwrites(on: str) -> None:
    found = verdict("wrapping_slots", "fp8-b15-skip-even", on)
    differences = wrong(found)
    assert set(differences) == {"cache_rest"}
    rest = differences["cache_rest"]
    assert rest.pattern == "all in slot 127 (page 1), which nothing writes"
    assert 125 < rest.count <= 132  # a byte in 256 is what it was before
    for element in rest.worst:
        at = element.index[0] - rest.worst[0].index[0]
        assert at == 0 or element.place.startswith("page 1, byte ")
        assert ("value" if at < 128 else "scale") + " byte " in element.place
        assert element.place.endswith("of position 63, slot 127, which nothing writes)")
    assert "      where   all in slot 127 (page 1), which nothing writes\n" in case_text(found)


@pytest.mark.parametrize("name", ["fp8-b17-ties", "fp8-b16-amax-edges", "fp8-b15-skip-even"])
def test_the_sound_candidate_passes_the_cases_that_catch_the_faults(name: str) -> None:
    assert verify(PAIR, case(name), device("emulated:sm_90a")).status in {Status.IDENTICAL, Status.REORDERED}
