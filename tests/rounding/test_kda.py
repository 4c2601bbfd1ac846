"""The model of `kda`: against the formulas in float64, every row of its ledger, slots and pools, what stays open."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kda_cases import case
from kda_formulas import exact, value

from equiv.errors import RecordError, UsageError
from equiv.kda import PAIR
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda
from equiv.rounding.conversions import named
from equiv.rounding.declarations.kda import DECLARATIONS
from equiv.rounding.formats import BF16 as FORMAT
from equiv.rounding.formats import ordered
from equiv.rounding.kda_ledger import LEDGER
from equiv.rounding.kda_prepare import SCALE, Execution, project
from equiv.rounding.kda_walk import Shape, normed
from equiv.rounding.orders import Leaf, Order, Sum, chain, leaves

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger

STEP, VERIFY = case(), case(tokens=3)
RECORD = case(tokens=3, mode="record")
COMMIT = case({"counts": "all"}, tokens=3, mode="commit")
BF16 = case(state="bf16", kernel="wide")
ALL = {"step": STEP, "verify": VERIFY, "record": RECORD, "commit": COMMIT, "bf16": BF16}


def bf16_codes(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    return named("bf16.f32.rn")(fp.bits_of(values)).astype(np.uint16)


def declared(one: Case, party: str = "oracle", arch: str = "sm_90a") -> Declaration:
    form = PAIR.form(party, one, "sm_90a") if PAIR.form else ""
    return next(d for d in DECLARATIONS if (d.party, d.form, d.arch) == (party, form, arch))


@pytest.mark.parametrize(
    ("version", "arch", "state", "known"),
    [("3.6.0", "sm_100a", "bf16", False), ("3.6.0", "sm_100a", "f32", True), ("3.6.0", "sm_90a", "bf16", True),
     ("3.8.0", "sm_100a", "bf16", True), ("3.7.0", "sm_90a", "f32", False)],
)  # fmt: skip
def test_a_fold_that_rounds_rows_in_two_ways_is_not_declared(version: str, arch: str, state: str, known: bool) -> None:
    one = case(tokens=3, mode="commit", state=state, kernel="wide")
    assert (PAIR.declared("oracle", {"triton": version}, arch, one) is not None) is known


def run(
    one: Case, party: str = "oracle", ledger: Ledger = LEDGER, given: dict[str, Bits] | None = None
) -> dict[str, Any]:
    return kda.model(one, PAIR.inputs(one) if given is None else given, declared(one, party), ledger)


def differ(a: dict[str, Bits], b: dict[str, Bits]) -> set[str]:
    return {name for name in a if not np.array_equal(a[name], b[name])}


@pytest.mark.parametrize("party", ["oracle", "candidate"])
@pytest.mark.parametrize("name", ALL)
def test_the_model_follows_the_formulas(name: str, party: str) -> None:
    one = ALL[name]
    given = PAIR.inputs(one)
    found, wanted = run(one, party, given=given), exact(one, given)
    shape = (*wanted["y"].shape[:2], int(one.axes["tokens"]), int(one.axes["heads"]), 128)
    size = np.abs(wanted["y"]).mean()
    assert np.abs(value(found["y"]).reshape(shape) - wanted["y"]).mean() < 2.0**-8 * size
    if one.axes["mode"] == "step":
        limit = 2.0**-8 if one.axes["state"] == "bf16" else 1e-5
        states = value(found["state"]).reshape(wanted["state"].shape)
        np.testing.assert_allclose(states, wanted["state"], rtol=limit, atol=limit * 0.1)
    else:
        np.testing.assert_allclose(
            value(found["corrections"]), wanted["corrections"].transpose(0, 2, 1, 3), rtol=1e-4, atol=1e-5
        )
    if one.axes["mode"] == "commit":
        np.testing.assert_allclose(value(found["state"]), wanted["folded"], rtol=1e-4, atol=1e-5)


_SHOWN = ("2", "4", "5", "8", "9", *(f"13{letter}" for letter in "adefghijklmn"))
MATTERS: dict[str, Case] = {f"kda.{row}": VERIFY for row in _SHOWN}
MATTERS |= {"kda.7": BF16, "kda.13q": case({"v": "subnormals", "state": "zero"})}
LAST = ("kda.13s", "kda.13t", "kda.13v")
"""Roundings of the norm, whose last bits the rounding to BF16 hides but for one element in some ten thousand."""
VARIES: dict[str, tuple[Case, str]] = {
    "kda.13b": (VERIFY, "rsqrt"),
    "kda.13o": (COMMIT, "rsqrt"),
    "kda.13p": (COMMIT, "forward"),
}


def test_every_rounding_row_is_tried() -> None:
    assert {*MATTERS, *LAST} == {row.id for row in LEDGER if row.kind == "rounding"}


@pytest.mark.parametrize("row", MATTERS)
def test_switching_off_a_rounding_row_changes_bits(row: str) -> None:
    one = MATTERS[row]
    changed = differ(run(one), run(one, ledger=LEDGER.without(row)))
    assert changed
    assert changed <= {"y", "state"}


@pytest.mark.parametrize("row", LAST)
def test_switching_off_a_rounding_of_the_norm_changes_some_of_a_million_results(row: str) -> None:
    rng = np.random.default_rng(1)
    o, gate = (bf16_codes(rng.standard_normal((8192, 128))) for _ in range(2))
    norm_w, shape = bf16_codes(1 + rng.standard_normal(128) / 8), Shape.of(STEP)
    wide = o.astype(np.uint32) << np.uint32(16)
    plain, other = (
        normed(shape, wide, gate, norm_w, Execution(declared(STEP), ledger)) for ledger in (LEDGER, LEDGER.without(row))
    )
    apart = np.abs(ordered(plain, FORMAT) - ordered(other, FORMAT))
    assert apart.max() == 1
    assert 0 < (apart > 0).sum() < 1000


@pytest.mark.parametrize("row", [row.id for row in LEDGER if row.kind == "exact"])
def test_no_step_of_an_exact_row_changes_a_bit(row: str) -> None:
    for one in (COMMIT, case({"counts": "all"}, tokens=2, mode="commit", state="bf16", kernel="wide")):
        plain = run(one)
        for step in {*LEDGER[row].names, LEDGER[row].off or LEDGER[row].names[0]}:
            assert not differ(plain, run(one, ledger=LEDGER.replace(row, step))), step


@pytest.mark.parametrize("row", VARIES)
def test_variants_of_a_row_differ(row: str) -> None:
    one, other = VARIES[row]
    given = PAIR.inputs(one)
    plain = declared(one)
    forced = replace(plain, variants={**plain.variants, row: other})
    first = replace(plain, variants={**plain.variants, row: LEDGER[row].names[0]})
    assert differ(kda.model(one, given, first), kda.model(one, given, forced))


def test_a_reciprocal_of_a_root_is_the_division_by_it_and_rsqrt_is_not() -> None:
    rng = np.random.default_rng(1)
    x, n = fp.bits_of(rng.standard_normal(4096)), fp.bits_of(np.exp(rng.uniform(-14, 14, 4096)))
    for row, operands in (("kda.13b", (x, n)), ("kda.13c", (x, n, SCALE)), ("kda.13o", (x, n)), ("kda.13r", (n,))):
        results = {name: LEDGER[row].steps[name](*operands) for name in LEDGER[row].names}
        np.testing.assert_array_equal(results["div.full"], results["rcp"])
        assert (results["rsqrt"] != results["rcp"]).mean() > 0.1


def test_silu_by_a_reciprocal_flushes_far_below_zero() -> None:
    given = PAIR.inputs(RECORD)
    given["conv_w"] = fp.bits_of(fp.floats(given["conv_w"]) * np.float32(400))
    plain = declared(RECORD)
    found = kda.model(RECORD, given, plain)
    other = kda.model(RECORD, given, replace(plain, variants={**plain.variants, "kda.5a": "rcp"}))
    assert "key" in differ(found, other)
    apart = found["key"] != other["key"]
    assert set(other["key"][apart] & 0x7FFF) == {0}
    assert (value(found["key"])[apart] > -(2.0**-118)).all()


def test_sigmoid_of_the_output_gate_by_a_reciprocal_flushes_far_below_zero() -> None:
    given = PAIR.inputs(STEP)
    given["rows"][:, 3 * 768 : 4 * 768] = 0xC2B0  # -88
    plain = declared(STEP)
    other = replace(plain, variants={**plain.variants, "kda.13u": "rcp"})
    assert differ(kda.model(STEP, given, plain), kda.model(STEP, given, other)) == {"y"}


@pytest.mark.parametrize(
    ("row", "step", "shows"),
    [
        ("kda.13k", "left out", {"y", "state"}),
        ("kda.13k", "done twice", {"y", "state"}),
        ("kda.13h", "rounded to BF16", {"y", "state"}),
        ("kda.13i", "rounded to BF16", {"y", "state"}),
        ("kda.7a", "rounded to BF16", {"state"}),
        ("kda.13q", "(sum of squares + eps) / 128", {"y"}),
        ("kda.8", "keep", {"y"}),
    ],
)
def test_faults_show_where_they_are_made(row: str, step: str, shows: set[str]) -> None:
    one = case({"v": "amplitudes"}, batch=4)
    assert differ(run(one), run(one, ledger=LEDGER.replace(row, step))) == shows


def test_a_state_stored_through_bf16_is_read_by_the_next_step() -> None:
    one = case(steps=2)
    assert differ(run(one), run(one, ledger=LEDGER.replace("kda.7a", "rounded to BF16"))) == {"y", "state"}


def test_absent_requests_leave_no_trace_and_their_rows_are_zero() -> None:
    one = case({"absent": "even", "null": "both"}, batch=3, tokens=2)
    given = PAIR.inputs(one)
    found = run(one, "candidate", given=given)
    assert found["y"].shape == (1, 1, 2, 6, 128)
    assert found["y_absent"].shape == (1, 2, 2, 768)
    assert not found["y_absent"].any()
    slots = given["slots"].view(np.int32)[1]
    others = np.setdiff1d(np.arange(len(given["state"])), slots)
    np.testing.assert_array_equal(found["state_rest"], given["state"][others].ravel())
    kept = np.setdiff1d(np.arange(len(given["state"])), slots[:1])
    np.testing.assert_array_equal(found["conv_rest"], given["conv_state"][kept].ravel())


def test_accepted_counts_choose_the_state_and_the_column_of_the_window() -> None:
    one = case({"accepted": "one"}, batch=1, tokens=3)
    given = PAIR.inputs(one)
    slots = given["slots"].view(np.int32)[0]
    moved = {**given, "accepted": np.full((1, 1), 2, np.uint32), "conv_state": given["conv_state"].copy()}
    moved["state"] = given["state"].copy()
    moved["conv_state"][slots[0], :, 1:4] = given["conv_state"][slots[0], :, :3]
    moved["state"][slots[1]] = given["state"][slots[0]]
    moved["state"][slots[0]] = 0
    plain, other = run(one, given=given), run(one, given=moved)
    for name in ("y", "state", "conv"):
        np.testing.assert_array_equal(plain[name], other[name])
    np.testing.assert_array_equal(plain["conv"][0, :, 2:], given["rows"].reshape(3, -1)[:, : 3 * 768].T)
    np.testing.assert_array_equal(plain["conv"][0, :, :2], given["conv_state"][slots[0], :, 1:3])


def test_the_next_step_goes_on_where_the_accepted_token_left_off() -> None:
    two = case({"accepted": "all"}, batch=2, tokens=2, steps=2)
    given = PAIR.inputs(two)
    one = case(batch=2, tokens=4)
    joined = {**PAIR.inputs(one), **{name: given[name] for name in ("conv_w", "a_log", "dt_bias", "f_b", "norm_w")}}
    slots = given["slots"].view(np.int32)
    rows = given["rows"].reshape(2, 2, 2, -1).transpose(1, 0, 2, 3)
    joined["rows"] = rows.reshape(8, -1)
    joined["accepted"] = np.ones((1, 2), np.uint32)
    own = joined["slots"].view(np.int32)
    for b in range(2):
        joined["state"][own[b, 0]] = given["state"][slots[b, 1]]
        joined["conv_state"][own[b, 0], :, :3] = given["conv_state"][slots[b, 0], :, 1:4]
    found, long = run(two, given=given), run(one, given=joined)
    np.testing.assert_array_equal(found["y"].transpose(1, 0, 2, 3, 4).reshape(1, 2, 4, 6, 128), long["y"])
    np.testing.assert_array_equal(found["state"].reshape(2, 2, -1), long["state"].reshape(2, 4, -1)[:, 2:])


def test_a_record_leaves_states_alone_and_holds_what_the_step_computed() -> None:
    given = PAIR.inputs(RECORD)
    found = run(RECORD, "candidate", given=given)
    step = case({"accepted": "one"}, tokens=3)
    same = {**given, "slots": PAIR.inputs(step)["slots"], "state": PAIR.inputs(step)["state"].copy()}
    same["conv_state"] = np.zeros((len(same["state"]), *given["conv_state"].shape[1:]), np.uint16)
    for b in range(2):
        home, own = given["slots"].view(np.int32)[b, 0], same["slots"].view(np.int32)[b, 0]
        same["state"][own], same["conv_state"][own] = given["state"][home], given["conv_state"][home]
    same["accepted"] = np.ones((1, 2), np.uint32)
    np.testing.assert_array_equal(found["y"], run(step, "candidate", given=same)["y"])
    np.testing.assert_array_equal(found["state_rest"], given["state"].ravel())
    assert found["state"].shape == (0, 6, 128, 128)
    assert found["corrections"].shape == found["key"].shape == found["gate"].shape == (2, 6, 3, 128)


def test_a_commit_forward_of_all_tokens_is_the_state_that_a_step_writes() -> None:
    given = PAIR.inputs(COMMIT)
    home = given["slots"].view(np.int32)[:, 0]
    given["final"] = given["slots"][:, 0].copy()
    given["boundary"] = np.zeros(2, np.uint32)
    given["counts"] = np.full(2, 3, np.uint32)
    plain = declared(COMMIT, "candidate")
    forward = replace(plain, variants={**plain.variants, "kda.13p": "forward", "kda.13o": "rcp"})
    found = kda.model(COMMIT, given, forward)
    step = case({"accepted": "one"}, tokens=3)
    same = {**given, "slots": PAIR.inputs(step)["slots"]}
    own = same["slots"].view(np.int32)[:, 0]
    for name in ("state", "conv_state"):
        same[name] = np.zeros((9, *given[name].shape[1:]), given[name].dtype)
        same[name][own] = given[name][home]
    wanted = kda.model(step, same, declared(step, "candidate"))
    np.testing.assert_array_equal(found["state"], wanted["state"].reshape(2, 3, 6, 128, 128)[:, -1])
    np.testing.assert_array_equal(found["conv_final"][:, :, :3], wanted["conv"][:, :, 2:])
    np.testing.assert_array_equal(found["conv_final"], found["conv"])


def test_a_commit_writes_final_and_boundary_of_those_that_accepted_something() -> None:
    one = case({"counts": "each", "final": "other", "boundary": "other"}, batch=4, tokens=3, mode="commit")
    given = PAIR.inputs(one)
    found = run(one, given=given)
    counts, final, boundary, fewer = (
        given[name].view(np.int32) for name in ("counts", "final", "boundary", "boundary_counts")
    )
    targets = []
    for b in range(4):
        if counts[b] > 0 and final[b] > 0:
            targets.append((b, final[b], counts[b]))
            if boundary[b] > 0 and fewer[b] > 0:
                targets.append((b, boundary[b], fewer[b]))
    assert len(targets) == len(found["state"]) == len(found["conv_final"])
    assert len({slot for _, slot, _ in targets}) > 3
    for at, (b, slot, count) in enumerate(targets):
        window = found["conv"][b, :, count - 1 : count + 2]
        np.testing.assert_array_equal(found["conv_final"][at, :, :3], window)
        np.testing.assert_array_equal(found["conv_final"][at, :, 3:], given["conv_state"][slot, :, 3:])


def test_both_gate_orders_sum_the_same_products() -> None:
    given = PAIR.inputs(STEP)
    f_a = given["rows"][:, 4 * 768 : 4 * 768 + 128]
    wanted = value(f_a) @ value(given["f_b"]).T
    for name in ("gate.0", "gate.1"):
        for party in ("oracle", "candidate"):
            found = fp.floats(project(f_a, given["f_b"], declared(STEP, party).order(name)))
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).mean())


def test_a_gate_order_may_be_one_of_plain_additions() -> None:
    given = PAIR.inputs(STEP)
    f_a = given["rows"][:, 4 * 768 : 4 * 768 + 128]
    order = Order.of(128, chain([Leaf(0), *leaves(range(1, 128))], fused=True))
    wide = [np.asarray(x, np.uint32) << np.uint32(16) for x in (f_a, given["f_b"])]
    wanted = order.dot(*np.broadcast_arrays(wide[0][:, None], wide[1][None]))[..., 0]
    np.testing.assert_array_equal(project(f_a, given["f_b"], order), wanted)
    with pytest.raises(RecordError, match="sums of several terms at once"):
        project(f_a, given["f_b"], Order.of(128, Sum(tuple(leaves(range(128))))))


def test_only_heads_whose_sums_may_overflow_are_undefined() -> None:
    given = PAIR.inputs(VERIFY)
    assert kda.undefined(VERIFY, given) == {}
    slots = given["slots"].view(np.int32)
    given["state"][slots[1, 2], 4, 7, 9] = 0x7F000000  # 2^127
    found = kda.undefined(VERIFY, given)
    assert set(found) == {"y", "state"}
    assert found["y"].shape == (1, 2, 3, 6, 128)
    assert [list(x) for x in np.argwhere(found["y"][0, :, 0, :, 0])] == [[1, 4]]
    assert [list(x) for x in np.argwhere(found["state"][:, :, 0, 0])] == [[3, 4], [4, 4], [5, 4]]
    given["state"][slots[1, 2], 4, 7, 9] = 0x7F800000  # an Inf is the same in any order
    assert kda.undefined(VERIFY, given) == {}


def test_a_declaration_must_name_what_the_model_reads() -> None:
    given, plain = PAIR.inputs(STEP), declared(STEP)
    orders = {name: order for name, order in plain.orders.items() if name != "dot"}
    with pytest.raises(RecordError, match=r"declaration of oracle \(packed\) on sm_90a: no order for 'dot'"):
        kda.model(STEP, given, replace(plain, orders=orders))
    with pytest.raises(UsageError, match=r"row kda\.13b has no variant 'sqrt'; known: div\.full, rcp, rsqrt"):
        kda.model(STEP, given, replace(plain, variants={"kda.13b": "sqrt"}))


def test_no_real_request_is_a_case_like_any_other() -> None:
    for one in (case({"absent": "all"}, tokens=2), case({"absent": "all"}, tokens=2, mode="commit")):
        given = PAIR.inputs(one)
        found = run(one, given=given)
        assert found["y"].shape == (1, 0, 2, 6, 128)
        np.testing.assert_array_equal(found["state_rest"], given["state"].ravel())
        assert kda.undefined(one, given) == {}


def test_a_batch_of_32_with_12_heads_takes_about_a_second() -> None:
    one = case(batch=32, heads=12)
    given = PAIR.inputs(one)
    run(one, given=given)
    started = time.process_time()
    run(one, given=given)
    assert time.process_time() - started < 3
