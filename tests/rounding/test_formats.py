from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from equiv.errors import UsageError
from equiv.rounding import formats
from equiv.rounding.formats import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    F16,
    F32,
    TF32,
    UE4M3,
    UE8M0,
    UNORDERED,
    NanPolicy,
    ZeroPolicy,
)

OUTSIDE = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_every_code_decodes_to_what_ml_dtypes_says(name: str) -> None:
    fmt = formats.named(name)
    codes = np.arange(1 << fmt.width, dtype=fmt.dtype)
    with np.errstate(invalid="ignore"):
        outside = codes.view(OUTSIDE[name]).astype(np.float64)
    ours = formats.decode(codes, fmt)
    assert np.array_equal(ours, outside, equal_nan=True)
    number = ~np.isnan(ours)
    assert np.array_equal(np.signbit(ours[number]), np.signbit(outside[number]))


def test_float32_decodes_to_its_own_value() -> None:
    bits = np.random.default_rng(1).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(formats.decode(bits, F32), bits.view(np.float32).astype(np.float64), equal_nan=True)


def test_derived_facts_are_those_of_the_standards() -> None:
    largest = {f.name: float(formats.decode(f.largest, f)) for f in formats.FORMATS.values()}
    assert largest == {
        "bf16": 255 * 2.0**120,
        "f16": 65504.0,
        "f32": (2**24 - 1) * 2.0**104,
        "e4m3": 448.0,
        "e5m2": 57344.0,
        "e3m2": 28.0,
        "e2m3": 7.5,
        "e2m1": 6.0,
        "ue8m0": 2.0**127,
        "ue4m3": 448.0,
        "tf32": (2**11 - 1) * 2.0**117,
    }
    assert [f.emin for f in (BF16, F16, F32, E4M3, E5M2, E2M1, UE8M0)] == [-126, -14, -126, -6, -14, 0, -127]
    assert [f.dtype.itemsize for f in (BF16, F16, F32, E4M3, E5M2, E2M1, UE8M0)] == [2, 2, 4, 1, 1, 1, 1]


def test_tf32_codes_are_the_upper_bits_of_a_float32() -> None:
    codes = np.arange(1 << 19, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(formats.decode(codes, TF32), (codes << 13).view(np.float32), equal_nan=True)


def test_a_ue4m3_scale_is_an_e4m3_without_its_sign() -> None:
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(formats.decode(codes, UE4M3), formats.decode(codes & 0x7F, E4M3), equal_nan=True)


def test_largest_float32_distance_does_not_wrap() -> None:
    assert formats.ulp_distance([0x7F7FFFFF], [0xFF7FFFFF], F32, zero=ZeroPolicy.SAME) == [2 * 0x7F7FFFFF]


def test_f16_neighbours_are_one_apart_through_zero() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    finite = codes[formats.is_finite(codes, F16)]
    ascending = finite[np.argsort(formats.ordered(finite, F16))]
    values = formats.decode(ascending, F16)
    assert np.all(np.diff(values) >= 0)
    assert np.all(formats.ulp_distance(ascending[:-1], ascending[1:], F16) == 1)


def test_zeros_and_nans_follow_the_named_policies() -> None:
    assert formats.ulp_distance([0x80], [0x00], E4M3) == [1]
    assert formats.ulp_distance([0x80], [0x00], E4M3, zero=ZeroPolicy.SAME) == [0]
    assert formats.ulp_distance([0x81], [0x01], E4M3, zero=ZeroPolicy.SAME) == [2]
    assert formats.ulp_distance([0x7FC0], [0x7FFF], BF16) == [UNORDERED]
    assert formats.ulp_distance([0x7FC0], [0x7FFF], BF16, nan=NanPolicy.ANY) == [0]
    assert formats.ulp_distance([0x7FFF], [0x7FFF], BF16) == [0]
    assert formats.ulp_distance([0x7F7F], [0x7FFF], BF16, nan=NanPolicy.ANY) == [UNORDERED]


def test_unknown_format_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError,
        match="no number format named 'e3m4'; known: bf16, e2m1, e2m3, e3m2, e4m3, e5m2, f16, f32, tf32, ue4m3, ue8m0",
    ):
        formats.named("e3m4")
