"""The comparison itself, with errors seeded into data: whatever is wrong is a mismatch, counted right, and named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv.compare import compare_bits, judge
from equiv.records import Difference, OutputSpec, OutputVerdict, Status
from equiv.rounding.formats import FORMATS

if TYPE_CHECKING:
    from equiv.records import Bits

SHAPE = (6, 6)
DIMS = ("token", "channel")


def data(format_name: str, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Bits:
    """Random bit patterns of a format, NaN and infinities among them where it has any."""
    fmt = FORMATS[format_name]
    kind = next(np.dtype(kind) for kind in ("u1", "u2", "u4") if np.dtype(kind).itemsize * 8 >= fmt.width)
    return np.random.default_rng(seed).integers(0, 1 << fmt.width, shape, dtype=np.uint64).astype(kind)


def verdict(format_name: str, right: Bits, wrong: Bits) -> OutputVerdict:
    """The judgement over a candidate that should be `right` and left `wrong`; the oracle is right."""
    spec = OutputSpec("out", format_name, DIMS[-right.ndim :], "bitwise", "exact")
    return judge(spec, {"oracle": right, "candidate": wrong}, {"oracle": right, "candidate": right}, None)


def caught(format_name: str, right: Bits, wrong: Bits) -> Difference:
    """The difference that is shown, after checking that it is the candidate's and that every wrong element counts."""
    found = verdict(format_name, right, wrong)
    assert (found.status, found.blamed) == (Status.MISMATCH, "candidate")
    (difference,) = [one for one in found.differences if one.right == "candidate"]
    assert difference.count == int((right != wrong).sum())
    assert difference.total == right.size
    return difference


@pytest.mark.parametrize("format_name", sorted(FORMATS))
def test_every_single_bit_of_every_format_counts(format_name: str) -> None:
    right = data(format_name)
    assert verdict(format_name, right, right.copy()).status is Status.IDENTICAL
    for bit in range(FORMATS[format_name].width):
        wrong = right.copy()
        wrong[bit % 6, (bit // 6) % 6] ^= right.dtype.type(1 << bit)
        assert caught(format_name, right, wrong).worst[0].index == (bit % 6, (bit // 6) % 6)


@pytest.mark.parametrize(
    ("format_name", "expected", "got", "pattern"),
    [
        ("f32", 0x7FC00000, 0x7FC00001, "NaNs with different bits"),
        ("f32", 0x7F7FFFFF, 0x7F800000, "each one ulp up"),
        ("f32", 0x7F800000, 0x7FC00000, "NaN on one side"),
        ("f32", 0x00000000, 0x80000000, "only the sign differs"),
        ("bf16", 0x7F80, 0xFF80, "only the sign differs"),
        ("e4m3", 0x7E, 0x7F, "NaN on one side"),
        ("e4m3", 0x00, 0x80, "only the sign differs"),
    ],
)
def test_special_values_are_told_apart(format_name: str, expected: int, got: int, pattern: str) -> None:
    right = np.full(SHAPE, expected, data(format_name).dtype)
    wrong = right.copy()
    wrong[3:5, 2] = got
    assert pattern in caught(format_name, right, wrong).pattern


def test_swapped_nibbles_of_mxfp4_are_codes_of_the_neighbour() -> None:
    right = data("e2m1", (8, 32), 1)
    pairs = right.reshape(8, 16, 2)
    difference = caught("e2m1", right, pairs[:, :, ::-1].reshape(8, 32))
    assert "each holds what belongs to channel xor 1" in difference.pattern


@pytest.mark.parametrize(("by", "times"), [(1, "2"), (-1, "0.5")])
def test_a_scale_that_is_off_by_one_is_named_by_its_factor(by: int, times: str) -> None:
    right = np.arange(100, 136, dtype=np.uint8).reshape(SHAPE)
    assert f"each {times} times the expected value" in caught("ue8m0", right, right + np.uint8(by % 256)).pattern


def test_a_transposed_and_a_shifted_tensor_are_named() -> None:
    right = data("bf16", SHAPE, 2) & np.uint16(0x7EFF)
    transposed = "transposed: token and channel are exchanged"
    assert transposed in caught("bf16", right, np.ascontiguousarray(right.T)).pattern
    shifted = "each holds what belongs to channel -1"
    assert shifted in caught("bf16", right, np.roll(right, 1, axis=1)).pattern


def test_nothing_equals_nothing_and_sizes_that_differ_are_no_comparison() -> None:
    empty = np.zeros((0, 6), np.uint16)
    assert verdict("bf16", empty, empty.copy()).status is Status.IDENTICAL
    spec = OutputSpec("out", "bf16", DIMS, "bitwise", "exact")
    with pytest.raises(ValueError, match="out"):
        compare_bits(spec, "model", empty, "candidate", np.zeros((1, 6), np.uint16))


def test_one_wrong_bit_among_2_to_the_26_elements_is_found_and_placed() -> None:
    right = np.zeros((1 << 13, 1 << 13), np.uint8)
    wrong = right.copy()
    wrong[5000, 8191] = 1
    difference = caught("e4m3", right, wrong)
    assert (difference.count, difference.worst[0].index, difference.worst[0].ulps) == (1, (5000, 8191), 1)
