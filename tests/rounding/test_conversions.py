"""`cvt` as numerics section 4 states it: against ml_dtypes where that is right, edge by edge, against the C twin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from numerics_twin import Twin, samples

from equiv.errors import UsageError
from equiv.rounding import conversions, formats
from equiv.rounding.arithmetic import bits_of, is_nan
from equiv.rounding.conversions import CONVERSIONS

if TYPE_CHECKING:
    from pathlib import Path

NARROW = {
    "bf16.f32.rn": "eq_cvt_bf16_rn",
    "f16.f32.rn": "eq_cvt_f16_rn",
    "e4m3.f32.rn.satfinite": "eq_cvt_e4m3_rn_satfinite",
    "e5m2.f32.rn.satfinite": "eq_cvt_e5m2_rn_satfinite",
    "e2m1.f32.rn.satfinite": "eq_cvt_e2m1_rn_satfinite",
    "ue8m0.f32.rz": "eq_cvt_ue8m0_rz",
    "ue8m0.f32.rp": "eq_cvt_ue8m0_rp",
    "ue8m0.f32.rz.satfinite": "eq_cvt_ue8m0_rz_satfinite",
    "ue8m0.f32.rp.satfinite": "eq_cvt_ue8m0_rp_satfinite",
}
WIDEN = {f"f32.{name}": f"eq_{name}_to_f32" for name in ("bf16", "f16", "e4m3", "e5m2", "e2m1", "ue8m0")}
OUTSIDE = {
    "bf16.f32.rn": (ml_dtypes.bfloat16, np.inf),
    "f16.f32.rn": (np.float16, np.inf),
    "e4m3.f32.rn.satfinite": (ml_dtypes.float8_e4m3fn, 448),
    "e5m2.f32.rn.satfinite": (ml_dtypes.float8_e5m2, 57344),
    "e2m1.f32.rn.satfinite": (ml_dtypes.float4_e2m1fn, 6),
}


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    folder: Path = tmp_path_factory.mktemp("twin")
    return Twin(folder, dict.fromkeys((*NARROW.values(), *WIDEN.values()), 1))


def convert(name: str, *values: float) -> list[int]:
    return [int(code) for code in CONVERSIONS[name](bits_of(values))]


@pytest.mark.parametrize("name", OUTSIDE)
def test_numbers_convert_as_ml_dtypes_does_once_clamped(name: str) -> None:
    bits = samples(11)
    bits = bits[~is_nan(bits)]
    kind, limit = OUTSIDE[name]
    with np.errstate(over="ignore"):
        outside = np.clip(bits.view(np.float32), -limit, limit).astype(kind)
    assert np.array_equal(CONVERSIONS[name](bits), outside.view(CONVERSIONS[name].target.dtype))


@pytest.mark.parametrize("name", NARROW)
def test_the_c_twin_gives_the_same_codes(name: str, twin: Twin) -> None:
    bits = samples(12)
    assert np.array_equal(CONVERSIONS[name](bits), twin(NARROW[name], bits))


@pytest.mark.parametrize("name", WIDEN)
def test_the_c_twin_widens_every_code_alike(name: str, twin: Twin) -> None:
    codes = np.arange(1 << CONVERSIONS[name].source.width, dtype=np.uint32)
    assert np.array_equal(CONVERSIONS[name](codes), twin(WIDEN[name], codes))


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_the_c_twin_gives_the_same_codes_for_all_inputs(name: str, twin: Twin) -> None:
    chunk = 1 << 22
    for start in range(0, 1 << 32, chunk):
        bits = np.arange(start, start + chunk, dtype=np.uint64).astype(np.uint32)
        assert np.array_equal(CONVERSIONS[name](bits), twin(NARROW[name], bits)), hex(start)


@pytest.mark.parametrize(("name", "code"), [
    ("bf16.f32.rn", 0x7FFF), ("f16.f32.rn", 0x7FFF), ("e4m3.f32.rn.satfinite", 0x7F), ("e5m2.f32.rn.satfinite", 0x7F),
    ("e2m1.f32.rn.satfinite", 0x7), ("ue8m0.f32.rz", 0xFF), ("ue8m0.f32.rp.satfinite", 0xFF),
])  # fmt: skip
def test_every_nan_becomes_the_one_code_without_its_sign(name: str, code: int) -> None:
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF], dtype=np.uint32)
    assert CONVERSIONS[name](nans).tolist() == [code] * 6


def test_overflow_goes_to_infinity_or_saturates() -> None:
    largest = 3.4028234663852886e38
    assert convert("bf16.f32.rn", largest, -largest, 3.3961775292304957e38) == [0x7F80, 0xFF80, 0x7F80]
    assert convert("f16.f32.rn", 65519.996, 65520, -65520, np.inf) == [0x7BFF, 0x7C00, 0xFC00, 0x7C00]
    assert convert("e4m3.f32.rn.satfinite", 448, 449, 464, 480, np.inf, -np.inf) == [0x7E] * 5 + [0xFE]
    assert convert("e5m2.f32.rn.satfinite", 57344, 61440, 65536, np.inf, -1e30) == [0x7B] * 4 + [0xFB]
    assert convert("e2m1.f32.rn.satfinite", 5, 5.0000005, 6, 7, np.inf, -np.inf) == [6, 7, 7, 7, 7, 15]


def test_e4m3_ties_go_to_the_even_code() -> None:
    ties = [1.0625, 1.1875, 1.9375, 232, 248, 432, 2.0**-10, 3 * 2.0**-10, 5 * 2.0**-10, 15 * 2.0**-10]
    codes = [0x38, 0x3A, 0x40, 0x76, 0x78, 0x7E, 0x00, 0x02, 0x02, 0x08]
    assert convert("e4m3.f32.rn.satfinite", *ties) == codes
    assert convert("e4m3.f32.rn.satfinite", *(-t for t in ties)) == [code | 0x80 for code in codes]


@pytest.mark.parametrize("name", ["bf16.f32.rn", "f16.f32.rn", "e4m3.f32.rn.satfinite", "e5m2.f32.rn.satfinite",
                                  "e2m1.f32.rn.satfinite"])  # fmt: skip
def test_every_midpoint_goes_to_even_and_its_neighbours_to_their_own_side(name: str) -> None:
    target = CONVERSIONS[name].target
    codes = np.arange(target.largest, dtype=np.int64)
    exact = (formats.decode(codes, target) + formats.decode(codes + 1, target)) / 2
    middle = bits_of(exact)
    assert np.array_equal(CONVERSIONS[name](middle), codes + codes % 2)
    assert np.array_equal(CONVERSIONS[name](middle + np.uint32(1)), codes + 1)
    assert np.array_equal(CONVERSIONS[name](middle - np.uint32(1)), codes)


def test_e2m1_intervals_are_those_of_the_table() -> None:
    values = [0.25, 0.2500001, 0.75, 1.25, 1.2500001, 1.75, 2.5, 2.5000002, 3.5, 5.0, -0.1, -0.0]
    assert convert("e2m1.f32.rn.satfinite", *values) == [0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 8, 8]


def test_zero_keeps_its_sign_and_subnormals_are_kept() -> None:
    assert convert("e4m3.f32.rn.satfinite", -0.0, -(2.0**-11), 2.0**-9) == [0x80, 0x80, 0x01]
    assert convert("f16.f32.rn", -(2.0**-24), 2.0**-25, 1.5 * 2.0**-25) == [0x8001, 0, 1]
    assert conversions.named("bf16.f32.rn")(np.array([0x00018000, 0x80008001])).tolist() == [2, 0x8001]


def test_ue8m0_rounds_towards_zero_or_up_with_its_own_end() -> None:
    bits = np.array([0, 1, 0x400000, 0x400001, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0xBF800001, 0x7F000000,
                     0x7F000001, 0x7F7FFFFF, 0x7F800000], dtype=np.uint32)  # fmt: skip
    assert CONVERSIONS["ue8m0.f32.rz"](bits).tolist() == [0, 0, 0, 0, 0, 1, 1, 127, 127, 254, 254, 254, 255]
    assert CONVERSIONS["ue8m0.f32.rp"](bits).tolist() == [0, 0, 0, 1, 1, 1, 2, 127, 128, 254, 255, 255, 255]
    assert CONVERSIONS["ue8m0.f32.rz.satfinite"](bits)[-1] == 254
    assert CONVERSIONS["ue8m0.f32.rp.satfinite"](bits)[-3:].tolist() == [254] * 3


def test_widening_is_exact_and_ue8m0_zero_is_a_subnormal() -> None:
    for name in WIDEN:
        source = CONVERSIONS[name].source
        codes = np.arange(1 << source.width, dtype=source.dtype)
        wide: npt.NDArray[np.uint32] = CONVERSIONS[name](codes).astype(np.uint32)
        assert np.array_equal(formats.decode(wide, formats.F32), formats.decode(codes, source), equal_nan=True)
    assert CONVERSIONS["f32.ue8m0"]([0, 0xFF]).tolist() == [0x400000, 0x7FFFFFFF]
    assert CONVERSIONS["f32.bf16"]([0x7F81, 0xFFFF]).tolist() == [0x7F810000, 0xFFFF0000]


def test_unknown_conversion_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no conversion named 'e4m3\.f32\.rz'; known: bf16\.f32\.rn, e2m1"):
        conversions.named("e4m3.f32.rz")
