"""Float32 arithmetic against exact fractions, against the C twin, and at the points where double rounding shows."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from exact import rounded, value
from numerics_twin import EDGES, Twin, near, pairs, samples

from equiv.rounding import arithmetic as fp
from equiv.rounding.conversions import Mode

if TYPE_CHECKING:
    from collections.abc import Callable

BINARY: dict[str, Callable[..., fp.U32]] = {
    **{f"eq_add_{m}": partial(fp.add, mode=m) for m in Mode},
    **{f"eq_sub_{m}": partial(fp.sub, mode=m) for m in Mode},
    **{f"eq_mul_{m}": partial(fp.mul, mode=m) for m in Mode},
    "eq_div_rn": fp.div,
    "eq_max": fp.maximum,
    "eq_min": fp.minimum,
    "eq_max_nan": partial(fp.maximum, nan=True),
    "eq_min_nan": partial(fp.minimum, nan=True),
    "eq_min_xorsign_abs": fp.min_xorsign_abs,
}
UNARY: dict[str, Callable[..., fp.U32]] = {"eq_sqrt_rn": fp.sqrt, "eq_rpi": fp.ceil}
TERNARY: dict[str, Callable[..., fp.U32]] = {f"eq_fma_{m}": partial(fp.fma, mode=m) for m in Mode}
FTZ = ["eq_add_rn", "eq_sub_rz", "eq_mul_rn", "eq_mul_rp", "eq_div_rn", "eq_max", "eq_min_nan", "eq_min_xorsign_abs"]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    arity = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **dict.fromkeys(TERNARY, 3)}
    flushed = {f"{name}_ftz": arity[name] for name in (*FTZ, *TERNARY, "eq_sqrt_rn", "eq_rpi")}
    return Twin(tmp_path_factory.mktemp("twin"), arity | flushed)


def operands(count: int) -> list[fp.U32]:
    """Edges against edges, then random patterns whose exponents are near enough to interact."""
    first, second = pairs(EDGES.tolist())
    random = samples(21, 1 << 16)
    close = near(22, random, 26)
    if count == 2:
        return [np.concatenate([first, random]), np.concatenate([second, close])]
    unit = near(23, np.full(random.size, 0x3F800000, dtype=np.uint32), 3)
    third = np.roll(first, 1237)
    return [np.concatenate(x) for x in ((first, random), (second, unit), (third, close))]


def bits(*values: float) -> fp.U32:
    return fp.bits_of(values)


@pytest.mark.parametrize("name", BINARY)
def test_the_c_twin_computes_two_operand_instructions_alike(name: str, twin: Twin) -> None:
    a, b = operands(2)
    assert np.array_equal(BINARY[name](a, b), twin(name, a, b))


@pytest.mark.parametrize("name", FTZ)
def test_the_c_twin_flushes_alike(name: str, twin: Twin) -> None:
    a, b = operands(2)
    assert np.array_equal(BINARY[name](a, b, ftz=True), twin(f"{name}_ftz", a, b))


@pytest.mark.parametrize("name", TERNARY)
def test_the_c_twin_fuses_alike(name: str, twin: Twin) -> None:
    a, b, c = operands(3)
    assert np.array_equal(TERNARY[name](a, b, c), twin(name, a, b, c))
    if f"{name}_ftz" in twin.arity:
        assert np.array_equal(TERNARY[name](a, b, c, ftz=True), twin(f"{name}_ftz", a, b, c))


@pytest.mark.parametrize("name", UNARY)
def test_the_c_twin_computes_one_operand_instructions_alike(name: str, twin: Twin) -> None:
    a = samples(24)
    assert np.array_equal(UNARY[name](a), twin(name, a))
    assert np.array_equal(UNARY[name](a, ftz=True), twin(f"{name}_ftz", a))


@pytest.mark.parametrize("mode", Mode)
def test_fma_mul_and_add_round_the_exact_value_once(mode: Mode) -> None:
    rng = np.random.default_rng(31)
    finite = EDGES[(EDGES & np.uint32(0x7FFFFFFF)) < np.uint32(0x7F800000)]
    a, b, c = (rng.choice(finite, 500) for _ in range(3))
    # The other half is random with exponents that make the product meet the addend, and tiny ones.
    x = near(32, np.full(500, 0x3F800000, dtype=np.uint32), 2)
    y = near(33, np.full(500, 0x01800000, dtype=np.uint32), 3)
    z = near(34, np.full(500, 0x01000000, dtype=np.uint32), 30)
    a, b, c = (np.concatenate(v) for v in ((a, x), (b, y), (c, z)))
    for got_fma, got_mul, got_add, *ends in zip(
        fp.fma(a, b, c, mode=mode), fp.mul(a, b, mode=mode), fp.add(a, c, mode=mode), a, b, c, strict=True
    ):
        p, q, r = (Fraction(value(end)) for end in ends)
        sp, sq, sr = (int(end) >> 31 for end in ends)
        assert int(got_mul) == rounded(p * q, mode, sp ^ sq)
        down = int(mode is Mode.RM)
        product_zero = (sp ^ sq) if (sp ^ sq) == sr else down
        assert int(got_fma) == rounded(p * q + r, mode, product_zero if p * q == 0 or p * q + r == 0 else 0), ends
        assert int(got_add) == rounded(p + r, mode, sp if sp == sr else down)


def test_fma_sees_both_sides_of_a_midpoint() -> None:
    # 1 + 2^-24 is the midpoint of 1 and its upper neighbour; the products lie 2^-48 and more away from 2^-24.
    factor = bits(1.0 + 2.0**-12)
    assert fp.fma(factor, bits(2.0**-24 * (1 - 2.0**-12)), bits(1.0)) == bits(1.0)
    assert fp.fma(bits(2.0**-12), bits(2.0**-12), bits(1.0)) == bits(1.0)
    assert fp.fma(factor, bits(2.0**-24 * (1 + 2.0**-12)), bits(1.0)) == bits(1.0 + 2.0**-23)


def test_rounding_to_odd_is_needed_where_float64_lands_on_a_midpoint() -> None:
    a, b = bits(2.0**-12 * (1 + 2.0**-20)), bits(2.0**-12 * (1 - 2.0**-20))  # a * b = 2^-24 (1 - 2^-40)
    odd = bits(1.0 + 2.0**-23)  # odd significand: the naive tie goes up to 1 + 2^-22, the true value lies below it
    naive_odd = np.float32(float(fp.floats(a)[0]) * float(fp.floats(b)[0]) + float(fp.floats(odd)[0]))
    assert naive_odd == np.float32(1.0 + 2.0**-22)
    assert fp.fma(a, b, odd) == odd


def test_nan_results_are_canonical_and_signs_of_zero_are_ieee() -> None:
    nans = np.array([0x7F800001, 0xFFC00000, 0xFFFFFFFF], dtype=np.uint32)
    for result in (fp.add(nans, bits(1.0)), fp.mul(nans, bits(0.0)), fp.fma(nans, nans, nans), fp.div(bits(1.0), nans)):
        assert result.tolist() == [0x7FFFFFFF] * 3
    inf = bits(np.inf)
    assert fp.sub(inf, inf) == fp.mul(inf, bits(0.0)) == fp.div(bits(0.0), bits(-0.0)) == np.uint32(0x7FFFFFFF)
    assert fp.add(bits(1.0), bits(-1.0)) == 0
    assert fp.add(bits(1.0), bits(-1.0), mode=Mode.RM) == 0x80000000
    assert fp.add(bits(-0.0), bits(-0.0)) == 0x80000000
    assert fp.fma(bits(-1.0), bits(0.0), bits(0.0)) == 0


def test_max_and_min_prefer_numbers_and_order_zeros() -> None:
    nan, zero, minus = np.uint32(0xFFC00001), bits(0.0), bits(-0.0)
    assert fp.maximum(zero, minus) == fp.maximum(minus, zero) == zero
    assert fp.minimum(zero, minus) == fp.minimum(minus, zero) == minus
    assert fp.maximum(nan, bits(-5.0)) == bits(-5.0)
    assert fp.minimum(bits(-5.0), nan) == bits(-5.0)
    assert fp.maximum(nan, nan) == 0x7FFFFFFF
    assert fp.maximum(nan, bits(1.0), nan=True) == 0x7FFFFFFF


def test_clamping_by_min_xorsign_abs_keeps_the_sign_even_of_a_nan() -> None:
    assert fp.min_xorsign_abs(bits(-500.0), bits(448.0)) == bits(-448.0)
    assert fp.min_xorsign_abs(bits(-0.0), bits(448.0)) == bits(-0.0)
    assert fp.min_xorsign_abs(np.uint32(0xFFC00000), bits(448.0)) == bits(-448.0)


def test_flushing_keeps_the_sign_and_touches_operands_and_results() -> None:
    tiny = np.uint32(0x807FFFFF)
    assert fp.add(tiny, bits(0.0), ftz=True) == 0
    assert fp.mul(bits(2.0**-126), bits(-0.5), ftz=True) == 0x80000000
    assert fp.mul(bits(2.0**-126), bits(-0.5)) == 0x80400000
    assert fp.fma(bits(2.0**-126), bits(0.5), tiny, ftz=True) == 0x00000000


def test_what_only_the_subnormal_steps_round_up_to_the_smallest_normal_is_flushed(twin: Twin) -> None:
    below, smallest, two = np.uint32(0x3F7FFFFF), np.uint32(0x00800000), bits(2.0)
    last = np.uint32(0x00FFFFFF)  # twice the largest number of 24 bits below 2^-126
    assert fp.mul(below, smallest) == smallest
    assert fp.mul(below, smallest, ftz=True) == 0
    assert fp.mul(fp.negate(below), smallest, mode=Mode.RM, ftz=True) == fp.SIGN
    assert fp.mul(below, smallest, mode=Mode.RP, ftz=True) == 0
    assert fp.div(last, two) == smallest
    assert fp.div(last, two, ftz=True) == 0
    # 2^-126 less 2^-126 * lost: rounded to 24 bits with any exponent, is that 2^-126?
    lost = np.array([0x32000000, 0x33000000, 0x33000001, 0x33800000, 0x33800001], dtype=np.uint32)
    for mode, normal in ((Mode.RN, 2), (Mode.RP, 3), (Mode.RZ, 0)):
        expected = [smallest] * normal + [np.uint32(0)] * (lost.size - normal)
        assert fp.fma(fp.negate(lost), smallest, smallest, mode=mode, ftz=True).tolist() == expected
        found = [twin(f"eq_fma_{mode}_ftz", fp.negate(x), smallest, smallest) for x in lost]
        assert found == expected


def test_ceiling_of_a_small_negative_number_is_minus_zero() -> None:
    assert fp.ceil(bits(-0.5, 1.25, -3.0)).tolist() == bits(-0.0, 2.0, -3.0).tolist()
