"""The case file that ships: it loads, covers what it must, and its constructed cases hit what their `why` says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from front_cases import oracle, sliced

from equiv import casefile
from equiv.cute.dsa.tiling import CtaPlan, front_tiling
from equiv.dsa_front import PAIR
from equiv.dsa_front.regimes import REGIMES
from equiv.dsa_index.regimes import REGIMES as INDEX
from equiv.rounding import dsa, front
from equiv.rounding.declarations.front_candidate import SPLITS
from equiv.rounding.formats import BF16, decode
from equiv.rounding.front_ledger import LEDGER
from equiv.rounding.projection import part_of

CASES = casefile.load(Path(__file__).parents[2] / "cases" / "dsa_front.toml", PAIR)
PR = [case for case in CASES if "pr" in case.suites]
BY_ID = {case.id: case for case in CASES}
BOUNDARIES = {1, 4, 12, 13, 15, 16, 17, 24, 25, 32, 33, 36, 37, 48, 49, 64, 65, 72, 73, 96, 97, 128, 129, 145}
NIGHTLY = {144, 192, 193, 256, 257, 320, 321, 385, 449, 512, 1024}


def test_suites_have_the_sizes_that_were_promised() -> None:
    assert len([case for case in CASES if "smoke" in case.suites]) == 5
    assert len(PR) >= 60
    assert len(CASES) > len(PR)


def test_both_sides_of_every_tiling_boundary_are_there() -> None:
    assert {int(case.axes["batch"]) for case in PR} >= BOUNDARIES
    assert {int(case.axes["batch"]) for case in CASES} >= BOUNDARIES | NIGHTLY


def test_every_slicing_is_in_pr_with_and_without_the_norm_and_in_both_formats() -> None:
    assert PAIR.form is not None
    for arch, splits in SPLITS.items():
        forms = {f"split{split}" for split in splits}
        assert forms <= set(PAIR.forms["candidate"])
        found = {(PAIR.form("candidate", case, arch), case.axes["normalized"]) for case in PR}
        assert found == {(form, normalized) for form in forms for normalized in (False, True)}
        formats = {(PAIR.form("candidate", case, arch), case.axes["format"]) for case in PR}
        assert formats == {(form, name) for form in forms for name in ("fp8", "fp4")}


def test_a_name_that_says_a_tiling_has_it() -> None:
    named = {case.id: (case, found) for case in CASES if (found := re.search(r"-n(\d+)(?:s(\d))?-", case.id))}
    assert len(named) > 100
    for case, found in named.values():
        tiling = front_tiling(int(case.axes["batch"]))
        assert (str(tiling.n), str(tiling.split)) == (found[1], found[2] or "4"), case.id


def test_every_regime_of_latent_weights_and_gamma_is_in_pr() -> None:
    used = {(piece, regime) for case in PR for piece, regime in case.regimes.items()}
    mine = {piece: known[1:] for piece, known in REGIMES.items() if piece not in INDEX}
    assert {(piece, regime) for piece, known in mine.items() for regime in known} - used == set()


def test_every_choice_of_every_axis_is_in_pr() -> None:
    for axis in PAIR.axes:
        assert set(axis.choices) <= {case.axes[axis.name] for case in PR}, axis.name


def test_a_why_is_a_sentence_and_none_is_used_twice() -> None:
    whys = [case.why for case in CASES]
    assert len(set(whys)) == len(whys)
    assert all(len(why) > 25 and why.endswith(".") for why in whys)


def test_every_kernel_of_pr_meets_values_that_are_aimed_at_it() -> None:
    options = ("format", "scale", "rows", "normalized", "key_round", "key_floor")
    met: dict[object, set[str]] = {}
    for case in PR:
        kernel = CtaPlan.of(front_tiling(int(case.axes["batch"]))), *(case.axes[name] for name in options)
        met.setdefault(kernel, set()).add(case.regimes.get("norm_b", ""))
    assert len(met) == 16
    assert all({"aimed_tokens", "zero"} <= pieces for pieces in met.values()), met


def test_pr_stays_small_enough_to_be_emulated() -> None:
    assert sum(int(case.axes["batch"]) for case in PR) < 5700
    assert sum(int(case.axes["batch"]) > 97 for case in PR) <= 15


@pytest.mark.parametrize("name", ["fp8-b16-integers", "fp4-integers", "fp8-b50-integers", "fp4-b130-integers"])
def test_whole_numbers_give_the_same_bits_in_every_slicing(name: str) -> None:
    inputs = PAIR.inputs(BY_ID[name])
    whole, halves = (PAIR.model(BY_ID[name], inputs, sliced(split)) for split in (1, 2))
    for output, bits in whole.items():
        np.testing.assert_array_equal(bits, halves[output], err_msg=output)
    assert len(np.unique(whole["q_codes"])) > 10


@pytest.mark.parametrize(("name", "split"), [("fp8-cancelling-halves", 4), ("fp8-b52-cancelling-halves", 2)])
def test_cancelling_halves_show_slices_in_the_codes(name: str, split: int) -> None:
    inputs = PAIR.inputs(BY_ID[name])
    whole, parts = (PAIR.model(BY_ID[name], inputs, declared) for declared in (sliced(1), sliced(split)))
    assert (whole["q_codes"] != parts["q_codes"]).mean() > 0.01
    run = dsa.runner(oracle(), LEDGER)
    totals = front.project(part_of(oracle().order("projection")), inputs["w_q"], inputs["q_c"], run)
    assert np.count_nonzero(totals) > 0.999 * totals.size


def test_projected_heads_reach_448_times_a_power_of_two() -> None:
    case = BY_ID["fp8-b16-amax-edges"]
    inputs = PAIR.inputs(case)
    found = PAIR.model(case, inputs, oracle())
    assert (found["q_codes"] & 0x7F).max() == 0x7E
    heads = np.abs(decode(inputs["q_c"], BF16)).reshape(len(inputs["q_c"]), 12, 128).max(axis=2)
    mantissa, _ = np.frexp(heads)
    assert (mantissa == 448 / 512).mean() > 0.2


def test_large_rows_hold_some_whose_root_is_zero_and_some_whose_is_not() -> None:
    inputs = PAIR.inputs(BY_ID["fp8-large-rows"])
    codes = PAIR.model(BY_ID["fp8-large-rows"], inputs, oracle())["q_codes"]
    zero = ~(codes & 0x7F).any(axis=(1, 2))
    assert 0 < zero.sum() < len(codes)


@pytest.mark.parametrize("name", ["fp8-b33-nan-elements", "fp8-nan-weights", "fp8-overflowing-heads"])
def test_of_undefined_cases_most_is_defined(name: str) -> None:
    open_ = PAIR.undefined(BY_ID[name], PAIR.inputs(BY_ID[name]))["weights"]
    assert 0 < open_.mean() < 0.5


def test_fold_edges_hold_weights_for_which_the_declared_products_differ() -> None:
    one = BY_ID["fp8-weight-fold-edges"]
    inputs = PAIR.inputs(one)
    two, folded = (
        PAIR.model(one, inputs, oracle(), LEDGER.replace("dsa.R15a", s)) for s in ("two_constants", "folded")
    )
    assert (two["weights"] != folded["weights"]).any()
