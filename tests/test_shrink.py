"""`equiv shrink`: smaller cases and simpler inputs in which the same output of the same party is still wrong."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import dsa_faults
import equiv_fake
import numpy as np
import pytest

from equiv import casefile, shrink_values
from equiv.bundle import rerun
from equiv.casefile import load
from equiv.cli import main
from equiv.device import device
from equiv.dsa_index import PAIR
from equiv.errors import UsageError
from equiv.pairs import Party
from equiv.records import Case
from equiv.report import shrunk
from equiv.shrink import Fault, Shrunk, shrink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from equiv.pairs import Pair
    from equiv.records import Bits

DEVICE = "emulated:sm_90a"
CASES = {case.id: case for case in load(Path(__file__).parents[1] / "cases" / "dsa_index.toml", PAIR)}
FAKE = Case("fake", "one", "why", 3, ("pr",), {"n": 64, "behaviour": "good"}, {"x": "random"})


def faulty(name: str, **changes: Any) -> Pair:
    return equiv_fake.make(candidate=Party(f"shrink_faults:{name}", ("numpy",)), **changes)


def found(pair: Pair, case: Case = FAKE, budget: float = 60.0) -> Shrunk:
    one = shrink(pair, case, equiv_fake.HostDevice(), budget)
    assert one is not None
    return one


def test_a_fault_of_values_shrinks_to_one_element_with_the_simplest_value() -> None:
    one = found(faulty("large"))
    assert one.fault == Fault("candidate", "output", "y")
    assert one.case.axes == {"n": 1, "behaviour": "good"}
    assert (one.inputs["x"] & 0x7FFFFFFF).tolist() == [0x3F800000]
    assert one.inputs["pool"].tolist() == [[0] * 5] * 3
    assert one.changed == ("x: 1 of 1 elements are not 0", "pool: 0 of 15 elements are not 0")
    assert one.difference is not None
    assert (one.difference.count, one.difference.total, one.over) == (1, 1, False)


def test_a_value_that_has_to_keep_a_bit_keeps_no_more() -> None:
    one = found(faulty("odd"))
    (bits,) = one.inputs["x"].tolist()
    assert bits & 0x007FFFFF in {0x00100000, 0x00300000, 0x00500000, 0x00700000}
    assert any(step.startswith("x: 1 elements cut to 3 mantissa bits") for step in one.steps)


def test_a_fault_of_place_keeps_the_smallest_size_that_has_it() -> None:
    one = found(faulty("behind"))
    assert one.case.axes["n"] == 6
    assert "axes.n: 64 -> 6" in one.steps
    assert np.count_nonzero(one.inputs["x"]) == 0


def test_another_seed_is_tried_where_the_first_element_does_not_show_it() -> None:
    case = next(
        replace(FAKE, seed=seed)
        for seed in range(100)
        if abs(equiv_fake.inputs(replace(FAKE, seed=seed))["x"].view(np.float32)[0]) < 1
    )
    one = found(faulty("large"), case)
    assert one.case.axes["n"] == 1
    assert any(step.startswith(f"seed: {case.seed} -> ") for step in one.steps)


def test_a_value_that_no_other_seed_has_is_moved_to_the_start() -> None:
    one = found(faulty("rare"))
    assert one.case.axes["n"] == 1
    assert one.steps[:2] == ("axes.n: 64 -> 6", "axes.n: 6 -> 1, with the last elements of each tensor")
    assert one.inputs["x"].tolist() == [equiv_fake.inputs(FAKE)["x"][5]]
    assert one.changed == ("x: 1 of 1 elements are not 0", "pool: 0 of 15 elements are not 0")


def test_an_axis_that_the_fault_needs_stays() -> None:
    one = found(equiv_fake.PAIR, replace(FAKE, axes={"n": 64, "behaviour": "wrong"}))
    assert one.case.axes == {"n": 4, "behaviour": "wrong"}


def test_bytes_outside_are_a_fault_of_their_own() -> None:
    one = found(faulty("outside"))
    assert one.fault == Fault("candidate", "memory", "memory")
    assert one.case.axes["n"] == 1
    assert "`pool` stride gap must not change: 1 byte(s) changed" in one.detail
    assert "the candidate changes bytes that it must not" in shrunk.render(one, DEVICE)


def test_an_error_stays_the_same_kind_of_error() -> None:
    case = next(
        replace(FAKE, seed=seed)
        for seed in range(100)
        if equiv_fake.inputs(replace(FAKE, seed=seed))["x"].view(np.float32)[0] > 0
    )
    one = found(faulty("stops"), case)
    assert one.fault == Fault("candidate", "error", "ValueError")
    assert one.case.axes["n"] == 4
    assert one.detail.endswith("ValueError: no room")


def test_what_the_pair_refuses_is_not_tried() -> None:
    pair = faulty("large", check=lambda case: [("axes.n", "odd")] if int(case.axes["n"]) % 16 else [])
    one = found(pair)
    assert one.case.axes["n"] == 16


def test_the_oracle_is_looked_at_where_the_candidate_is_right() -> None:
    pair = equiv_fake.make(oracle=Party("shrink_faults:large", ("numpy",)))
    assert found(pair).fault == Fault("oracle", "output", "y")


def test_no_fault_is_none_and_no_model_a_usage_error() -> None:
    assert shrink(equiv_fake.PAIR, FAKE, equiv_fake.HostDevice(), 9.0) is None
    with pytest.raises(UsageError, match=r"candidate: nothing is declared for numpy .* no model to judge it by"):
        found(equiv_fake.UNKNOWN)


def test_a_spent_budget_ends_it_and_is_said() -> None:
    one = found(faulty("large"), budget=1e-9)
    assert (one.over, one.attempts, one.case, one.changed) == (True, 0, FAKE, ())
    text = shrunk.render(one, DEVICE)
    assert "0 attempts in 0 s, which was all the time given: more of it may lead further" in text
    assert "nothing could be made smaller" in text


def test_the_smaller_case_is_an_entry_that_a_case_file_takes(tmp_path: Path) -> None:
    one = found(faulty("behind"))
    (tmp_path / "fake.toml").write_text(
        'pair = "fake"\n[defaults]\naxes = { n = 100 }\n\n'
        + shrunk.toml(replace(one, case=replace(one.case, id="x" * 80)))
    )
    (case,) = load(tmp_path / "fake.toml", equiv_fake.PAIR)
    assert (case.axes, case.regimes, case.seed, case.suites) == (
        one.case.axes,
        one.case.regimes,
        one.case.seed,
        ("pr", "nightly"),
    )
    assert case.id == "x" * 73 + "-shrunk"
    assert case.why == "Shrunk from fake::" + "x" * 80 + ": y of the candidate differs from its model."


def simplified(bits: Bits, format_: str, stays: Callable[[Bits], bool]) -> tuple[Bits, list[str]]:
    """The last bits that were accepted, and what was said."""
    accepted = [bits]

    def keep(tried: Bits) -> bool:
        if stays(tried):
            accepted.append(tried)
            return True
        return False

    said = list(shrink_values.simpler(bits, format_, keep))
    return accepted[-1], said


@pytest.mark.parametrize("needed", [{0}, {999}, {5, 77}, {10, 11, 12, 500}])
def test_exactly_the_elements_that_are_needed_stay_and_become_one(needed: set[int]) -> None:
    bits = np.random.default_rng(1).integers(0x0101, 0x4000, (10, 100), dtype=np.uint16)
    last, _ = simplified(bits, "bf16", lambda tried: all(tried.ravel()[at] for at in needed))
    assert set(np.flatnonzero(last).tolist()) == needed
    assert {int(one) for one in last[last != 0]} == {0x3F80}


def test_zeros_infinities_and_nans_do_not_become_numbers() -> None:
    bits = np.array([0x0000, 0x8000, 0x7F80, 0xFFC1, 0xC2AB], dtype=np.uint16)
    last, said = simplified(bits, "bf16", lambda tried: bool(tried[1:].all()))
    assert last.tolist() == [0x0000, 0x8000, 0x7F80, 0xFFC1, 0xBF80]
    assert said == ["1 elements set to 1 or -1"]


def test_integers_are_left_alone_and_bytes_only_become_zero() -> None:
    assert simplified(np.arange(4, dtype=np.uint64), "i64", lambda _: True)[1] == []
    last, said = simplified(np.arange(4, dtype=np.uint8), "u8", lambda tried: tried[3] == 3)
    assert (last.tolist(), said) == ([0, 0, 0, 3], ["2 elements set to 0"])


def test_a_seeded_fault_of_one_row_shrinks_to_one_request_and_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of exact powers of two is doubled: one head's amax shows it."""
    compiled: dict[object, object] = {}

    @contextlib.contextmanager
    def exchanged(target: str, helper: object) -> Iterator[None]:  # compiles once, not for each attempt
        with mock.patch("equiv.cute.host._compiled", compiled), mock.patch(target, helper):
            yield

    monkeypatch.setattr(dsa_faults, "exchanged", exchanged)
    one = shrink(dsa_faults.faulty("doubled_exact_powers"), CASES["fp8-b16-amax-edges"], device(DEVICE), 90.0)
    assert one is not None
    assert one.fault == Fault("candidate", "output", "q_codes")
    assert one.case.axes["batch"] == 1
    assert np.count_nonzero(one.inputs["q"]) <= 4
    assert not casefile.problems(one.case, PAIR)


