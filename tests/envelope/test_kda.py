"""The envelope of `kda`: declared computations lie inside, faults outside, and its width is that of a few roundings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kda_cases import case
from kda_formulas import value

from equiv.envelope.kda import KdaEnvelope, kda_envelope
from equiv.envelope.kda_bounds import Near, Sums, rounding
from equiv.envelope.kda_operands import Ways, outward
from equiv.kda import PAIR
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda
from equiv.rounding.declarations.kda import DECLARATIONS
from equiv.rounding.intervals import Interval
from equiv.rounding.kda_ledger import LEDGER
from equiv.rounding.orders import Order, chain, leaves

if TYPE_CHECKING:
    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration

STEP, TOKENS, STEPS = case(), case(tokens=4), case(tokens=2, steps=3)
RECORD, COMMIT = case(tokens=3, mode="record"), case({"counts": "all"}, tokens=3, mode="commit")
BF16 = case(tokens=2, steps=2, state="bf16", kernel="wide")
BF16_COMMIT = case({"counts": "all"}, tokens=3, mode="commit", state="bf16", kernel="wide")
ALL = {"step": STEP, "tokens": TOKENS, "steps": STEPS, "record": RECORD, "commit": COMMIT, "bf16": BF16,
       "bf16-commit": BF16_COMMIT, "gate1": case(gate_mode=1),
       "cancelling": case({"state": "wide", "f_a": "cancelling"}),
       "subnormal": case(dict.fromkeys(("q", "k", "state"), "subnormals"), steps=2),
       "zero sums": case({"conv_w": "first_tap", "conv_state": "signed_zeros", "state": "aimed_dot_zero",
                          "beta": "flat"}, seed=1, tokens=2, mode="record", gate_mode=1),
       "zero": case(dict.fromkeys(("q", "k", "v", "state"), "signed_zeros"))}  # fmt: skip
CHAIN = Order.of(128, chain(leaves(range(128))))


def declared(one: Case, party: str, arch: str = "sm_90a") -> Declaration:
    form = PAIR.form(party, one, arch) if PAIR.form else ""
    return next(d for d in DECLARATIONS if (d.party, d.form, d.arch) == (party, form, arch))


def both(one: Case) -> tuple[Declaration, Declaration]:
    return declared(one, "oracle"), declared(one, "candidate")


def envelope(one: Case, *declarations: Declaration | None) -> KdaEnvelope:
    return kda_envelope(one, PAIR.inputs(one), declarations or both(one))


def outside(found: dict[str, Any]) -> set[str]:
    return {name for name, (inside, _) in found.items() if not inside.all()}


@pytest.mark.parametrize("name", ALL)
def test_both_parties_are_inside_and_the_trajectory_uses_nothing(name: str) -> None:
    one = ALL[name]
    given, declarations = PAIR.inputs(one), both(one)
    allowed = kda_envelope(one, given, declarations)
    oracle, candidate = (allowed.judge(kda.model(one, given, d)) for d in declarations)
    assert outside(oracle) == outside(candidate) == set()
    assert {share for _, share in oracle.values()} == {0.0}
    assert all(0 <= share <= 1 for _, share in candidate.values())
    expected = {"y", "state", "corrections"} if one.axes["mode"] != "step" else {"y", "state"}
    assert set(oracle) == expected


@pytest.mark.parametrize("name", ["step", "tokens", "steps", "record", "commit"])
def test_width_is_that_of_a_few_roundings(name: str) -> None:
    allowed = envelope(ALL[name])
    for output in ("state", "corrections"):
        band = allowed.outputs.get(output)
        if band is not None and band.off.size:
            size = np.abs(value(band.at)).mean()  # type: ignore[union-attr]
            assert 0 < band.off.mean() < 64 * 2.0**-24 * size


def test_width_does_not_grow_exponentially_with_tokens() -> None:
    regimes = {"dt_bias": "near_one", "accepted": "all"}  # a state that nothing makes forget
    bands = [envelope(case(regimes, tokens=8, steps=steps)).outputs["state"] for steps in (1, 4)]
    short, long = (band.off.mean() / np.abs(value(band.at)).mean() for band in bands)  # type: ignore[union-attr]
    assert long < 40 * short  # norms grow by the token, and elements reach them; element by element it were 2^20
    assert long < 2.0**-13


def test_declarations_alike_allow_one_value() -> None:
    for one in (TOKENS, COMMIT):
        oracle = declared(one, "oracle")
        allowed, found = (
            envelope(one, oracle, replace(oracle, party="candidate")),
            kda.model(one, PAIR.inputs(one), oracle),
        )
        assert outside(allowed.judge(found)) == set()
        for name in allowed.outputs:
            wrong = {**found, name: found[name].copy()}
            wrong[name].reshape(-1)[77] ^= 1
            inside, share = allowed.judge(wrong)[name]
            assert np.flatnonzero(~inside.reshape(-1)).tolist() == [77]
            assert share == 1.0


def test_only_what_a_difference_reaches_may_differ() -> None:
    oracle = declared(TOKENS, "oracle")
    norm = replace(oracle, party="candidate", orders={**oracle.orders, "norm.squares": CHAIN})
    out = replace(oracle, party="candidate", orders={**oracle.orders, "out": CHAIN})
    for other in (norm, out):
        band = envelope(TOKENS, oracle, other).outputs["state"]
        assert not band.off.any()
    dot = replace(oracle, party="candidate", orders={**oracle.orders, "dot": CHAIN})
    assert envelope(TOKENS, oracle, dot).outputs["state"].off.all()


FAULTS = {
    "decay dropped": ("kda.13k", "left out"),
    "decay applied twice": ("kda.13k", "done twice"),
    "gate rounded to BF16": ("kda.13h", "rounded to BF16"),
    "state stored through BF16": ("kda.7a", "rounded to BF16"),
    "decay rounded to BF16": ("kda.13i", "rounded to BF16"),
    "correction rounded to BF16": ("kda.13m", "rounded to BF16"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_state_are_outside(fault: str) -> None:
    one = STEPS
    found = kda.model(one, PAIR.inputs(one), declared(one, "candidate"), LEDGER.replace(*FAULTS[fault]))
    judged = envelope(one).judge(found)
    assert outside(judged) == {"y", "state"}
    assert (~judged["state"][0]).mean() > 0.3


@pytest.mark.parametrize(
    ("row", "step"),
    [("kda.8", "keep"), ("kda.13q", "(sum of squares + eps) / 128"), ("kda.9", "cut"), ("kda.13u", "rounded to BF16")],
)
def test_faults_of_the_norm_are_outside(row: str, step: str) -> None:
    one = case({"v": "amplitudes", "state": "zero"}, batch=4)
    found = kda.model(one, PAIR.inputs(one), declared(one, "candidate"), LEDGER.replace(row, step))
    assert outside(envelope(one).judge(found)) == {"y"}


def test_a_term_missing_in_one_sum_is_outside() -> None:
    given = PAIR.inputs(STEP)
    slot = given["slots"].view(np.int32)[1, 0]
    lost = {**given, "state": given["state"].copy()}
    lost["state"][slot, 2, 50, 60] = 0
    found = kda.model(STEP, lost, declared(STEP, "candidate"))
    inside, share = envelope(STEP).judge(found)["state"]
    assert {tuple(map(int, place[:3])) for place in np.argwhere(~inside)} == {(1, 2, 50)}
    assert (~inside[1, 2, 50]).mean() > 0.5
    assert share == 1.0


def test_a_wrong_commit_is_outside() -> None:
    given = PAIR.inputs(COMMIT)
    fewer = {**given, "counts": given["counts"] - np.uint32(1)}
    found = kda.model(COMMIT, fewer, declared(COMMIT, "candidate"))
    assert outside(envelope(COMMIT).judge(found)) == {"state"}
    through = kda.model(COMMIT, given, declared(COMMIT, "candidate"), LEDGER.replace("kda.10", "rounded to BF16"))
    assert outside(envelope(COMMIT).judge(through)) == {"corrections", "state"}


@pytest.mark.parametrize("name", ["tokens", "commit", "bf16"])
def test_an_unknown_party_may_do_whatever_the_ledger_knows_and_no_more(name: str) -> None:
    one = ALL[name]
    given, oracle = PAIR.inputs(one), declared(one, "oracle")
    orders = dict.fromkeys(oracle.orders, CHAIN)
    variants = {row.id: row.names[-1] for row in LEDGER}
    allowed, known = envelope(one, oracle, None), envelope(one)
    for other in (replace(oracle, orders=orders), replace(oracle, orders=orders, variants=variants)):
        assert outside(allowed.judge(kda.model(one, given, other))) == set()
    assert (allowed.outputs["state"].off >= known.outputs["state"].off).all()
    wrong = kda.model(one, given, oracle, LEDGER.replace("kda.13i", "rounded to BF16"))
    assert outside(allowed.judge(wrong)) >= {"state"}


def test_two_unknown_parties_are_judged_about_a_known_trajectory() -> None:
    found = kda.model(STEP, PAIR.inputs(STEP), declared(STEP, "candidate"))
    assert outside(envelope(STEP, None, None).judge(found)) == set()


def test_no_real_request_gives_empty_masks() -> None:
    for one in (case({"absent": "all"}), case({"absent": "all"}, tokens=2, mode="commit")):
        judged = envelope(one).judge(kda.model(one, PAIR.inputs(one), declared(one, "candidate")))
        assert {inside.size for inside, _ in judged.values()} == {0}
        assert {share for _, share in judged.values()} == {0.0}


def test_roundings_of_equal_numbers_widen_nothing() -> None:
    off, size = np.array([0.0, 2.0**-20]), np.array([1.0, 1.0])
    assert rounding(off, size).tolist() == [0.0, 2.0**-23 * (1 + 2.0**-20) + 2.0**-149]
    alike, other = Sums(1.0, 2.0, differ=False), Sums(1.0, 2.0, differ=True)
    moved = np.array([False, True])
    assert alike.apart(size, size, moved).tolist() == [0.0, 3.0]
    assert other.apart(size, size, moved).tolist() == [3.0, 3.0]


def test_a_centre_lies_in_its_interval() -> None:
    interval = Interval(*fp.bits_of([[1.0, -2.0, 3.0], [1.5, -1.0, 3.0]]))
    near = Near.of(interval, fp.bits_of([1.25, -1.25, 3.0]))
    assert near.off.tolist() == [0.25, 0.75, 0.0]
    assert near.most.tolist() == [1.5, 2.0, 3.0]


def test_intervals_grow_by_ulps_across_zero_and_points_do_not() -> None:
    low, high = fp.bits_of([-0.0, 1.0, 2.0]), fp.bits_of([0.0, 1.0, 3.0])
    wide = outward(Interval(low, high), 2)
    assert wide.low.tolist() == [0x80000002, 0x3F800000, 0x3FFFFFFE]
    assert wide.high.tolist() == [0x00000002, 0x3F800000, 0x40400002]


@pytest.mark.parametrize("reduction", ["gate.0", "gate.1"])
def test_any_order_of_the_gate_holds_the_declared_ones(reduction: str) -> None:
    given = PAIR.inputs(case({"f_a": "cancelling"}))
    f_a = given["rows"][:, 4 * 768 : 4 * 768 + 128]
    mode = int(reduction[-1])
    any_order = Ways((None,)).gates(f_a, given["f_b"], mode)
    for one in both(STEP):
        exact: Bits = Ways((one,)).gates(f_a, given["f_b"], mode).low
        assert (value(any_order.low) <= value(exact)).all()
        assert (value(exact) <= value(any_order.high)).all()
    assert (any_order.low != any_order.high).mean() < 0.2
