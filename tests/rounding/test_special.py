"""Special functions as PTX spells them: the C twin, corners, lowering, 16-bit forms, and libdevice's log2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numerics_twin import HEADER, Twin, compiled, near, pointer, samples, weighted_sum

from equiv.rounding import arithmetic as fp
from equiv.rounding import dsa_steps, special

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNARY: dict[str, Callable[..., fp.U32]] = {
    "ex2": special.ex2,
    "rcp": special.rcp,
    "rsqrt": special.rsqrt,
    "sqrt": special.sqrt,
    "lg2": special.lg2,
}
HALVES: dict[str, tuple[Callable[..., special.U16], int]] = {  # with the H200's checksum of all 65,536 results
    "ex2_bf16": (special.ex2_bf16, 0x000030C4981036A3),
    "ex2_f16": (special.ex2_f16, 0x000032F1D198DA7D),
    "tanh_bf16": (special.tanh_bf16, 0x000094E590A97232),
    "tanh_f16": (special.tanh_f16, 0x000091E2DE2B8D78),
}
BINARY: dict[str, Callable[..., fp.U32]] = {"div_full": special.div_full, "div_approx": special.div_approx}


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    arity = {f"eq_{name}{ftz}": 1 + (name in BINARY) for name in (*UNARY, *BINARY) for ftz in ("", "_ftz")}
    arity |= {"eq_tanh": 1, "eq_ex2_bf16_ftz": 1, "eq_ex2_f16": 1, "eq_tanh_bf16": 1, "eq_tanh_f16": 1}
    return Twin(tmp_path_factory.mktemp("twin"), arity)


def bits(*values: float) -> fp.U32:
    return fp.bits_of(values)


@pytest.mark.parametrize("ftz", [True, False])
@pytest.mark.parametrize("name", UNARY)
def test_the_c_twin_approximates_alike(name: str, ftz: bool, twin: Twin) -> None:
    a = samples(41)
    if name == "ex2":
        a = np.concatenate([a, near(42, np.full(1 << 16, 0x41000000, dtype=np.uint32), 8)])
    assert np.array_equal(UNARY[name](a, ftz=ftz), twin(f"eq_{name}" + "_ftz" * ftz, a))


@pytest.mark.parametrize("ftz", [True, False])
@pytest.mark.parametrize("name", BINARY)
def test_the_c_twin_divides_alike(name: str, ftz: bool, twin: Twin) -> None:
    a, b = samples(43), samples(44)
    b = np.concatenate([b[: 1 << 16], near(45, np.full(b.size - (1 << 16), 0x7E800000, dtype=np.uint32), 3)])
    assert np.array_equal(BINARY[name](a, b, ftz=ftz), twin(f"eq_{name}" + "_ftz" * ftz, a, b))


def test_the_c_twin_of_tanh(twin: Twin) -> None:
    a = np.concatenate([samples(45), near(46, np.full(1 << 17, 0x3E000000, dtype=np.uint32), 8)])
    assert np.array_equal(special.tanh(a), twin("eq_tanh", a))


@pytest.mark.parametrize("name", HALVES)
def test_all_16_bit_results_are_the_measured_ones(name: str, twin: Twin) -> None:
    function, checksum = HALVES[name]
    results = function(np.arange(1 << 16, dtype=np.uint16))
    assert results.dtype == np.uint16
    assert weighted_sum(results) == checksum
    twin_name = f"eq_{name}" + "_ftz" * (name == "ex2_bf16")
    assert np.array_equal(results, twin(twin_name, np.arange(1 << 16, dtype=np.uint32)))


def test_16_bit_results_are_truncated_float32_results() -> None:
    x = np.array([0x1454], dtype=np.uint16)  # its power of two lies in the upper half between two float16
    wide = special.ex2(x.view(np.float16).astype(np.float32).view(np.uint32), ftz=True)
    assert wide.tolist() == [0x3F801803]
    assert special.ex2_f16(x).tolist() == [0x3C00]
    limits = np.array([16.0, 15.99, -24.0, -25.0], dtype=np.float16).view(np.uint16)
    assert special.ex2_f16(limits).tolist() == [0x7C00, 0x7BF4, 0x0001, 0]


def test_corner_values_are_the_measured_ones() -> None:
    tiny, largest = np.uint32(0x000116C2), np.uint32(0x7F7FFFFF)
    ftz = {name: partial(function, ftz=True) for name, function in UNARY.items()}
    assert ftz["ex2"](np.concatenate([bits(0.0, -0.0, -128.0), [tiny]])).tolist() == bits(1, 1, 0, 1).tolist()
    assert special.ex2(bits(-128.0), ftz=False) == 0x00200000
    assert ftz["ex2"](bits(np.inf, -np.inf, 128.0, -126.0)).tolist() == bits(np.inf, 0, np.inf, 2.0**-126).tolist()
    assert ftz["rcp"](bits(np.inf, -np.inf, 0.0, -0.0)).tolist() == bits(0, -0.0, np.inf, -np.inf).tolist()
    assert ftz["rcp"](np.array([largest, tiny])).tolist() == [0, 0x7F800000]
    assert ftz["rsqrt"](bits(-0.0, 0.0, -1.0, np.inf)).tolist() == [0xFF800000, 0x7F800000, 0x7FFFFFFF, 0]
    assert ftz["sqrt"](bits(-0.0, -1.0, np.inf, 4.0)).tolist() == [0x80000000, 0x7FFFFFFF, 0x7F800000, 0x40000000]
    assert ftz["lg2"](bits(0.0, -0.0, np.inf, -1.0)).tolist() == [0xFF800000, 0xFF800000, 0x7F800000, 0x7FFFFFFF]
    assert ftz["lg2"](np.array([tiny, tiny | 0x80000000])).tolist() == [0xFF800000] * 2
    assert special.tanh(bits(0.0, -0.0, 8.0, -np.inf)).tolist() == bits(0, -0.0, 1, -1).tolist()
    assert special.tanh(np.array([tiny, 0x7FC00001])).tolist() == [tiny, 0x7FFFFFFF]
    for function in ftz.values():
        assert function(np.array([0x7F800001, 0xFFC00000])).tolist() == [0x7FFFFFFF] * 2


def test_powers_of_two_are_exact_everywhere_that_production_relies_on_it() -> None:
    exponents = np.arange(-126, 128)
    powers = bits(*(2.0**exponents))
    assert np.array_equal(special.ex2(bits(*exponents.astype(float)), ftz=True), powers)
    assert np.array_equal(special.rcp(powers[:-1], ftz=True), bits(*(2.0 ** -exponents[:-1])))
    assert np.array_equal(special.log2_libdevice(powers), bits(*exponents.astype(float)))
    bf16 = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)
    finite = bf16[bf16 < np.uint32(0x7F800000)]
    for exponent in (-42, -22, 0, 5, 120):
        exact = fp.bits_of(finite.view(np.float32).astype(np.float64) / 2.0**exponent)
        assert np.array_equal(special.div_full(finite, bits(2.0**exponent), ftz=False), exact)


def test_ex2_depends_on_23_fraction_bits_and_complements_negative_numbers() -> None:
    x = bits(-0.3, 0.3, -5.7, 5.7)
    t = np.floor(np.abs(x.view(np.float32).astype(np.float64)) * 2**23).astype(np.int64)
    v = np.where(x >> 31 == 1, -(t + 1), t)
    one_to_two = special.ex2((v & 0x7FFFFF).astype(np.uint32) + np.uint32(0x3F800000), ftz=True)
    expected = one_to_two.astype(np.int64) + ((v >> 23) - 1) * (1 << 23)
    assert np.array_equal(special.ex2(x, ftz=True), expected)


def test_without_ftz_small_results_are_squares_of_halves() -> None:
    x = bits(-126.5, -140.25, -149.0)
    y = special.ex2(bits(-63.25, -70.125, -74.5), ftz=True)
    assert np.array_equal(special.ex2(x, ftz=False), fp.mul(y, y))
    assert special.rcp(np.uint32(0x7F7FFFFF), ftz=False) == 0x00200000
    assert special.rsqrt(np.uint32(1), ftz=False) == special.rsqrt(bits(2.0**-149 * 2.0**24), ftz=True) + (12 << 23)


def halved_by_log2(exponent: int, mantissas: np.ndarray) -> int:
    """How many float32 of one binade get half of the true power of two from `exp2(ceil(log2))`."""
    s = (np.uint32((exponent + 127) << 23) + mantissas).astype(np.uint32)
    by_log2, by_bits = dsa_steps.pow2_log2(s), dsa_steps.pow2_add_mask(s)
    differ = by_log2 != by_bits
    assert np.array_equal(by_log2[differ] + np.uint32(1 << 23), by_bits[differ])
    return int(np.sum(differ))


def per_binade(exponent: int) -> int:
    """What spec dsa 3, fact 2 says of a binade."""
    size = exponent if exponent >= 0 else -exponent - 1
    return {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 5, 6: 11, 7: 22}[size.bit_length()] if exponent not in {-4, 3} else 0


def test_log2_halves_3676_scales_just_above_powers_of_two() -> None:
    found = {k: halved_by_log2(k, np.arange(64)) for k in range(-126, 128)}
    assert found == {k: per_binade(k) for k in found}
    assert sum(found.values()) == 3676


COUNT_HALVED = """
#include "%s"
/* pow2 by log2 of a positive normal number, step by step as special.log2_libdevice, cvt.rpi.ftz, ex2.approx.ftz. */
static uint32_t by_log2(uint32_t x) {
    static const uint32_t c[9] = {0xBE2C7F30, 0x3E2FCF2A, 0xBE374E43, 0x3E520BF4, 0xBE763C8B,
                                  0x3E93BF99, 0xBEB8AA49, 0x3EF6384A, 0xBF38AA3B};
    uint32_t e = (x - 1060439283u) & 0xff800000u, p = 0x3DC6B27F;
    uint32_t d = eq_add_rn(x - e, 0xBF800000u);
    for (int i = 0; i < 9; i++) p = eq_fma_rn_ftz(p, d, c[i]);
    uint32_t base = eq_fma_rn_ftz(eq_bits((float)(int32_t)e), 0x34000000u, 0);
    uint32_t y = eq_add_rn(base, eq_fma_rn_ftz(d, 0x3FB8AA3Bu, eq_mul_rn(d, eq_mul_rn(d, p))));
    return eq_ex2_ftz(eq_rpi_ftz(y));
}
void powers(const uint32_t *x, uint32_t *out, uint32_t n) { for (uint32_t i = 0; i < n; i++) out[i] = by_log2(x[i]); }
uint32_t halved(uint32_t start, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) count += by_log2(start + i) != ((start + i + 0x7fffffu) & 0x7f800000u);
    return count;
}
"""


@pytest.mark.slow
def test_log2_halves_no_other_normal_number(tmp_path: Path) -> None:
    library = compiled(tmp_path, COUNT_HALVED % HEADER)
    x = samples(46)
    x = x[(x >= np.uint32(0x00800000)) & (x < np.uint32(0x7F800000))]
    out = np.empty_like(x)
    library.powers(pointer(x), pointer(out), x.size)
    assert np.array_equal(out, dsa_steps.pow2_log2(x))
    assert sum(library.halved((k + 127) << 23, 1 << 23) for k in range(-126, 128)) == 3676


def test_log2_of_zero_infinity_and_negative_numbers() -> None:
    assert special.log2_libdevice(bits(0.0, -0.0, np.inf)).tolist() == bits(-np.inf, -np.inf, np.inf).tolist()
    assert special.log2_libdevice(bits(-1.0, np.nan)).tolist() == [0x7FFFFFFF] * 2
    assert special.log2_libdevice(np.array([1, 0x400000])).tolist() == bits(-149, -127).tolist()
