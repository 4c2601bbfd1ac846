"""Carry chains, 24-bit products, pairs of 16 bits and the rarer bit instructions, against Python integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ptx_run import each, one

RNG = np.random.default_rng(8)
EDGE = [0, 1, 2, 0x7F, 0x80, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
CROSS = np.array(list(itertools.product(EDGE, EDGE)), np.uint32)
A, B = CROSS[:, 0].copy(), CROSS[:, 1].copy()
C = RNG.integers(0, 1 << 32, len(A), np.uint32)
WORD = (1 << 32) - 1


def _signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def _words(values: list[int]) -> np.ndarray:
    return np.array([v & WORD for v in values], np.uint32)


def test_carries_make_wide_sums_and_differences() -> None:
    x, y = A.astype(np.uint64) << np.uint64(32) | C, C.astype(np.uint64) << np.uint64(32) | B
    for name, sign in (("add", 1), ("sub", -1)):
        got = each(
            f"{name}.cc.u32 %r20, %r1, %r2; {name}c.cc.u32 %r21, %r3, %r4; {name}c.u32 %r22, 0, 0;",
            {"%r1": C, "%r2": B, "%r3": A, "%r4": C},
            {"%r20": 32, "%r21": 32, "%r22": 32},
        )
        total = [int(p) + sign * int(q) for p, q in zip(x, y, strict=True)]
        for register, shift in (("%r20", 0), ("%r21", 32), ("%r22", 64)):
            np.testing.assert_array_equal(got[register], _words([v >> shift for v in total]))


def test_products_with_carry_make_a_wide_multiply_add() -> None:
    got = each(
        "mad.lo.cc.u32 %r20, %r1, %r2, %r3; madc.hi.u32 %r21, %r1, %r2, %r3;",
        {"%r1": A, "%r2": B, "%r3": C},
        {"%r20": 32, "%r21": 32},
    )
    total = [int(a) * int(b) + (int(c) << 32 | int(c)) for a, b, c in zip(A, B, C, strict=True)]
    np.testing.assert_array_equal(got["%r20"], _words(total))
    np.testing.assert_array_equal(got["%r21"], _words([v >> 32 for v in total]))


def test_a_carry_belongs_to_its_lane_and_survives_other_instructions() -> None:
    got = each(
        "setp.eq.u32 %p1, %r1, 0; @%p1 add.cc.u32 %r20, %r2, -1; @!%p1 add.cc.u32 %r20, %r2, 0;"
        " add.u32 %r22, %r1, -1; addc.u32 %r21, 0, 0;",
        {"%r1": np.array([0, 1, 0, 1], np.uint32), "%r2": np.array([5, 5, 0, 0], np.uint32)},
        {"%r21": 32},
    )
    np.testing.assert_array_equal(got["%r21"], [1, 0, 0, 0])


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_24_bit_products(kind: str) -> None:
    def cut(x: int) -> int:
        return _signed(x, 24) if kind == "s32" else x & 0xFFFFFF

    products = [cut(int(a)) * cut(int(b)) for a, b in zip(A, B, strict=True)]
    np.testing.assert_array_equal(one(f"mul24.lo.{kind}", "%r20", A, B), _words(products))
    np.testing.assert_array_equal(one(f"mul24.hi.{kind}", "%r20", A, B), _words([v >> 16 for v in products]))
    sums = [(v >> 16) + int(c) for v, c in zip(products, C, strict=True)]
    np.testing.assert_array_equal(one(f"mad24.hi.{kind}", "%r20", A, B, C), _words(sums))


def test_saturating_multiply_adds_stop_at_the_ends() -> None:
    low, high = -(1 << 31), (1 << 31) - 1
    totals = [
        (_signed(a) * _signed(b) >> 32) + _signed(c) for a, b, c in zip(A.tolist(), B.tolist(), B.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(
        one("mad.hi.sat.s32", "%r20", A, B, B), _words([min(max(v, low), high) for v in totals])
    )


def test_extremes_of_two_16_bit_numbers() -> None:
    low, high = (np.stack([x & 0xFFFF, x >> 16]).astype(np.uint16) for x in (A, B))
    for kind in ("u16x2", "s16x2"):
        p, q = (x.view(np.int16) if kind[0] == "s" else x for x in (low, high))
        for name, function in (("min", np.minimum), ("max", np.maximum)):
            want = function(p, q).view(np.uint16).astype(np.uint32)
            np.testing.assert_array_equal(one(f"{name}.{kind}", "%r20", A, B), want[0] | want[1] << 16)
    want = np.maximum(np.minimum(low.view(np.int16), high.view(np.int16)), 0).astype(np.uint32)
    np.testing.assert_array_equal(one("min.relu.s16x2", "%r20", A, B), want[0] | want[1] << 16)


def test_extension_from_a_width() -> None:
    width = np.resize(np.array([0, 1, 7, 8, 16, 31, 32, 33, 0xFFFFFFFF], np.uint32), len(A))
    for mode, kind in itertools.product(("wrap", "clamp"), ("u32", "s32")):
        want = []
        for a, b in zip(A.tolist(), width.tolist(), strict=True):
            n = 32 if mode == "clamp" and b > 31 else b & 31
            low = a & ((1 << n) - 1)
            want.append(_signed(low, n) if kind == "s32" and n else low)
        np.testing.assert_array_equal(one(f"szext.{mode}.{kind}", "%r20", A, width), _words(want))


def test_the_nth_set_bit_is_found_upwards_and_downwards() -> None:
    base = RNG.integers(0, 32, len(C)).astype(np.uint32)
    count = RNG.integers(-6, 7, len(C))
    want = []
    for mask, start, n in zip(C.tolist(), base.tolist(), count.tolist(), strict=True):
        places = [start] if n == 0 else list(range(start, 32)) if n > 0 else list(range(start, -1, -1))
        ones = [i for i in places if mask >> i & 1]
        wanted = max(abs(n), 1)
        want.append(ones[wanted - 1] if len(ones) >= wanted else WORD)
    got = one("fns.b32", "%r20", C, base, count.astype(np.int32).view(np.uint32))
    np.testing.assert_array_equal(got, _words(want))


def test_three_input_logic_joins_its_result_with_a_predicate() -> None:
    flag = (np.arange(len(A)) & 1).astype(np.uint8)
    got = each(
        "lop3.and.b32 %r20|%p2, %r1, %r2, %r3, 0x80, %p1; lop3.or.b32 %r21|%p3, %r1, %r2, %r3, 0x80, %p1;",
        {"%r1": A, "%r2": B, "%r3": C, "%p1": flag},
        {"%r20": 32, "%p2": 1, "%p3": 1},
    )
    both = A & B & C
    np.testing.assert_array_equal(got["%r20"], both)
    np.testing.assert_array_equal(got["%p2"], ((both != 0) & (flag == 1)).astype(np.uint8))
    np.testing.assert_array_equal(got["%p3"], ((both != 0) | (flag == 1)).astype(np.uint8))


def test_64_bit_fields_take_whole_positions() -> None:
    wide = C.astype(np.uint64) << np.uint64(32) | A
    start, length = np.full(len(A), 0x100, np.uint32), np.full(len(A), 8, np.uint32)
    assert (one("bfe.u64", "%rd50", wide, start, length, bits=64) == 0).all()
    np.testing.assert_array_equal(
        one("bfe.u32", "%r20", A, start, length), A & 0xFF
    )  # of a 32-bit field the low 8 bits of the position count
    top = [63 - (64 - int(v).bit_length()) if v else WORD for v in wide]
    np.testing.assert_array_equal(one("bfind.u64", "%r20", wide), _words(top))


def test_selection_by_a_sign() -> None:
    got = one(
        "slct.b32.f32", "%r20", A, B, np.resize(np.array([0x80000000, 0xBF800000, 0x7FC00000, 0], np.uint32), len(A))
    )
    chosen = np.resize(np.array([True, False, False, True]), len(A))
    np.testing.assert_array_equal(got, np.where(chosen, A, B))


def test_packing_saturates() -> None:
    got = one("cvt.pack.sat.s8.s32.b32", "%r20", A, B, C)
    want = [
        (int(c) << 16) | (min(max(_signed(int(a)), -128), 127) & 255) << 8 | min(max(_signed(int(b)), -128), 127) & 255
        for a, b, c in zip(A, B, C, strict=True)
    ]
    np.testing.assert_array_equal(got, _words(want))
    got = one("cvt.pack.sat.u16.s32", "%r20", A, B)
    want = [min(max(_signed(int(a)), 0), 65535) << 16 | min(max(_signed(int(b)), 0), 65535) for a, b in CROSS]
    np.testing.assert_array_equal(got, _words(want))


def test_comparisons_of_packed_halves_answer_for_each() -> None:
    got = each(
        "setp.lt.f16x2 %p1|%p2, %r1, %r2; set.lt.u32.f16x2 %r20, %r1, %r2; set.lt.f16x2.f16x2 %r21, %r1, %r2;",
        {"%r1": A, "%r2": B},
        {"%p1": 1, "%p2": 1, "%r20": 32, "%r21": 32},
    )
    (a0, a1), (b0, b1) = (((x & 0xFFFF).astype(np.uint16), (x >> 16).astype(np.uint16)) for x in (A, B))
    low, high = (p.view(np.float16) < q.view(np.float16) for p, q in ((a0, b0), (a1, b1)))
    np.testing.assert_array_equal(got["%p1"], low.astype(np.uint8))
    np.testing.assert_array_equal(got["%p2"], high.astype(np.uint8))
    np.testing.assert_array_equal(got["%r20"], low * np.uint32(0xFFFF) | high * np.uint32(0xFFFF0000))
    np.testing.assert_array_equal(got["%r21"], low * np.uint32(0x3C00) | high * np.uint32(0x3C000000))
