"""Float64 instructions through the engine, against `equiv.rounding.double` and exact values."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ptx_run import Array, each, one

from equiv.rounding import double
from equiv.rounding.conversions import Mode
from equiv.rounding.formats import BF16, F16, F32

if TYPE_CHECKING:
    from collections.abc import Callable

RNG = np.random.default_rng(6)
_POSITIVE = [0, 1, 1 << 52, 0x3FF << 52, 0x3FF0000000000001, (0x7FF << 52) - 1, 0x7FF << 52, 0x7FF0000000000001]
_POSITIVE += [0x7FF8000000000005, 0x47EFFFFFF0000000, 0x41DFFFFFFFE00000, 0x43E0000000000000]
EDGES = np.array(_POSITIVE, np.uint64)
EDGES = np.concatenate([EDGES, EDGES | np.uint64(1 << 63)])
NEAR = np.uint64(0x3FE << 52) + RNG.integers(0, 3 << 52, 200, np.uint64)
A = np.concatenate([np.repeat(EDGES, len(EDGES)), NEAR])
B = np.concatenate([np.tile(EDGES, len(EDGES)), NEAR[::-1] | np.uint64(1 << 63)])
C = np.roll(B, 7)
MODES = ["rn", "rz", "rm", "rp"]


def _want(function: Callable[..., int], *arrays: Array) -> Array:
    return np.array([function(*map(int, row)) & (1 << 64) - 1 for row in zip(*arrays, strict=True)], np.uint64)


@pytest.mark.parametrize(("name", "mode"), list(itertools.product(["add", "sub", "mul", "div"], MODES)))
def test_two_operands(name: str, mode: str) -> None:
    function = getattr(double, name)
    got = one(f"{name}.{mode}.f64", "%rd50", A, B, bits=64)
    np.testing.assert_array_equal(got, _want(lambda a, b: function(a, b, Mode(mode)), A, B))


@pytest.mark.parametrize("mode", MODES)
def test_fused_multiply_add_reciprocal_and_root(mode: str) -> None:
    fused = _want(lambda a, b, c: double.fma(a, b, c, Mode(mode)), A, B, C)
    np.testing.assert_array_equal(one(f"fma.{mode}.f64", "%rd50", A, B, C, bits=64), fused)
    for name in ("rcp", "sqrt"):
        function = getattr(double, name)
        got = one(f"{name}.{mode}.f64", "%rd50", A, bits=64)
        np.testing.assert_array_equal(got, _want(lambda a, f=function: f(a, Mode(mode)), A))


def test_signs_and_extremes_keep_nan_payloads() -> None:
    for opcode, function in (("neg", double.negate), ("abs", double.magnitude)):
        np.testing.assert_array_equal(one(f"{opcode}.f64", "%rd50", A, bits=64), _want(function, A))
    for opcode, select in (("min", double.minimum), ("max", double.maximum)):
        np.testing.assert_array_equal(one(f"{opcode}.f64", "%rd50", A, B, bits=64), _want(select, A, B))


@pytest.mark.parametrize("mode", MODES)
def test_narrowing_rounds_once(mode: str) -> None:
    for fmt, register in ((F16, "%rs20"), (BF16, "%rs20"), (F32, "%r20")):
        got = one(f"cvt.{mode}.{fmt.name}.f64", register, A, bits=fmt.width)
        np.testing.assert_array_equal(got, _want(lambda a, f=fmt: double.narrow(a, f, Mode(mode)), A).astype(got.dtype))


def test_widening_is_exact() -> None:
    for fmt in (F16, BF16):
        codes = np.arange(0, 1 << 16, 5).astype(np.uint16)
        got = one(f"cvt.f64.{fmt.name}", "%rd50", codes, bits=64)
        np.testing.assert_array_equal(got, _want(lambda a, f=fmt: double.widen(a, f), codes))
    singles = RNG.integers(0, 1 << 32, 500, np.uint32)
    np.testing.assert_array_equal(
        one("cvt.f64.f32", "%rd50", singles, bits=64), _want(lambda a: double.widen(a, F32), singles)
    )


@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
def test_integers_of_doubles_saturate(rounding: str) -> None:
    for kind, register, bits in (("s32", "%r20", 32), ("u32", "%r20", 32), ("s64", "%rd50", 64), ("u64", "%rd50", 64)):
        got = one(f"cvt.{rounding}.{kind}.f64", register, A, bits=bits)
        signed = kind[0] == "s"
        want = _want(lambda a, s=signed, n=bits: double.to_integer(a, n, signed=s, rounding=rounding), A)
        np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("mode", MODES)
def test_doubles_of_integers_round_once(mode: str) -> None:
    values = np.concatenate([EDGES, RNG.integers(0, 2**64 - 1, 200, np.uint64)])
    for kind in ("u64", "s64"):
        number = [int(x) - (1 << 64) * (kind == "s64" and int(x) >> 63) for x in values]
        want = [double.encode(Fraction(x) if x else 0.0, double.F64, Mode(mode)) for x in number]
        got = one(f"cvt.{mode}.f64.{kind}", "%rd50", values, bits=64)
        np.testing.assert_array_equal(got, np.array(want, np.uint64))


def test_comparisons_see_nans() -> None:
    x, y = A.view(np.float64), B.view(np.float64)
    nan = np.isnan(x) | np.isnan(y)
    got = each(
        "setp.lt.f64 %p1|%p2, %rd1, %rd2; setp.geu.f64 %p3, %rd1, %rd2; testp.normal.f64 %p4, %rd1;",
        {"%rd1": A, "%rd2": B},
        {"%p1": 1, "%p2": 1, "%p3": 1, "%p4": 1},
    )
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got["%p1"], (x < y).astype(np.uint8))
        np.testing.assert_array_equal(got["%p2"], (~(x < y)).astype(np.uint8))
        np.testing.assert_array_equal(got["%p3"], ((x >= y) | nan).astype(np.uint8))
    size = A & np.uint64((1 << 63) - 1)
    normal = (size < 0x7FF << 52) & ((size >= 1 << 52) | (size == 0))
    np.testing.assert_array_equal(got["%p4"], normal.astype(np.uint8))
