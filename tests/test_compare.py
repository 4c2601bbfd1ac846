"""Tests of the tester: what must count as different does, distances do not wrap, each row of the status table holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv.compare import compare_bits, judge
from equiv.records import Difference, OutputSpec, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.records import Bits

    Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

DIMS = ("request", "channel")
DECLARED = ("key.sum: butterfly 16..1 / pairs then butterfly",)


def spec(format_name: str = "f32", contract: str = "envelope", dims: tuple[str, ...] = DIMS) -> OutputSpec:
    return OutputSpec("out", format_name, dims, contract, "one rounding")


def f32(*rows: Sequence[int]) -> Bits:
    return np.array(rows, dtype=np.uint32)


def difference(format_name: str, left: Bits, right: Bits, excluded: Mask | None = None) -> Difference | None:
    return compare_bits(spec(format_name), "model", left, "candidate", right, excluded=excluded)


def found(format_name: str, left: Bits, right: Bits) -> Difference:
    result = difference(format_name, left, right)
    assert result is not None
    return result


def test_equal_bits_are_no_difference_nan_included() -> None:
    bits = f32([0x7FC00001, 0x80000000, 0x3F800000])
    assert difference("f32", bits, bits.copy()) is None


def test_minus_zero_differs_from_zero_by_one_step() -> None:
    result = found("f32", f32([0x00000000, 1]), f32([0x80000000, 1]))
    assert (result.count, result.total) == (1, 2)
    (element,) = result.worst
    assert (element.expected_bits, element.got_bits, element.ulps) == (0, 0x80000000, 1)
    assert result.pattern == "only the sign differs"


def test_nans_with_different_payloads_differ_and_have_no_distance() -> None:
    result = found("f32", f32([0x7FC00000]), f32([0x7FC00001]))
    assert result.worst[0].ulps is None
    assert np.isnan(result.worst[0].expected)
    assert np.isnan(result.worst[0].got)
    assert result.pattern == "NaN on one side, or NaNs with different bits"


def test_a_nan_is_worse_than_any_distance() -> None:
    right = [[0x7F7FFFFF + 0, 0x7FC00000, 5, 6, 7, 8, 9, 10, 11]]
    result = found("f32", f32([0] * 9), f32(*right))
    assert [element.index for element in result.worst[:3]] == [(0, 0), (0, 1), (0, 8)]
    assert result.worst[1].ulps is None


def test_distances_beyond_int32_do_not_wrap() -> None:
    result = found("f32", f32([0x7F7FFFFF]), f32([0xFF7FFFFF]))
    assert result.worst[0].ulps == 2 * 0x7F7FFFFF + 1


@pytest.mark.parametrize(
    ("format_name", "left", "right", "expected", "got", "ulps"),
    [
        ("bf16", 0x3F80, 0x3F82, 1.0, 1.015625, 2),
        ("e4m3", 0x7E, 0x77, 448.0, 240.0, 7),
        ("e2m1", 0x1, 0x9, 0.5, -0.5, 3),
        ("ue8m0", 119, 120, 2.0**-8, 2.0**-7, 1),
        ("u8", 3, 250, 3.0, 250.0, None),
    ],
)
def test_values_and_ulps_follow_the_format(
    format_name: str, left: int, right: int, *, expected: float, got: float, ulps: int | None
) -> None:
    dtype = np.uint16 if format_name == "bf16" else np.uint8
    (element,) = found(format_name, np.array([[left]], dtype=dtype), np.array([[right]], dtype=dtype)).worst
    assert (element.expected, element.got, element.ulps) == (expected, got, ulps)


def test_signed_integers_are_shown_with_their_sign() -> None:
    left, right = np.array([[-1]], dtype=np.int64).view(np.uint64), np.array([[2]], dtype=np.uint64)
    assert found("i64", left, right).worst[0].expected == -1.0


def test_the_first_and_the_worst_elements_are_shown_and_placed() -> None:
    left = np.zeros((4, 100), dtype=np.uint32)
    right = left.copy()
    right[0, 1:50] = np.arange(1, 50)
    right[3, 99] = 1000
    result = found("f32", left, right)
    assert result.count == 50
    assert [element.index for element in result.worst] == [
        (0, 1),
        (0, 2),
        (3, 99),
        *((0, i) for i in (49, 48, 47, 46, 45)),
    ]
    assert result.worst[2].place == "request 3, channel 99"
    placed = compare_bits(spec(), "a", left, "b", right, place=lambda index: f"slot {index[0] * 2}")
    assert placed is not None
    assert placed.worst[2].place == "slot 6"


def test_what_the_differing_elements_share_in_the_pairs_terms_stands_before_the_other_patterns() -> None:
    left, right = f32([0, 2, 3]), f32([0, 3, 4])
    seen = []

    def shared(indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
        seen.append(indices.tolist())
        return "all in slot 127"

    verdict = judge(
        spec(),
        {"oracle": left, "candidate": right},
        {"oracle": left, "candidate": left},
        declared=DECLARED,
        shared=shared,
    )
    assert verdict.differences[0].pattern == "all in slot 127; all of channels 1..2: the tail; each one ulp up"
    assert seen[0] == [[0, 1], [0, 2]]
    nothing = compare_bits(spec(), "a", left, "b", right, shared=lambda _: "")
    assert nothing is not None
    assert nothing.pattern == "all of channels 1..2: the tail; each one ulp up"


def test_what_the_candidate_alone_promises_is_compared_with_its_model_and_the_oracle_is_not_looked_at() -> None:
    promised = OutputSpec("out", "f32", ("request", "channel"), "candidate", "padded rows are zero")
    zero, other = f32([0, 0]), f32([5, 0])

    def said(candidate: Bits, model: Bits | None) -> tuple[Status, str, str]:
        found = judge(promised, {"oracle": other, "candidate": candidate}, {"oracle": zero, "candidate": model})
        return found.status, found.summary, found.blamed

    assert said(zero, zero) == (Status.IDENTICAL, "all 2 elements equal the model", "")
    wrong = "the candidate differs from what it promises in 1 of 2 elements: padded rows are zero"
    assert said(other, zero) == (Status.MISMATCH, wrong, "candidate")
    assert said(zero, None)[0] is Status.WITHIN


def test_excluded_elements_are_neither_compared_nor_counted() -> None:
    left, right = f32([1, 2, 3]), f32([1, 9, 9])
    mask = np.array([[False, True, False]])
    result = difference("f32", left, right, mask)
    assert result is not None
    assert (result.count, result.total, result.worst[0].index) == (1, 2, (0, 2))
    assert difference("f32", left, right, np.array([[False, True, True]])) is None


@pytest.mark.parametrize(
    ("left", "right", "problem"),
    [
        (f32([1]), f32([1, 2]), r"out: model has shape \(1, 1\), candidate has \(1, 2\)"),
        (f32([1]), np.array([[1]], dtype=np.uint16), r"out of candidate: expected uint32 with dimensions .*got uint16"),
        (f32([1]), np.array([[1.0]], dtype=np.float32), r"out of candidate: expected uint32 .*got float32"),
        (np.array([1], dtype=np.uint32), f32([1]), r"out of model: .*got uint32 with 1 dimensions"),
    ],
)
def test_arrays_that_do_not_fit_the_spec_are_refused(left: Bits, right: Bits, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        difference("f32", left, right)


def test_unknown_formats_contracts_and_masks_are_refused() -> None:
    bits = f32([1])
    with pytest.raises(ValueError, match="out: unknown format 'f33'"):
        difference("f33", bits, bits)
    with pytest.raises(ValueError, match="out: unknown contract 'close'"):
        judge(spec(contract="close"), {"oracle": bits, "candidate": bits}, {"oracle": bits, "candidate": bits})
    with pytest.raises(ValueError, match=r"mask of out: expected booleans of shape \(1, 1\), got uint8 of \(1, 1\)"):
        difference("f32", bits, bits, np.array([[1]], dtype=np.uint8))


A, B, C = f32([1, 2, 3]), f32([1, 2, 4]), f32([1, 9, 3])
INSIDE, OUTSIDE = np.array([[True, True, True]]), np.array([[True, True, False]])


def outcome(
    oracle: Bits,
    candidate: Bits,
    oracle_model: Bits | None,
    candidate_model: Bits | None,
    *,
    contract: str = "envelope",
    inside: tuple[Bits, Bits] | None = (INSIDE, INSIDE),
    declared: tuple[str, ...] = DECLARED,
    undefined: Bits | None = None,
) -> tuple[Status, str, str, int]:
    fits = None if inside is None else {"oracle": (inside[0], 0.25), "candidate": (inside[1], 0.5)}
    verdict = judge(
        spec(contract=contract),
        {"oracle": oracle, "candidate": candidate},
        {"oracle": oracle_model, "candidate": candidate_model},
        fits,
        undefined,
        declared=declared,
    )
    return verdict.status, verdict.blamed, verdict.summary, len(verdict.differences)


BOTH = "oracle in 1 of 3 elements and candidate in 1 of 3 elements"
UNKNOWN = "declaration of candidate unknown; "
TABLE = [
    ((A, A, A, A), {}, (Status.IDENTICAL, "", "all 3 elements equal the model", 0)),
    (
        (A, A, A, A),
        {"contract": "bitwise", "inside": None},
        (Status.IDENTICAL, "", "all 3 elements equal the model", 0),
    ),
    ((A, B, A, B), {}, (Status.REORDERED, "", "1 of 3 elements differ as declared, inside the envelope", 1)),
    (
        (A, B, A, B),
        {"contract": "bitwise"},
        (
            Status.MISMATCH,
            "",
            "1 of 3 elements differ between oracle and candidate; the contract is bitwise: one rounding",
            1,
        ),
    ),
    (
        (A, B, A, B),
        {"declared": ()},
        (
            Status.MISMATCH,
            "",
            "1 of 3 elements differ between the models, though the parties declare no difference",
            1,
        ),
    ),
    (
        (A, B, A, B),
        {"inside": (INSIDE, OUTSIDE)},
        (Status.MISMATCH, "", "1 of 3 elements of the candidate lie outside the envelope", 1),
    ),
    (
        (A, B, A, A),
        {},
        (
            Status.MISMATCH,
            "candidate",
            "the candidate differs from its model in 1 of 3 elements; the oracle equals its own",
            1,
        ),
    ),
    (
        (C, B, A, B),
        {},
        (
            Status.MISMATCH,
            "oracle",
            "the oracle differs from its model in 1 of 3 elements; the candidate equals its own",
            1,
        ),
    ),
    (
        (B, B, A, A),
        {},
        (
            Status.MISMATCH,
            "both",
            f"both parties differ from their models, {BOTH}; they agree with each other",
            2,
        ),
    ),
    (
        (A, A, A, None),
        {},
        (Status.WITHIN, "", UNKNOWN + "oracle and candidate agree bit for bit", 0),
    ),
    ((A, B, A, None), {}, (Status.WITHIN, "", UNKNOWN + "1 of 3 elements differ, all inside", 1)),
    (
        (A, A, A, None),
        {"contract": "bitwise", "inside": None},
        (Status.WITHIN, "", UNKNOWN + "oracle and candidate agree bit for bit", 0),
    ),
    (
        (A, B, A, None),
        {"contract": "bitwise"},
        (
            Status.MISMATCH,
            "candidate",
            "1 of 3 elements differ between oracle and candidate; the contract is bitwise: one rounding",
            1,
        ),
    ),
    (
        (A, B, A, None),
        {"inside": (INSIDE, OUTSIDE)},
        (Status.MISMATCH, "candidate", "1 of 3 elements of the candidate lie outside the envelope", 1),
    ),
    (
        (A, A, None, None),
        {"inside": (OUTSIDE, OUTSIDE)},
        (Status.MISMATCH, "oracle", "1 of 3 elements of the oracle lie outside the envelope", 0),
    ),
    (
        (C, B, A, None),
        {},
        (
            Status.MISMATCH,
            "oracle",
            "the oracle differs from its model in 1 of 3 elements; the candidate has no known declaration",
            1,
        ),
    ),
    (
        (A, B, None, None),
        {},
        (Status.WITHIN, "", "declaration of oracle and candidate unknown; 1 of 3 elements differ, all inside", 1),
    ),
]


def test_patterns_are_looked_for_in_faults_and_not_in_what_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Bits] = []

    def describe(left: Bits, *_: object) -> str:
        looked.append(left)
        return "a pattern"

    monkeypatch.setattr("equiv.compare.describe", describe)
    assert outcome(A, B, A, B)[0] is Status.REORDERED
    assert looked == []
    assert outcome(A, B, A, B, inside=(INSIDE, OUTSIDE))[0] is Status.MISMATCH
    assert outcome(C, B, A, B)[0] is Status.MISMATCH
    assert outcome(A, B, A, None)[0] is Status.WITHIN
    assert len(looked) >= 3


@pytest.mark.parametrize(("arrays", "options", "expected"), TABLE, ids=range(len(TABLE)))
def test_the_status_table(
    arrays: tuple[Bits, Bits, Bits | None, Bits | None],
    options: dict[str, object],
    expected: tuple[Status, str, str, int],
) -> None:
    assert outcome(*arrays, **options) == expected  # type: ignore[arg-type]


def test_undefined_elements_decide_nothing_and_are_counted() -> None:
    mask = np.array([[False, False, True]])
    assert outcome(A, B, A, A, undefined=mask)[:3] == (Status.IDENTICAL, "", "all 2 elements equal the model")
    outputs, models = {"oracle": A, "candidate": B}, {"oracle": A, "candidate": A}
    assert judge(spec(), outputs, models, None, mask).undefined == 1
    outside = {"oracle": (OUTSIDE, 0.0), "candidate": (OUTSIDE, 0.0)}
    assert judge(spec(), outputs, {"oracle": None, "candidate": None}, outside, mask).status is Status.WITHIN


def test_an_output_without_elements_is_identical() -> None:
    none = np.zeros((0, 4), dtype=np.uint32)
    assert outcome(none, none, none, none)[:3] == (Status.IDENTICAL, "", "all 0 elements equal the model")


def test_the_largest_share_of_the_envelope_is_reported_only_where_it_was_needed() -> None:
    fits = {"oracle": (INSIDE, 0.25), "candidate": (INSIDE, 0.5)}
    same = judge(spec(), {"oracle": A, "candidate": A}, {"oracle": A, "candidate": A}, fits, declared=DECLARED)
    other = judge(spec(), {"oracle": A, "candidate": B}, {"oracle": A, "candidate": B}, fits, declared=DECLARED)
    assert (same.envelope_used, other.envelope_used) == (None, 0.5)


def test_an_envelope_contract_cannot_be_judged_without_an_envelope() -> None:
    with pytest.raises(ValueError, match="out: the contract is an envelope and none was given"):
        outcome(A, B, A, B, inside=None)


def test_elements_outside_the_envelope_are_the_ones_shown() -> None:
    left, right = f32([1, 2, 3]), f32([9, 2, 4])
    fits = {"oracle": (INSIDE, 0.0), "candidate": (OUTSIDE, 1.5)}
    models: dict[str, Bits | None] = {"oracle": left, "candidate": right}
    verdict = judge(spec(), {"oracle": left, "candidate": right}, models, fits, declared=DECLARED)
    (shown,) = verdict.differences
    assert [element.index for element in shown.worst] == [(0, 2)]
