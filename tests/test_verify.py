"""The whole line on one case: every status is reached, and says what it must."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equiv_fake
import pytest

from equiv.pairs import Pair, Party
from equiv.records import Case, Status, Verdict
from equiv.verify import verify

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from equiv.records import Bits

DEVICE = "emulated:sm_100a"


def verdict(behaviour: str, pair: Pair = equiv_fake.PAIR, device: str = DEVICE, record: Path | None = None) -> Verdict:
    case = Case(pair.name, behaviour, "", 5, ("pr",), {"n": 8, "behaviour": behaviour}, {})
    return verify(pair, case, equiv_fake.HostDevice(device), again="once more", record=record)


def test_equal_bits_everywhere_are_identical() -> None:
    found = verdict("good")
    assert found.status is Status.IDENTICAL
    assert [output.output for output in found.outputs] == ["y", "pool"]
    assert (found.case, found.device, found.seed, found.again) == ("fake::good", DEVICE, 5, "once more")
    assert (found.warp_instructions, found.launch_seconds) == (10, 0.5)  # 5 and 0.25 a party
    assert found.declared == ()
    assert set(found.toolchain) == {"numpy"}


def test_a_declared_difference_is_reordered_and_named() -> None:
    found = verdict("carries", equiv_fake.REORDERED)
    assert found.status is Status.REORDERED
    assert found.declared == ("fake.1: oracle no carry, candidate carry",)
    assert found.outputs[0].envelope_used == 0.5
    assert found.outputs[0].differences[0].count == 1


def test_each_form_of_a_party_has_its_own_declaration_chosen_by_the_case() -> None:
    asked = []

    def declaration(party: str, toolchain: Mapping[str, str], architecture: str, form: str) -> Any:
        asked.append((party, form))
        return equiv_fake.declares(party, carry=form == "wide")

    pair = replace(
        equiv_fake.PAIR,
        declaration=declaration,
        forms={"candidate": ("plain", "wide")},
        form=lambda party, case, arch: "wide" if case.axes["behaviour"] == "carries" else "plain",
    )
    assert verdict("carries", pair).status is Status.REORDERED
    assert verdict("good", pair).status is Status.IDENTICAL
    assert asked == [("oracle", ""), ("candidate", "wide"), ("oracle", ""), ("candidate", "plain")]


def test_an_unknown_declaration_is_within_at_best_and_the_reader_is_told() -> None:
    found = verdict("carries", equiv_fake.UNKNOWN)
    assert found.status is Status.WITHIN
    assert found.declared == ()
    (note,) = found.notes
    assert note.startswith("candidate: nothing is declared for numpy ")
    assert note.endswith("; judged by the envelope only")


def test_an_unknown_declaration_outside_the_envelope_is_a_mismatch() -> None:
    assert verdict("wrong", equiv_fake.UNKNOWN).status is Status.MISMATCH


def test_an_undeclared_difference_is_a_mismatch_that_blames_and_places() -> None:
    found = verdict("wrong")
    assert found.status is Status.MISMATCH
    assert found.summary.startswith("y: the candidate differs from its model in 1 of 8 elements")
    assert found.outputs[0].blamed == "candidate"
    (element,) = found.outputs[0].differences[0].worst
    assert (element.index, element.place, element.ulps) == ((3,), "element 3", 1)
    assert element.got_bits == element.expected_bits + 1


def test_the_pair_says_what_differing_elements_share() -> None:
    def shared(case: Case, given: Mapping[str, Bits], output: str, indices: np.ndarray[Any, Any]) -> str:
        return f"{case.id}: {sorted(given)} {output} {indices.tolist()}"

    found = verdict("wrong", equiv_fake.make(shared=shared))
    assert found.outputs[0].differences[0].pattern.startswith("wrong: ['pool', 'x'] y [[3]]; ")


def test_a_difference_inside_the_envelope_is_a_mismatch_when_it_is_not_declared() -> None:
    assert verdict("carries").status is Status.MISMATCH


def test_a_declared_difference_that_does_not_happen_is_a_mismatch() -> None:
    assert verdict("good", equiv_fake.REORDERED).status is Status.MISMATCH


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("overruns", "`y` guard after must not change: "),
        ("writes_input", "`x` an input that must not change: "),
    ],
)
def test_a_byte_that_must_not_change_is_a_mismatch_though_all_outputs_are_right(behaviour: str, text: str) -> None:
    found = verdict(behaviour)
    assert found.status is Status.MISMATCH
    assert found.outputs[-1].output == "memory of candidate"
    assert found.outputs[-1].summary.startswith(text)
    assert found.outputs[-1].blamed == "candidate"
    assert found.summary.startswith(f"memory of candidate: {text}")
    assert {output.status for output in found.outputs[:-1]} == {Status.IDENTICAL}


def test_what_the_device_finds_is_an_error_that_names_the_party() -> None:
    found = verdict("illegal")
    assert found.status is Status.ERROR
    assert found.summary == (
        "candidate: IllegalAccessError: load of 4 bytes at 0x10: no buffer there\n0x10 was parameter 2"
    )


def test_an_exception_of_a_party_is_an_error_with_its_traceback() -> None:
    found = verdict("raises")
    assert found.status is Status.ERROR
    assert found.summary.startswith("candidate: Traceback (most recent call last)")
    assert found.summary.endswith("ValueError: seven is not a tile size")


def test_what_is_missing_is_unsupported_and_said() -> None:
    assert verdict("needs_moon").summary == "needs package:moon"
    missing = equiv_fake.make(candidate=Party("equiv_fake:candidate", ("no-such-compiler",)))
    found = verdict("good", missing)
    assert found.status is Status.UNSUPPORTED
    assert found.summary == "needs package:no-such-compiler: pip install 'equiv[kernels]'"


def test_an_architecture_that_a_party_has_no_code_for_is_unsupported() -> None:
    found = verdict("good", device="emulated:sm_80")
    assert (found.status, found.summary) == (Status.UNSUPPORTED, "needs arch:sm_90a|sm_100a: oracle on emulated:sm_80")


def test_launch_records_are_kept_by_case_seed_party_and_architecture(tmp_path: Path) -> None:
    verdict("good", record=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fake.good.5.candidate.sm_100a",
        "fake.good.5.oracle.sm_100a",
    ]


def test_what_a_device_remarks_of_a_partys_launches_is_noted_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("good").notes == ()
    monkeypatch.setattr(equiv_fake.HostDevice, "remarks", lambda _: ("nothing vouches for it",))
    assert verdict("good").notes == ("oracle: nothing vouches for it", "candidate: nothing vouches for it")
