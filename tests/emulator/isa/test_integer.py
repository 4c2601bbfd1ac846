from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ptx_run import Array, each, one

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = np.array(
    [0, 1, 2, 3, 7, 31, 32, 33, 0x7FFF, 0x8000, 0xFFFF, 0x12345678, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF],
    np.uint32,
)
A = np.repeat(VALUES, len(VALUES))
B = np.tile(VALUES, len(VALUES))
WIDE = np.concatenate([A.astype(np.uint64) << 32 | B, B.astype(np.uint64) << np.uint64(17)])
WIDE_B = np.roll(WIDE, 5)
AMOUNTS = np.tile(np.array([0, 1, 5, 15, 16, 31, 32, 33, 63, 64, 65, 0xFFFFFFFF], np.uint32), 43)[: len(WIDE)]

UNSIGNED = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def _signed(x: Array, bits: int) -> list[int]:
    return [int(v) - (1 << bits) if int(v) >> (bits - 1) & 1 else int(v) for v in x]


def _wrapped(values: list[int], bits: int) -> Array:
    return np.array([v & ((1 << bits) - 1) for v in values], UNSIGNED[bits])


def _operands(kind: str) -> tuple[Array, Array, list[int], list[int]]:
    """Two arrays of a type's width, and their values as Python integers."""
    bits = int(kind[1:])
    a, b = (WIDE, WIDE_B) if bits == 64 else (A.astype(UNSIGNED[bits]), B.astype(UNSIGNED[bits]))
    if kind[0] == "s":
        return a, b, _signed(a, bits), _signed(b, bits)
    return a, b, [int(v) for v in a], [int(v) for v in b]


REGISTER = {16: "%rs20", 32: "%r20", 64: "%rd50"}


def _trunc(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


ARITHMETIC: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda x, y, bits: x + y,
    "sub": lambda x, y, bits: x - y,
    "mul.lo": lambda x, y, bits: x * y,
    "mul.hi": lambda x, y, bits: (x * y) >> bits,
    "min": lambda x, y, bits: min(x, y),
    "max": lambda x, y, bits: max(x, y),
    "div": lambda x, y, bits: _trunc(x, y) if y else -1,
    "rem": lambda x, y, bits: x - y * _trunc(x, y) if y else -1,
}


@pytest.mark.parametrize(
    ("operation", "kind"), list(itertools.product(ARITHMETIC, ["s16", "u16", "s32", "u32", "s64", "u64"]))
)
def test_two_operand_arithmetic_equals_python_integers(operation: str, kind: str) -> None:
    a, b, x, y = _operands(kind)
    bits = int(kind[1:])
    want = _wrapped([ARITHMETIC[operation](p, q, bits) for p, q in zip(x, y, strict=True)], bits)
    got = one(f"{operation}.{kind}", REGISTER[bits], a, b, bits=bits)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32"])
def test_wide_multiplication_keeps_the_whole_product(kind: str) -> None:
    a, b, x, y = _operands(kind)
    bits = 2 * int(kind[1:])
    want = _wrapped([p * q for p, q in zip(x, y, strict=True)], bits)
    np.testing.assert_array_equal(one(f"mul.wide.{kind}", REGISTER[bits], a, b, bits=bits), want)
    c = np.full(len(a), 0x10001, want.dtype)
    got = one(f"mad.wide.{kind}", REGISTER[bits], a, b, c, bits=bits)
    np.testing.assert_array_equal(got, want + c)


def test_saturating_add_stops_at_the_ends() -> None:
    want = _wrapped(
        [max(min(p + q, 2**31 - 1), -(2**31)) for p, q in zip(_signed(A, 32), _signed(B, 32), strict=True)], 32
    )
    np.testing.assert_array_equal(one("add.sat.s32", "%r20", A, B), want)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s16", "s32", "s64", "u64"])
def test_shifts_clamp_their_amount(kind: str) -> None:
    bits = int(kind[1:])
    a = WIDE[: len(AMOUNTS)].astype(UNSIGNED[bits])
    n = AMOUNTS[: len(a)]
    values = _signed(a, bits) if kind[0] == "s" else [int(v) for v in a]
    right = _wrapped([v >> min(int(k), bits) for v, k in zip(values, n, strict=True)], bits)
    np.testing.assert_array_equal(one(f"shr.{kind}", REGISTER[bits], a, n, bits=bits), right)
    if kind[0] == "b":
        left = _wrapped([v << min(int(k), bits) for v, k in zip(values, n, strict=True)], bits)
        np.testing.assert_array_equal(one(f"shl.{kind}", REGISTER[bits], a, n, bits=bits), left)


