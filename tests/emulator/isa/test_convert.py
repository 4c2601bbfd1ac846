from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import exact_floats as exact
import ml_dtypes
import numpy as np
import pytest
from ptx_run import SPECIALS, Array, each, one

if TYPE_CHECKING:
    from collections.abc import Callable

RNG = np.random.default_rng(2)
FLOATS = np.concatenate(
    [
        SPECIALS,
        RNG.integers(0, 1 << 32, 600, np.uint32),
        RNG.standard_normal(600).astype(np.float32).view(np.uint32),
        (RNG.standard_normal(600) * 300).astype(np.float32).view(np.uint32),
        np.arange(-40, 41, dtype=np.float32).view(np.uint32) + np.uint32(0),
        (np.arange(-40, 41, dtype=np.float32) / 2).view(np.uint32),
        np.array([2**31, -(2**31), 2**32, 2**63, -(2**63), 2**64, 127.5, 128, 255.5, 256, -0.5, -129], np.float32).view(
            np.uint32
        ),
    ]
)
NAN = np.isnan(FLOATS.view(np.float32))
INTS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
RESULT = {8: "%rs20", 16: "%rs20", 32: "%r20", 64: "%rd50"}

ROUNDINGS: dict[str, Callable[[float], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


def _limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _store(value: int, kind: str) -> int:
    """As it stands in a register of at least 16 bits: extended by the sign of the type."""
    return value & (1 << max(int(kind[1:]), 16)) - 1


@pytest.mark.parametrize(("mode", "kind"), list(itertools.product(["rni", "rzi", "rmi", "rpi"], INTS)))
def test_float_to_integer_rounds_and_saturates(mode: str, kind: str) -> None:
    functions: dict[str, Callable[[float], int]] = {
        "rni": round,
        "rzi": math.trunc,
        "rmi": math.floor,
        "rpi": math.ceil,
    }
    rounding = functions[mode]
    low, high = _limits(kind)
    bits = int(kind[1:])
    want = []
    for x in FLOATS.view(np.float32).tolist():
        if math.isnan(x):
            want.append(1 << 63 if bits == 64 else 0)
        elif math.isinf(x):
            want.append(_store(high if x > 0 else low, kind))
        else:
            want.append(_store(max(low, min(high, rounding(x))), kind))
    width = max(bits, 16)
    got = one(f"cvt.{mode}.{kind}.f32", RESULT[bits], FLOATS, bits=width)
    np.testing.assert_array_equal(got, np.array(want, np.uint64).astype(got.dtype))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["u32", "s32", "s16", "u8"])
def test_integer_to_float_rounds_once(mode: str, kind: str) -> None:
    source = np.concatenate(
        [
            RNG.integers(0, 1 << 32, 500, np.uint32),
            np.array([0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x1000001, 0x1000003], np.uint32),
        ]
    )
    bits = int(kind[1:])
    values = [int(v) & (1 << bits) - 1 for v in source]
    values = [v - (1 << bits) if kind[0] == "s" and v >> (bits - 1) else v for v in values]
    want = [exact.round_to(Fraction(v) if v else 0.0, exact.F32, mode) for v in values]
    np.testing.assert_array_equal(one(f"cvt.{mode}.f32.{kind}", "%r20", source), np.array(want, np.uint32))


@pytest.mark.parametrize(("target", "source"), list(itertools.product(INTS, INTS)))
def test_integer_conversion_extends_truncates_and_saturates(target: str, source: str) -> None:
    width = max(int(source[1:]), 16)
    raw = RNG.integers(0, 1 << 63, 300, np.uint64) * np.uint64(2) + np.uint64(1)
    raw[:6] = [0, 127, 128, 255, 32768, 2**63]
    bits = int(source[1:])
    values = [int(v) & (1 << bits) - 1 for v in raw]
    values = [v - (1 << bits) if source[0] == "s" and v >> (bits - 1) else v for v in values]
    given = raw.astype({16: np.uint16, 32: np.uint32, 64: np.uint64}[width])
    out = max(int(target[1:]), 16)
    low, high = _limits(target)
    inside = _limits(source)[0] >= low and _limits(source)[1] <= high  # then there is no `.sat`
    for saturate in (False,) if inside else (False, True):
        wrapped = [max(low, min(high, v)) if saturate else v for v in values]
        wrapped = [v & (1 << int(target[1:])) - 1 for v in wrapped]
        wrapped = [
            v - (1 << int(target[1:])) if target[0] == "s" and v >> (int(target[1:]) - 1) else v for v in wrapped
        ]
        got = one(f"cvt{'.sat' if saturate else ''}.{target}.{source}", RESULT[out], given, bits=out)
        np.testing.assert_array_equal(got, np.array([v & (1 << out) - 1 for v in wrapped], np.uint64).astype(got.dtype))


def test_bf16_conversion_rounds_to_even_and_makes_nan_canonical() -> None:
    want = np.array([exact.round_to(exact.value(int(x), exact.F32), exact.BF16) for x in FLOATS], np.uint16)
    np.testing.assert_array_equal(one("cvt.rn.bf16.f32", "%rs20", FLOATS, bits=16), want)
    two = one("cvt.rn.bf16x2.f32", "%r20", FLOATS, np.roll(FLOATS, 1))
    np.testing.assert_array_equal(two >> 16, want)  # the first source is the high half
    np.testing.assert_array_equal(two & 0xFFFF, np.roll(want, 1))
    np.testing.assert_array_equal(one("cvt.f32.bf16", "%r20", want), want.astype(np.uint32) << 16)
    truncated = np.array([exact.round_to(exact.value(int(x), exact.F32), exact.BF16, "rz") for x in FLOATS], np.uint16)
    finite = np.isfinite(FLOATS.view(np.float32))
    np.testing.assert_array_equal(one("cvt.rz.bf16.f32", "%rs20", FLOATS, bits=16)[finite], truncated[finite])


def test_f16_conversions_equal_exact_rounding() -> None:
    want = np.array([exact.round_to(exact.value(int(x), exact.F32), exact.F16) for x in FLOATS], np.uint16)
    np.testing.assert_array_equal(one("cvt.rn.f16.f32", "%rs20", FLOATS, bits=16), want)
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = np.array([exact.round_to(exact.value(int(x), exact.F16), exact.F32) for x in every[::7]], np.uint32)
    np.testing.assert_array_equal(one("cvt.f32.f16", "%r20", every[::7]), wide)


def _saturated(x: Array, dtype: type, limit: float) -> Array:
    with np.errstate(invalid="ignore"):
        codes = np.clip(x, -limit, limit).astype(dtype).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), codes)


