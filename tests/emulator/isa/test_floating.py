from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import exact_floats as exact
import numpy as np
import pytest
from ptx_run import SPECIALS, Array, each, one

if TYPE_CHECKING:
    from collections.abc import Callable

RNG = np.random.default_rng(1)


def _numbers(count: int) -> Array:
    """Bit patterns: anything, and numbers of like size, so that sums cancel and round."""
    wild = RNG.integers(0, 1 << 32, count, np.uint32)
    tame = (RNG.integers(0, 1 << 24, count, np.uint32) | RNG.integers(0x3E, 0x41, count, np.uint32) << 24).astype(
        np.uint32
    )
    tiny = RNG.integers(0, 1 << 25, count, np.uint32) | (RNG.integers(0, 2, count, np.uint32) << 31).astype(np.uint32)
    return np.concatenate([wild, tame, tiny])


PAIRS = list(itertools.product(SPECIALS, SPECIALS))
A = np.concatenate([np.array([a for a, _ in PAIRS], np.uint32), _numbers(100)])
B = np.concatenate([np.array([b for _, b in PAIRS], np.uint32), np.roll(_numbers(100), 7)])
C = np.roll(np.concatenate([np.tile(SPECIALS, len(SPECIALS)), _numbers(100)]), 3)
ROUNDINGS = ["rn", "rz", "rm", "rp"]


def _want(function: Callable[..., int], *arrays: Array, **options: object) -> Array:
    return np.array([function(*(int(v) for v in row), **options) for row in zip(*arrays, strict=True)], np.uint32)