@pytest.mark.parametrize("side", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shift_takes_its_word_from_both(side: str, mode: str) -> None:
    n = AMOUNTS[: len(A)]
    want = []
    for low, high, amount in zip(A, B, n, strict=True):
        k = int(amount) & 31 if mode == "wrap" else min(int(amount), 32)
        both = int(high) << 32 | int(low)
        want.append((both << k) >> 32 if side == "l" else both >> k)
    np.testing.assert_array_equal(one(f"shf.{side}.{mode}.b32", "%r20", A, B, n), _wrapped(want, 32))


def _field(value: int, position: int, length: int, bits: int, *, signed: bool) -> int:
    sign = value >> min(position + length - 1, bits - 1) & 1 if signed and length else 0
    return sum((value >> position + i & 1 if i < length and position + i < bits else sign) << i for i in range(bits))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract_follows_its_definition_bit_by_bit(kind: str) -> None:
    bits = int(kind[1:])
    cases = list(
        itertools.product(
            [0, 1, 17, 31, 32, 63, 64, 200], [0, 1, 5, 31, 32, 33, 64, 255], [0x80F0A5C3_91E7D2B4, 0x7FFFFFFF_7FFFFFFF]
        )
    )
    a = _wrapped([value for _, _, value in cases], bits)
    position, length = (np.array([case[i] for case in cases], np.uint32) for i in (0, 1))
    want = [_field(int(v), p, n, bits, signed=kind[0] == "s") for v, (p, n, _) in zip(a, cases, strict=True)]
    np.testing.assert_array_equal(
        one(f"bfe.{kind}", REGISTER[bits], a, position, length, bits=bits), _wrapped(want, bits)
    )


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert_follows_its_definition_bit_by_bit(bits: int) -> None:
    cases = list(itertools.product([0, 1, 17, 31, 32, 63, 200], [0, 1, 5, 31, 32, 64, 255]))
    a, b = (_wrapped([value] * len(cases), bits) for value in (0x5A5AF00F_A5A50FF0, 0x01234567_89ABCDEF))
    position, length = (np.array([case[i] for case in cases], np.uint32) for i in (0, 1))
    want = []
    for p, n in cases:
        value = int(b[0])
        for i in range(n):
            if p + i < bits:
                value = value & ~(1 << p + i) | (int(a[0]) >> i & 1) << p + i if i < bits else value & ~(1 << p + i)
        want.append(value)
    got = one(f"bfi.b{bits}", REGISTER[bits], a, b, position, length, bits=bits)
    np.testing.assert_array_equal(got, _wrapped(want, bits))


def _byte(a: int, b: int, selector: int) -> int:
    value = (b << 32 | a) >> 8 * (selector & 7) & 255
    return (255 if value & 128 else 0) if selector & 8 else value


def test_permute_picks_bytes_and_replicates_signs() -> None:
    selectors = np.array([0x3210, 0x7654, 0x5410, 0x0123, 0xFEDC, 0x89AB, 0x7531, 0xFFFF], np.uint32)
    a, b = np.full(8, 0x81234567, np.uint32), np.full(8, 0x89AB7DEF, np.uint32)
    want = [sum(_byte(0x81234567, 0x89AB7DEF, int(s) >> 4 * i & 15) << 8 * i for i in range(4)) for s in selectors]
    np.testing.assert_array_equal(one("prmt.b32", "%r20", a, b, selectors), _wrapped(want, 32))


@pytest.mark.parametrize(
    ("mode", "rows"),
    [  # bytes 3, 2, 1, 0 of the result for selectors 0 to 3, from the table of the PTX manual
        ("f4e", ("3210", "4321", "5432", "6543")),
        ("b4e", ("5670", "6701", "7012", "0123")),
        ("rc8", ("0000", "1111", "2222", "3333")),
        ("ecl", ("3210", "3211", "3222", "3333")),
        ("ecr", ("0000", "1110", "2210", "3210")),
        ("rc16", ("1010", "3232", "1010", "3232")),
    ],
)
def test_permute_modes_follow_the_manual(mode: str, rows: tuple[str, ...]) -> None:
    a, b = np.full(4, 0x33221100, np.uint32), np.full(4, 0x77665544, np.uint32)
    want = [int("".join(digit * 2 for digit in row), 16) for row in rows]
    got = one(f"prmt.b32.{mode}", "%r20", a, b, np.arange(4, dtype=np.uint32))
    np.testing.assert_array_equal(got, np.array(want, np.uint32))


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x3C])
def test_three_input_logic_reads_its_truth_table(table: int) -> None:
    c = np.roll(B, 3)
    want = [
        sum((table >> ((int(x) >> i & 1) << 2 | (int(y) >> i & 1) << 1 | int(z) >> i & 1) & 1) << i for i in range(32))
        for x, y, z in zip(A, B, c, strict=True)
    ]
    np.testing.assert_array_equal(one("lop3.b32", "%r20", A, B, c, str(table)), _wrapped(want, 32))


