"""The case file of `kda` that ships: it loads, covers what it must, and stays small enough to be emulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equiv import casefile
from equiv.kda import PAIR, mixed, residues
from equiv.kda.plan import ABSENT
from equiv.kda.regimes import REGIMES

if TYPE_CHECKING:
    from equiv.records import Case

CASES = casefile.load(Path(__file__).parents[2] / "cases" / "kda.toml", PAIR)
PR = [case for case in CASES if "pr" in case.suites]


def items(case: Case) -> int:
    """Heads of requests that have a slot, times tokens, times steps."""
    requests = int(case.axes["batch"])
    found = int((~ABSENT[case.regimes["absent"]](np.arange(requests))).sum())
    for name in ("heads", "tokens", "steps"):
        found *= int(case.axes[name])
    return found


def test_suites_have_the_sizes_that_were_promised() -> None:
    assert len([case for case in CASES if "smoke" in case.suites]) == 9
    assert len(PR) >= 90
    assert len(CASES) > len(PR)


def test_every_regime_of_every_piece_is_in_pr() -> None:
    used = {(piece, regime) for case in PR for piece, regime in case.regimes.items()}
    assert ("values", "by_head") in used
    used |= {(piece, regime) for piece, names in mixed.BY_HEAD.items() for regime in names}
    used |= {pair for name, pieces in residues.VALUES.items() if ("values", name) in used for pair in pieces.items()}
    used |= {("state", regime) for names in mixed.STATES for regime in names}
    assert {(piece, regime) for piece, known in REGIMES.items() for regime in known} - used == set()


def test_every_choice_of_every_axis_is_in_pr() -> None:
    for axis in PAIR.axes:
        assert set(axis.choices) <= {case.axes[axis.name] for case in PR}, axis.name
    seen = {name: {case.axes[name] for case in PR} for name in ("tokens", "steps", "batch", "bias")}
    assert seen["tokens"] == set(range(1, 9))
    assert {1, 2, 3, 4} <= seen["steps"]
    assert {1, 17, 33, 64, 128} <= seen["batch"]
    assert seen["bias"] == {False, True}
    assert 512 in {case.axes["batch"] for case in CASES}


def test_both_kernels_meet_every_mode_window_and_gate_order() -> None:
    for kernel in ("ws", "wide"):
        mine = [case.axes for case in PR if case.axes["kernel"] == kernel]
        for name in ("mode", "window", "gate_mode"):
            (choices,) = [axis.choices for axis in PAIR.axes if axis.name == name]
            assert {axes[name] for axes in mine} == set(choices), (kernel, name)


def test_a_why_is_a_sentence_and_none_is_used_twice() -> None:
    whys = [case.why for case in CASES]
    assert len(set(whys)) == len(whys)
    assert all(len(why) > 15 and why.endswith(".") for why in whys)


def test_pr_stays_small_enough_to_be_emulated() -> None:
    assert sum(map(items, PR)) < 16_000
    assert sum(items(case) > 250 for case in PR) <= 3
    assert sum(items(case) for case in PR if "smoke" in case.suites) < 500


def test_no_two_cases_are_the_same_but_for_their_seed() -> None:
    seen = [(tuple(case.axes.items()), tuple(case.regimes.items())) for case in CASES]
    assert len(set(seen)) == len(seen)