def _pack(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _two(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def _widened(x: Array, form: exact.Format) -> Array:
    return _want(lambda v: exact.round_to(exact.value(v, form), exact.F32), x)


def _half(function: Callable[..., int], *arrays: Array) -> Array:
    return _want(function, *arrays).astype(np.uint16)


def _rank(code: int) -> tuple[float, bool]:
    """Order of numbers with -0 below +0."""
    return float(exact.value(code, exact.F32)), code >> 31 == 0


def _canonical(x: Array) -> Array:
    return np.where(np.isnan(x.view(np.float32)), np.uint32(0x7FFFFFFF), x)


def _flushed(x: Array) -> Array:
    return _want(lambda v: exact.flush(v, exact.F32), x)


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_f32_arithmetic_equals_exact_rationals_rounded_once(mode: str) -> None:
    add = _want(lambda a, b: exact.add(a, b, exact.F32, mode), A, B)
    np.testing.assert_array_equal(one(f"add.{mode}.f32", "%r20", A, B), add)
    negated = B ^ np.uint32(0x80000000)
    np.testing.assert_array_equal(one(f"sub.{mode}.f32", "%r20", A, negated), add)
    product = _want(lambda a, b: exact.mul(a, b, exact.F32, mode), A, B)
    np.testing.assert_array_equal(one(f"mul.{mode}.f32", "%r20", A, B), product)
    fused = _want(lambda a, b, c: exact.fma(a, b, c, exact.F32, mode), A, B, C)
    np.testing.assert_array_equal(one(f"fma.{mode}.f32", "%r20", A, B, C), fused)


def test_an_unmarked_operation_rounds_to_nearest() -> None:
    np.testing.assert_array_equal(one("add.f32", "%r20", A, B), one("add.rn.f32", "%r20", A, B))
    np.testing.assert_array_equal(one("mul.f32", "%r20", A, B), one("mul.rn.f32", "%r20", A, B))


def test_ftz_flushes_operands_and_result_to_zeros_of_their_sign() -> None:
    fused = _want(
        lambda a, b, c: exact.flush(exact.fma(a, b, c, exact.F32), exact.F32), _flushed(A), _flushed(B), _flushed(C)
    )
    np.testing.assert_array_equal(one("fma.rn.ftz.f32", "%r20", A, B, C), fused)
    assert (one("fma.rn.f32", "%r20", A, B, C) != fused).any()


def test_saturation_clamps_to_the_unit_interval_and_nan_to_zero() -> None:
    plain = one("add.f32", "%r20", A, B).view(np.float32)
    with np.errstate(invalid="ignore"):
        want = np.where(np.isnan(plain) | (plain <= 0), np.float32(0), np.minimum(plain, np.float32(1)))
    np.testing.assert_array_equal(one("add.sat.f32", "%r20", A, B), want.astype(np.float32).view(np.uint32))


def test_packed_f32_is_two_separate_operations() -> None:
    packed = one("fma.rn.f32x2", "%rd50", _pack(A, B), _pack(B, C), _pack(C, A), bits=64)
    np.testing.assert_array_equal(
        (packed & np.uint64(0xFFFFFFFF)).astype(np.uint32), one("fma.rn.f32", "%r20", A, B, C)
    )
    np.testing.assert_array_equal((packed >> np.uint64(32)).astype(np.uint32), one("fma.rn.f32", "%r20", B, C, A))
    for name in ("add", "sub", "mul"):
        packed = one(f"{name}.f32x2", "%rd50", _pack(A, B), _pack(B, C), bits=64)
        np.testing.assert_array_equal((packed >> np.uint64(32)).astype(np.uint32), one(f"{name}.f32", "%r20", B, C))


@pytest.mark.parametrize(("kind", "form"), [("bf16", exact.BF16), ("f16", exact.F16)])
def test_mixed_precision_widens_the_narrow_operands_exactly(kind: str, form: exact.Format) -> None:
    a, b = (A >> 16).astype(np.uint16), (B >> 13).astype(np.uint16)
    np.testing.assert_array_equal(
        one(f"add.rn.f32.{kind}", "%r20", a, C), one("add.rn.f32", "%r20", _widened(a, form), C)
    )
    np.testing.assert_array_equal(one(f"sub.f32.{kind}", "%r20", a, C), one("sub.rn.f32", "%r20", _widened(a, form), C))
    np.testing.assert_array_equal(
        one(f"fma.rn.f32.{kind}", "%r20", a, b, C), one("fma.rn.f32", "%r20", _widened(a, form), _widened(b, form), C)
    )


@pytest.mark.parametrize(("kind", "form"), [("bf16", exact.BF16), ("f16", exact.F16)])
def test_16_bit_arithmetic_rounds_once(kind: str, form: exact.Format) -> None:
    edge = np.array(
        [
            0,
            0x8000,
            1,
            0x8001,
            form.inf,
            form.inf | 0x8000,
            form.inf - 1,
            form.inf + 1,
            0xFFFF,
            0x3C00,
            0x3F80,
            0x7F,
            0x80,
        ],
        np.uint16,
    )
    a = np.concatenate([np.repeat(edge, len(edge)), RNG.integers(0, 1 << 16, 800).astype(np.uint16)])
    b = np.concatenate([np.tile(edge, len(edge)), np.roll(a, 11)[: len(a) - len(edge) ** 2]])
    c = np.roll(b, 3) ^ np.uint16(0x8000)
    np.testing.assert_array_equal(
        one(f"fma.rn.{kind}", "%rs20", a, b, c, bits=16), _half(lambda x, y, z: exact.fma(x, y, z, form), a, b, c)
    )
    np.testing.assert_array_equal(
        one(f"add.{kind}", "%rs20", a, b, bits=16), _half(lambda x, y: exact.add(x, y, form), a, b)
    )
    np.testing.assert_array_equal(
        one(f"mul.rn.{kind}", "%rs20", a, b, bits=16), _half(lambda x, y: exact.mul(x, y, form), a, b)
    )
    packed = one(f"mul.{kind}x2", "%r20", _two(a, b), _two(b, c))
    np.testing.assert_array_equal(packed & 0xFFFF, _half(lambda x, y: exact.mul(x, y, form), a, b))
    np.testing.assert_array_equal(packed >> 16, _half(lambda x, y: exact.mul(x, y, form), b, c))


def _extreme(a: int, b: int, *, largest: bool, nan: bool = False) -> int:
    """-0 below +0; NaN loses, or wins for `.NaN`."""
    x, y = exact.value(a, exact.F32), exact.value(b, exact.F32)
    if (isinstance(x, float) and math.isnan(x)) or (isinstance(y, float) and math.isnan(y)):
        if nan or (isinstance(x, float) and math.isnan(x) and isinstance(y, float) and math.isnan(y)):
            return exact.F32.nan
        return b if isinstance(x, float) and math.isnan(x) else a
    return max((a, b), key=_rank) if largest else min((a, b), key=_rank)


@pytest.mark.parametrize("name", ["min", "max"])
def test_extremes_order_zeros_and_treat_nan_as_spelt(name: str) -> None:
    def plain(a: int, b: int) -> int:
        return _extreme(a, b, largest=name == "max")

    np.testing.assert_array_equal(one(f"{name}.f32", "%r20", A, B), _want(plain, A, B))
    np.testing.assert_array_equal(
        one(f"{name}.NaN.f32", "%r20", A, B), _want(lambda a, b: _extreme(a, b, largest=name == "max", nan=True), A, B)
    )
    three = _want(lambda a, b, c: plain(plain(a, b), c), A, B, C)
    np.testing.assert_array_equal(one(f"{name}.f32", "%r20", A, B, C), three)

    def signed(a: int, b: int) -> int:
        magnitude = plain(a & 0x7FFFFFFF, b & 0x7FFFFFFF)
        return magnitude if magnitude == exact.F32.nan else magnitude | (a ^ b) & 0x80000000

    np.testing.assert_array_equal(one(f"{name}.xorsign.abs.f32", "%r20", A, B), _want(signed, A, B))


def test_16_bit_extremes_agree_with_widened_ones() -> None:
    a, b = (A >> 16).astype(np.uint16), (B >> 16).astype(np.uint16)
    for name in ("min", "max", "max.NaN", "min.xorsign.abs"):
        wide = (
            one(f"{name}.f32", "%r20", a.astype(np.uint32) << np.uint32(16), b.astype(np.uint32) << np.uint32(16)) >> 16
        )
        np.testing.assert_array_equal(one(f"{name}.bf16", "%rs20", a, b, bits=16), wide.astype(np.uint16))


RELATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pytest.mark.parametrize("name", RELATIONS)
def test_comparisons_are_false_for_nan_and_true_in_their_unordered_form(name: str) -> None:
    x, y = A.view(np.float32), B.view(np.float32)
    nan = np.isnan(x) | np.isnan(y)
    with np.errstate(invalid="ignore"):
        relation = RELATIONS[name](x, y)
    ordered = each(f"setp.{name}.f32 %p1|%p2, %r1, %r2;", {"%r1": A, "%r2": B}, {"%p1": 1, "%p2": 1})
    np.testing.assert_array_equal(ordered["%p1"], (relation & ~nan).astype(np.uint8))
    np.testing.assert_array_equal(ordered["%p2"], (~(relation & ~nan)).astype(np.uint8))
    unordered = each(f"setp.{name}u.f32 %p1, %r1, %r2;", {"%r1": A, "%r2": B}, {"%p1": 1})
    np.testing.assert_array_equal(unordered["%p1"], (relation | nan).astype(np.uint8))


def test_num_and_nan_comparisons_and_ftz() -> None:
    nan = np.isnan(A.view(np.float32)) | np.isnan(B.view(np.float32))
    got = each(
        "setp.num.f32 %p1, %r1, %r2; setp.nan.f32 %p2, %r1, %r2; setp.eq.ftz.f32 %p3, %r1, %r2;",
        {"%r1": A, "%r2": B},
        {"%p1": 1, "%p2": 1, "%p3": 1},
    )
    np.testing.assert_array_equal(got["%p1"], (~nan).astype(np.uint8))
    np.testing.assert_array_equal(got["%p2"], nan.astype(np.uint8))
    np.testing.assert_array_equal(
        got["%p3"], (_flushed(A).view(np.float32) == _flushed(B).view(np.float32)).astype(np.uint8)
    )


def test_signs_and_classes() -> None:
    np.testing.assert_array_equal(one("neg.f32", "%r20", A), _canonical(A ^ np.uint32(0x80000000)))
    np.testing.assert_array_equal(one("abs.f32", "%r20", A), _canonical(A & np.uint32(0x7FFFFFFF)))
    np.testing.assert_array_equal(
        one("copysign.f32", "%r20", A, B), (A & np.uint32(0x80000000)) | (B & np.uint32(0x7FFFFFFF))
    )
    magnitude = A & np.uint32(0x7FFFFFFF)
    for name, want in {
        "finite": magnitude < 0x7F800000,
        "notanumber": magnitude > 0x7F800000,
        "subnormal": (magnitude < 0x800000) & (magnitude != 0),
    }.items():
        got = each(f"testp.{name}.f32 %p1, %r1;", {"%r1": A}, {"%p1": 1})
        np.testing.assert_array_equal(got["%p1"], want.astype(np.uint8))


def test_ieee_division_and_root_are_correctly_rounded() -> None:
    with np.errstate(all="ignore"):
        quotient = (A.view(np.float32) / B.view(np.float32)).view(np.uint32)
        root = np.sqrt(A.view(np.float32)).view(np.uint32)
    np.testing.assert_array_equal(one("div.rn.f32", "%r20", A, B), _canonical(quotient))
    np.testing.assert_array_equal(one("sqrt.rn.f32", "%r20", A), _canonical(root))


def test_float_constants_reach_an_operation() -> None:
    got = each("add.f32 %r20, %r1, 0f3F800000; mul.f32 %r21, %r20, 2.0;", {"%r1": C}, {"%r20": 32, "%r21": 32})
    np.testing.assert_array_equal(got["%r20"], _want(lambda c: exact.add(c, 0x3F800000, exact.F32), C))
    np.testing.assert_array_equal(got["%r21"], _want(lambda c: exact.mul(c, 0x40000000, exact.F32), got["%r20"]))