def test_bit_counts_and_reversal() -> None:
    np.testing.assert_array_equal(one("popc.b32", "%r20", A), _wrapped([int(v).bit_count() for v in A], 32))
    np.testing.assert_array_equal(one("popc.b64", "%r20", WIDE), _wrapped([int(v).bit_count() for v in WIDE], 32))
    np.testing.assert_array_equal(one("clz.b32", "%r20", A), _wrapped([32 - int(v).bit_length() for v in A], 32))
    np.testing.assert_array_equal(one("clz.b64", "%r20", WIDE), _wrapped([64 - int(v).bit_length() for v in WIDE], 32))
    np.testing.assert_array_equal(one("brev.b32", "%r20", A), _wrapped([int(f"{int(v):032b}"[::-1], 2) for v in A], 32))
    np.testing.assert_array_equal(
        one("brev.b64", "%rd50", WIDE, bits=64), _wrapped([int(f"{int(v):064b}"[::-1], 2) for v in WIDE], 64)
    )
    np.testing.assert_array_equal(one("bfind.u32", "%r20", A), _wrapped([int(v).bit_length() - 1 for v in A], 32))


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


@pytest.mark.parametrize(
    ("operation", "kind"), list(itertools.product(COMPARE, ["s16", "u16", "s32", "u32", "s64", "u64"]))
)
def test_comparisons_set_a_predicate_and_its_complement(operation: str, kind: str) -> None:
    a, b, x, y = _operands(kind)
    bits = int(kind[1:])
    ra, rb = {16: ("%rs1", "%rs2"), 32: ("%r1", "%r2"), 64: ("%rd1", "%rd2")}[bits]
    got = each(f"setp.{operation}.{kind} %p1|%p2, {ra}, {rb};", {ra: a, rb: b}, {"%p1": 1, "%p2": 1})
    want = np.array([COMPARE[operation](p, q) for p, q in zip(x, y, strict=True)], np.uint8)
    np.testing.assert_array_equal(got["%p1"], want)
    np.testing.assert_array_equal(got["%p2"], 1 - want)


@pytest.mark.parametrize("combine", ["and", "or", "xor"])
def test_a_comparison_combines_with_a_negated_predicate(combine: str) -> None:
    c = np.arange(len(A), dtype=np.uint8) % 2
    got = each(f"setp.lt.{combine}.u32 %p1|%p2, %r1, %r2, !%p3;", {"%r1": A, "%r2": B, "%p3": c}, {"%p1": 1, "%p2": 1})
    function = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combine]
    np.testing.assert_array_equal(got["%p1"], function(A < B, 1 - c).astype(np.uint8))
    np.testing.assert_array_equal(got["%p2"], function(A >= B, 1 - c).astype(np.uint8))


def test_a_guard_protects_the_lanes_it_excludes() -> None:
    lanes = np.arange(64, dtype=np.uint8) % 3 == 0
    got = each(
        "mov.b32 %r20, 7; @%p1 add.u32 %r20, %r20, %r1; @!%p1 mov.b32 %r20, 9;",
        {"%r1": np.arange(64, dtype=np.uint32), "%p1": lanes.astype(np.uint8)},
        {"%r20": 32},
    )
    np.testing.assert_array_equal(got["%r20"], np.where(lanes, np.arange(64) + 7, 9))


def test_carries_run_from_the_low_to_the_high_word() -> None:
    got = each("add.cc.u32 %r20, %r1, %r2; addc.u32 %r21, %r2, %r1;", {"%r1": A, "%r2": B}, {"%r20": 32, "%r21": 32})
    wide = (B.astype(np.uint64) << np.uint64(32) | A) + (A.astype(np.uint64) << np.uint64(32) | B)
    np.testing.assert_array_equal(got["%r21"].astype(np.uint64) << np.uint64(32) | got["%r20"], wide)


@pytest.mark.parametrize(("number", "wanted"), [(0, 6), (1, 5), (2, 5), (-1, 5), (-2, 5)])
def test_a_number_that_is_not_zero_is_a_true_predicate_of_every_lane(number: int, wanted: int) -> None:
    got = each(f"mov.pred %p1, {number}; selp.b32 %r20, 5, 6, %p1;", {"%r1": A}, {"%r20": 32})
    assert (got["%r20"] == wanted).all()


def test_selection_reads_its_predicate() -> None:
    c = (np.arange(len(A)) % 5 == 0).astype(np.uint8)
    got = each("selp.b32 %r20, %r1, %r2, %p1;", {"%r1": A, "%r2": B, "%p1": c}, {"%r20": 32})
    np.testing.assert_array_equal(got["%r20"], np.where(c, A, B))


def test_a_destination_may_be_its_own_source() -> None:
    got = each(
        "add.u32 %r1, %r1, %r2; mul.lo.u32 %r1, %r1, %r1; mov.b32 %r20, %r1;", {"%r1": A, "%r2": B}, {"%r20": 32}
    )
    np.testing.assert_array_equal(got["%r20"], (A + B) * (A + B))
