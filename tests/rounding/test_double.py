from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING

import exact_floats as exact
import numpy as np
import pytest
from numerics_twin import HEADER, compiled

from equiv.rounding import double
from equiv.rounding.conversions import Mode
from equiv.rounding.formats import BF16, F16, F32, Format

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RNG = np.random.default_rng(5)
FORM = exact.Format(64, 52, -1022, 0x7FF8 << 48)
_MAGNITUDES = (0, 1, (1 << 52) - 1, 1 << 52, 0x3FF << 52, 0x3FF0000000000001, (0x7FF << 52) - 1, 0x7FF << 52)
EDGES = [x | sign for x in (*_MAGNITUDES, (0x7FF << 52) + 1) for sign in (0, 1 << 63)]
EDGES += [0x7FF8 << 48 | 5, 0xFFF8 << 48 | 9, (1 << 64) - 1]
MODES = ["rn", "rz", "rm", "rp"]


def _numbers(count: int) -> list[int]:
    """Anything, numbers near one (so that sums cancel) and subnormal ones."""
    near = (0x3FD << 52) + RNG.integers(0, 5 << 52, count, np.uint64)
    tiny = RNG.integers(0, 3 << 52, count, np.uint64)
    wild = RNG.integers(0, 2**64 - 1, count, np.uint64, endpoint=True)
    sign = RNG.integers(0, 2, count, np.uint64) << np.uint64(63)
    return [int(x) for x in np.concatenate([wild, near | sign, tiny | sign])]


PAIRS = [*itertools.product(EDGES, EDGES), *zip(_numbers(300), _numbers(300)[::-1], strict=True)]
TRIPLES = [(a, b, c) for (a, b), c in zip(PAIRS, [*EDGES * 40, *_numbers(300)], strict=False)]


@pytest.mark.parametrize("mode", MODES)
def test_sums_and_products_equal_exact_rationals_rounded_once(mode: str) -> None:
    kind = Mode(mode)
    for a, b, c in TRIPLES:
        wanted = exact.fma(a, b, c, FORM, mode)
        if wanted != FORM.nan:
            assert double.fma(a, b, c, kind) == wanted, (hex(a), hex(b), hex(c))
    for a, b in PAIRS:
        for function, other in ((double.add, exact.add), (double.mul, exact.mul)):
            wanted = other(a, b, FORM, mode)
            if wanted != FORM.nan:
                assert function(a, b, kind) == wanted, (hex(a), hex(b))


def test_nearest_quotients_and_roots_are_those_of_the_processor() -> None:
    a, b = (np.array(x, np.uint64).view(np.float64) for x in zip(*PAIRS, strict=True))
    with np.errstate(all="ignore"):
        quotients, roots = (a / b).view(np.uint64), np.sqrt(a).view(np.uint64)
    for (x, y), quotient, root in zip(PAIRS, quotients, roots, strict=True):
        if not double.is_nan(int(quotient)):
            assert double.div(x, y) == quotient
        if not double.is_nan(int(root)):
            assert double.sqrt(x) == root


def test_directed_quotients_and_roots_enclose_the_exact_one_tightly() -> None:
    for a, b in PAIRS[-900:]:
        x, y = double.value(a), double.value(b)
        if isinstance(x, float) or isinstance(y, float):
            continue
        low, high = double.value(double.div(a, b, Mode.RM)), double.value(double.div(a, b, Mode.RP))
        assert low <= x / y <= high
        low_code, high_code = double.div(a, b, Mode.RM), double.div(a, b, Mode.RP)
        assert abs(low_code - high_code) <= 1
        if x > 0:
            under, over = double.sqrt(a, Mode.RM), double.sqrt(a, Mode.RP)
            assert double.value(under) ** 2 <= x <= double.value(over) ** 2
            assert over - under <= 1
            assert double.sqrt(a, Mode.RZ) == under


@pytest.mark.parametrize(
    ("operation", "operands", "wanted"),
    [  # as an H200 gives them
        ("add", (0xFFF8000000000000, 0x7FF0000000000001), 0x7FF8000000000001),
        ("mul", (0xFFF8000000000005, 0xFFF8000000000000), 0xFFF8000000000000),
        ("sub", (0xBFF0000000000000, 0xFFF8000000000005), 0xFFF8000000000005),
        ("div", (0xFFF8000000000005, 0x7FF0000000000001), 0xFFF8000000000005),
        ("fma", (0xFFF8000000000000, 0x4340000000000000, 0xFFF0000000000001), 0xFFF8000000000001),
        ("fma", (0xC06FFFFFFFFFFFFF, 0xFFF8000000000000, 0xFFF8000000000005), 0xFFF8000000000000),
        ("minimum", (0xFFF8000000000000, 0x7FF0000000000001), 0x7FF8000000000001),
        ("maximum", (0x7FF0000000000001, 0xBFF0000000000000), 0xBFF0000000000000),
        ("sqrt", (0xBFF0000000000000,), 0xFFF8000000000000),
        ("negate", (0xFFF0000000000005,), 0xFFF8000000000005),
        ("magnitude", (0xFFF8000000000000,), 0xFFF8000000000000),
    ],
)
def test_nans_pass_on_their_payload(operation: str, operands: tuple[int, ...], wanted: int) -> None:
    assert getattr(double, operation)(*operands) == wanted