@pytest.mark.parametrize(
    ("kind", "dtype", "limit"), [("e4m3x2", ml_dtypes.float8_e4m3fn, 448.0), ("e5m2x2", ml_dtypes.float8_e5m2, 57344.0)]
)
def test_fp8_conversion_saturates_and_puts_the_first_source_high(kind: str, dtype: type, limit: float) -> None:
    want = _saturated(FLOATS.view(np.float32), dtype, limit)
    got = one(f"cvt.rn.satfinite.{kind}.f32", "%rs20", FLOATS, np.roll(FLOATS, 1), bits=16)
    np.testing.assert_array_equal(got >> 8, want)
    np.testing.assert_array_equal(got & 0xFF, np.roll(want, 1))
    back = one(f"cvt.rn.f16x2.{kind}", "%r20", got)
    low = (got & 0xFF).astype(np.uint8).view(dtype).astype(np.float32)
    halves = (back & 0xFFFF).astype(np.uint16)
    assert (halves[np.isnan(low)] == 0x7FFF).all()
    np.testing.assert_array_equal(halves[~np.isnan(low)], low[~np.isnan(low)].astype(np.float16).view(np.uint16))


def test_e2m1_conversion_packs_two_nibbles_into_a_byte() -> None:
    grid = np.array(
        [
            0,
            0.25,
            0.26,
            0.5,
            0.74,
            0.75,
            1,
            1.25,
            1.26,
            1.5,
            1.75,
            1.74,
            2,
            2.5,
            2.6,
            3,
            3.4,
            3.5,
            4,
            5,
            5.1,
            6,
            100,
            np.inf,
        ],
        np.float32,
    )
    codes = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 7], np.uint8)
    values = np.concatenate([grid, -grid, np.array([np.nan], np.float32)]).view(np.uint32)
    want = np.concatenate([codes, codes | 8, np.array([7], np.uint8)])
    got = each(
        ".reg .b8 %byte; cvt.rn.satfinite.e2m1x2.f32 %byte, %r1, %r2; mov.b32 %r20, {%byte, %byte, %byte, %byte};",
        {"%r1": values, "%r2": np.roll(values, 1)},
        {"%r20": 32},
    )["%r20"]
    np.testing.assert_array_equal(got, (want.astype(np.uint32) << 4 | np.roll(want, 1)) * np.uint32(0x01010101))
    wide = each(
        ".reg .b8 %byte; mov.b32 {%byte, _, _, _}, %r1; cvt.rn.f16x2.e2m1x2 %r20, %byte;", {"%r1": got}, {"%r20": 32}
    )["%r20"]
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float16)
    low = np.roll(want, 1)
    signs = np.where(low & 8, np.uint16(0x8000), np.uint16(0))
    np.testing.assert_array_equal(wide & 0xFFFF, magnitudes[low & 7].view(np.uint16) | signs)


