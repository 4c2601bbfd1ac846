"""The case file that ships: it loads, covers what it must, and its constructed cases hit what their `why` says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv import casefile
from equiv.dsa_index import PAIR
from equiv.dsa_index.regimes import REGIMES
from equiv.rounding.declarations.dsa import DECLARATIONS
from equiv.rounding.formats import BF16, F32, decode

if TYPE_CHECKING:
    from equiv.records import Case

CASES = casefile.load(Path(__file__).parents[2] / "cases" / "dsa_index.toml", PAIR)
PR = [case for case in CASES if "pr" in case.suites]
BY_ID = {case.id: case for case in CASES}


def test_suites_have_the_sizes_that_were_promised() -> None:
    assert len([case for case in CASES if "smoke" in case.suites]) == 9
    assert len(PR) >= 65
    assert len(CASES) > len(PR)


def test_every_regime_of_every_piece_is_in_pr() -> None:
    used = {(piece, regime) for case in PR for piece, regime in case.regimes.items()}
    assert {(piece, regime) for piece, known in REGIMES.items() for regime in known} - used == set()


def test_every_choice_of_every_axis_is_in_pr() -> None:
    for axis in PAIR.axes:
        assert set(axis.choices) <= {case.axes[axis.name] for case in PR}, axis.name
    assert {1, 15, 16, 17, 48, 49, 64, 65, 128, 129} <= {case.axes["batch"] for case in PR}


def test_a_why_is_a_sentence_and_none_is_used_twice() -> None:
    whys = [case.why for case in CASES]
    assert len(set(whys)) == len(whys)
    assert all(len(why) > 30 and why.endswith(".") for why in whys)


def test_pr_stays_small_enough_to_be_emulated() -> None:
    assert sum(int(case.axes["batch"]) for case in PR) < 2760
    assert sum(int(case.axes["batch"]) > 65 for case in PR) <= 2


def test_the_shipped_list_of_known_gaps_is_valid() -> None:
    import datetime as dt

    path = Path(__file__).parents[2] / "cases" / casefile.GAPS
    assert path.exists()
    assert casefile.load_gaps(path, CASES, dt.date(2026, 1, 1)) == ()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("case", [case for case in CASES if "aimed" in case.id], ids=lambda case: case.id)
def test_aimed_cases_show_the_difference_between_the_declared_orders(case: Case, arch: str) -> None:
    declared = {known.party: known for known in DECLARATIONS if known.arch == arch}
    inputs = PAIR.inputs(case)
    oracle, candidate = (PAIR.model(case, inputs, declared[party]) for party in ("oracle", "candidate"))
    output = "key_scale" if "scale" in case.id else "key_codes"
    assert (oracle[output] != candidate[output]).any()
    assert {name for name in oracle if (oracle[name] != candidate[name]).any()} <= {"key_codes", "key_scale"}


@pytest.mark.parametrize("name", ["fp8-key-huge", "fp4-key-huge"])
def test_of_the_huge_keys_one_size_in_nine_is_undefined_and_some_give_their_bias_alone(name: str) -> None:
    case = BY_ID[name]
    inputs = PAIR.inputs(case)
    assert int(PAIR.undefined(case, inputs)["key_codes"][:, 0].sum()) == 2
    (candidate,) = [known for known in DECLARATIONS if known.arch == "sm_90a" and known.party == "candidate"]
    codes = PAIR.model(case, inputs, candidate)["key_codes"]
    bias = PAIR.model(case, {**inputs, "norm_w": np.zeros_like(inputs["norm_w"])}, candidate)["key_codes"]
    assert 4 <= int((codes == bias).all(axis=1).sum()) <= 16


@pytest.mark.parametrize("name", ["fp8-weights-fold-edges", "fp4-weights-fold-edges"])
def test_fold_edges_hold_the_weights_for_which_the_declared_products_differ(name: str) -> None:
    declared = {known.party: known for known in DECLARATIONS if known.arch == "sm_90a"}
    case = BY_ID[name]
    inputs = PAIR.inputs(case)
    oracle, candidate = (PAIR.model(case, inputs, declared[party]) for party in ("oracle", "candidate"))
    differ = oracle["weights"] != candidate["weights"]
    assert set((oracle["weights"][differ] & 0x7FFF).tolist()) == {0x67, 0x71, 0x7B}
    assert [key for key in oracle if (oracle[key] != candidate[key]).any()] == ["weights"]
    inside, share = PAIR.envelope(case, inputs, tuple(declared.values())).judge(oracle)["weights"]
    assert inside.all()
    assert share == 1.0


@pytest.mark.parametrize(
    ("name", "amax"),
    [
        ("fp8-key-floor", 448 * 2.0**-23),
        ("fp8-key-floor-low", 448 * 2.0**-23),
        ("fp8-key-floor-low-edge", 448 * 2.0**-43),
        ("fp8-f32-key-amax-edge", 14 - 2.0**-20),
    ],
)
def test_bias_cases_hit_the_amax_they_speak_of(name: str, amax: float) -> None:
    bias = PAIR.inputs(BY_ID[name])["norm_b"] & 0x7FFFFFFF
    assert decode(bias, F32).max() == amax


def test_the_smoke_ties_deal_all_midpoints() -> None:
    q = PAIR.inputs(BY_ID["fp8-b17-ties"])["q"].reshape(-1, 128)
    real = decode(q, BF16)
    scale = 2.0 ** np.ceil(np.log2(np.abs(real).max(axis=1, keepdims=True) / 448))
    quotients = np.unique(np.abs(real / scale) * 2.0**10)
    assert {1.0, 3.0, 5.0, 15.0, 432.0 * 1024} <= set(quotients.tolist())