def test_a_fault_of_slots_keeps_its_regime() -> None:
    one = shrink(dsa_faults.faulty("wrapping_slots"), CASES["fp8-b15-skip-even"], device(DEVICE), 60.0)
    assert one is not None
    assert (one.fault.what, one.case.axes["batch"], one.case.regimes["slots"]) == ("cache_rest", 1, "skip_even")
    assert np.count_nonzero(one.inputs["q"]) == 0


def test_the_command_writes_a_bundle_of_the_changed_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("equiv.pairs.get", lambda _name: dsa_faults.faulty("wrapping_slots"))
    out = tmp_path / "small.zip"
    line = ["shrink", "dsa_index::fp8-b15-skip-even", "--device", DEVICE, "--out", str(out)]
    assert main([*line, "--budget", "30"]) == 0
    said = capsys.readouterr().out
    assert "cache_rest of the candidate differs from its model" in said
    assert 'id = "fp8-b15-skip-even-shrunk"' in said
    assert f"run it with: equiv repro --run {out}" in said
    bundle, report = rerun.rerun(out)
    assert (bundle.status, bundle.equal, report.equal) == ("MISMATCH", 2, True)
    assert "q: 0 of 4096 elements are not 0" in bundle.changed
    assert main([*line, "--budget", "30"]) == 2
    assert "small.zip: is there already: name another file with --out" in capsys.readouterr().err


def test_a_case_without_a_fault_is_said_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", "dsa_index::fp8-b17-random", "--device", DEVICE]) == 1
    assert "both parties equal their models: there is no fault to shrink" in capsys.readouterr().out
    assert main(["shrink", "dsa_index", "--device", DEVICE]) == 2