def test_scale_exponents_truncate_or_round_up() -> None:
    values = np.array(
        [
            0,
            1,
            0x400000,
            0x400001,
            0x7FFFFF,
            0x800000,
            0x800001,
            0x3F800000,
            0x3F800001,
            0x7F000000,
            0x7F000001,
            0x7F800000,
            0x7FC00000,
        ],
        np.uint32,
    )
    down = [0, 0, 0, 0, 0, 1, 1, 127, 127, 254, 254, 254, 255]
    up = [0, 0, 0, 1, 1, 1, 2, 127, 128, 254, 254, 254, 255]
    for mode, want in (("rz", down), ("rp", up)):
        got = one(f"cvt.{mode}.satfinite.ue8m0x2.f32", "%rs20", values, values, bits=16)
        np.testing.assert_array_equal(got, np.array(want, np.uint16) * np.uint16(0x101))
    codes = np.array([0, 1, 127, 254, 255], np.uint16)
    wide = one("cvt.rn.bf16x2.ue8m0x2", "%r20", codes)
    np.testing.assert_array_equal(wide, np.array([0x400040, 0x400080, 0x403F80, 0x407F00, 0x407FFF], np.uint32))


def test_rounding_to_integral_floats_keeps_zero_signs() -> None:
    x = FLOATS.view(np.float32)
    for mode, function in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        with np.errstate(invalid="ignore"):
            want = np.where(NAN, np.uint32(0x7FFFFFFF), function(x).view(np.uint32))
        np.testing.assert_array_equal(one(f"cvt.{mode}.f32.f32", "%r20", FLOATS), want)


def test_saturating_copy_clamps_nan_to_zero() -> None:
    x = FLOATS.view(np.float32)
    with np.errstate(invalid="ignore"):
        want = np.where(NAN | (x <= 0), np.float32(0), np.minimum(x, np.float32(1))).view(np.uint32)
    np.testing.assert_array_equal(one("cvt.sat.f32.f32", "%r20", FLOATS), want)


def test_packing_puts_the_first_element_low_and_unpacking_undoes_it() -> None:
    got = each(
        "mov.b64 %rd50, {%r1, %r2}; mov.b64 {%r21, _}, %rd50; mov.b32 {%rs20, %rs21}, %r1; "
        "mov.b32 %r22, {%rs21, %rs20};",
        {"%r1": FLOATS, "%r2": np.roll(FLOATS, 1)},
        {"%rd50": 64, "%r21": 32, "%r22": 32},
    )
    np.testing.assert_array_equal(
        got["%rd50"], FLOATS.astype(np.uint64) | np.roll(FLOATS, 1).astype(np.uint64) << np.uint64(32)
    )
    np.testing.assert_array_equal(got["%r21"], FLOATS)
    np.testing.assert_array_equal(got["%r22"], FLOATS >> 16 | FLOATS << 16)