def test_conversions_keep_the_leading_bits_of_a_payload() -> None:
    assert double.narrow(0xFFF8000000000000, F32) == 0xFFC00000
    assert double.narrow(0xFFF8000000000000, F16) == 0xFE00
    assert double.narrow(0xFFF8000000000000, BF16) == 0xFFC0
    assert double.widen(0x7FC00005, F32) == 0x7FF80000A0000000
    assert double.widen(0x7C01, F16) == 0x7FF8040000000000
    assert double.widen(0x7F81, BF16) == 0x7FF8200000000000
    assert double.narrow(0x47EFFFFFF0000000, F32) == 0x7F800000
    assert double.narrow(0x47EFFFFFF0000000, F32, Mode.RZ) == 0x7F7FFFFF


def test_integers_saturate_and_a_nan_is_the_top_bit() -> None:
    half = 0x4004000000000000  # 2.5
    results = [double.to_integer(half, 32, signed=True, rounding=mode) for mode in ("rni", "rzi", "rmi", "rpi")]
    assert results == [2, 2, 2, 3]
    assert double.to_integer(half | 1 << 63, 32, signed=True, rounding="rmi") == -3
    assert double.to_integer(half | 1 << 63, 32, signed=False, rounding="rmi") == 0
    assert double.to_integer(0x7FF << 52, 8, signed=True, rounding="rzi") == 127
    assert double.to_integer(0x7FF8 << 48, 8, signed=True, rounding="rzi") == -128
    assert double.to_integer(0x7FF8 << 48, 8, signed=False, rounding="rzi") == 128


def _in_mode(function: Callable[..., int], mode: str) -> Callable[..., int]:
    return lambda *operands: function(*operands, Mode(mode))


def _narrowed(fmt: Format, mode: str) -> Callable[..., int]:
    return lambda x: double.narrow(x, fmt, Mode(mode))


_ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "rcp": 1, "sqrt": 1}
TWINS: dict[str, tuple[Callable[..., int], int]] = {
    **{
        f"eq64_{name}_{mode}": (_in_mode(getattr(double, name), mode), count)
        for name, count in _ARITY.items()
        for mode in MODES
    },
    "eq64_min": (double.minimum, 2),
    "eq64_max": (double.maximum, 2),
    "eq64_neg": (double.negate, 1),
    "eq64_abs": (double.magnitude, 1),
    **{f"narrow_{fmt.name}_{mode}": (_narrowed(fmt, mode), 1) for fmt in (F16, BF16, F32) for mode in MODES},
}


def test_the_c_twin_gives_the_same_bits(tmp_path: Path) -> None:
    lines = [f'#include "{HEADER.parent / "double.h"}"', "#include <stddef.h>"]
    for fmt, (fraction, emin, bits) in {"f16": (10, -14, 16), "bf16": (7, -126, 16), "f32": (23, -126, 32)}.items():
        lines += [
            f"static uint64_t narrow_{fmt}_{mode}(uint64_t x) {{"
            f" return eq64_narrow(x, EQ_{mode.upper()}, {fraction}, {emin}, {bits}); }}"
            for mode in MODES
        ]
    for name, (_, count) in TWINS.items():
        call = ", ".join(f"x{i}[n]" for i in range(count))
        given = ", ".join(f"const uint64_t *x{i}" for i in range(3))
        lines.append(
            f"void run_{name}({given}, uint64_t *out, size_t count)"
            f" {{ (void)x1, (void)x2; for (size_t n = 0; n < count; n++) out[n] = {name}({call}); }}"
        )
    library = compiled(tmp_path, "\n".join(lines) + "\n")
    columns = [np.array(column, np.uint64) for column in zip(*TRIPLES, strict=True)]
    out = np.empty(len(TRIPLES), np.uint64)
    for name, (function, count) in TWINS.items():
        places = (ctypes.c_void_p(array.ctypes.data) for array in (*columns, out))
        getattr(library, f"run_{name}")(*places, ctypes.c_size_t(out.size))
        wanted = np.array([function(*row[:count]) for row in TRIPLES], np.uint64)
        np.testing.assert_array_equal(out, wanted, err_msg=name)
