"""The special-function unit: its tables reproduce what an H200 gave, period by period and binade by binade."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numerics_twin import HEADER, Twin, compiled, samples, weighted_sum

from equiv.rounding import mufu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNIT: dict[str, Callable[[mufu.U32], mufu.U32]] = {
    "rcp": mufu.rcp,
    "rsqrt": mufu.rsqrt,
    "sqrt": mufu.sqrt,
    "ex2": mufu.ex2,
    "lg2": mufu.lg2,
    "tanh": mufu.tanh,
}
# Function, first input, inputs, the GPU's checksum over them, percent of results that are correctly rounded.
PERIODS = [
    ("ex2", 0x3F800000, 1 << 23, 0x7514E0E917AB950E, 61.1),
    ("rcp", 0x3F800000, 1 << 23, 0x46F42047E2DDDF03, 86.785),
    ("rsqrt", 0x3F800000, 1 << 24, 0x50624A55CE06D70D, 78.34),
    ("sqrt", 0x3F800000, 1 << 24, 0xCC77EA131D601793, 83.13),
    ("lg2", 0x40000000, 1 << 23, 0x15474766DC258564, 75.2),
    ("lg2", 0x3F800000, 1 << 23, 0x03241E33A86BFA9F, None),
    ("lg2", 0x3F000000, 1 << 23, 0x2A8B6CCAAE2B65BC, None),
]
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ex2": np.exp2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "lg2": np.log2,
}


def twin_name(name: str) -> str:
    return "eq_tanh" if name == "tanh" else f"eq_{name}_ftz"


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return Twin(tmp_path_factory.mktemp("twin"), {twin_name(name): 1 for name in UNIT} | {"eq_square": 1})


def inputs(start: int, count: int, step: int = 1) -> mufu.U32:
    return np.arange(start, start + count, step, dtype=np.uint32)


@pytest.mark.parametrize("period", PERIODS)
def test_a_period_reproduces_the_checksum_of_the_gpu(
    period: tuple[str, int, int, int, float | None], twin: Twin
) -> None:
    name, start, count, checksum, percent = period
    x = inputs(start, count)
    results = twin(twin_name(name), x)
    assert weighted_sum(results) == checksum
    if percent is not None:
        nearest = EXACT[name](x.view(np.float32).astype(np.float64)).astype(np.float32).view(np.uint32)
        assert 100 * np.mean(results == nearest) == pytest.approx(percent, abs=0.06)


@pytest.mark.parametrize(("name", "start", "count"), [row[:3] for row in PERIODS] + [("tanh", 0x3B000000, 12 << 23)])
def test_the_definition_equals_its_c_twin_in_every_row(name: str, start: int, count: int, twin: Twin) -> None:
    x = inputs(start, count, 61 * (count >> 23))
    assert np.array_equal(UNIT[name](x), twin(twin_name(name), x))


@pytest.mark.parametrize("name", UNIT)
def test_the_definition_equals_its_c_twin_on_edges_and_random_inputs(name: str, twin: Twin) -> None:
    x = samples(51, 1 << 16)
    assert np.array_equal(UNIT[name](x), twin(twin_name(name), x))


@pytest.mark.parametrize("name", UNIT)
def test_the_tables_are_small_integers(name: str) -> None:
    table = mufu.rows(name)
    assert table.shape == ({"rcp": 128, "rsqrt": 128, "sqrt": 128, "ex2": 64, "lg2": 64, "tanh": 51}[name], 3)
    assert np.all((table[:, 0] > 0) & (table[:, 0] < 1 << 26))
    assert np.abs(table[:, 1]).max() < 1 << (20 if name == "tanh" else 16)
    assert not table.flags.writeable
    assert sum(path.stat().st_size for path in mufu.TABLES.glob("*.inc")) < 16384


def test_the_squarer_cuts_every_partial_product(twin: Twin) -> None:
    x = np.arange(1 << 17)
    exact = sum(((x >> (18 - bit)) * (x >> bit & 1) for bit in range(17)), start=np.zeros_like(x)) >> 1
    assert np.array_equal(mufu.square(x), exact)
    assert np.array_equal(twin("eq_square", x), exact)
    short = (x * x >> 19) - exact
    assert (short.min(), short.max()) == (0, 8)


def test_exact_results_apart_from_the_polynomial() -> None:
    even = inputs(0x00800000, 0x7F000000, 1 << 24)  # odd exponent fields: even powers of two
    assert np.array_equal(mufu.rsqrt(even).view(np.float32), np.float32(1) / np.sqrt(even.view(np.float32)))
    assert mufu.rsqrt(np.array([0x40000000])) == 0x3F3504F2  # one ulp low
    assert mufu.lg2(np.array([0x3F800000, 0x3F000000, 0x40000000, 0x3E800000])).tolist() == [
        0, 0xBF7FFFFE, 0x3F800000, 0xBFFFFFFF,
    ]  # fmt: skip


def test_where_the_functions_are_monotone(twin: Twin) -> None:
    def falls(name: str, count: int) -> int:
        return int(np.sum(np.diff(twin(twin_name(name), inputs(0x3F800000, count)).astype(np.int64)) < 0))

    def rises(name: str, count: int) -> int:
        return int(np.sum(np.diff(twin(twin_name(name), inputs(0x3F800000, count)).astype(np.int64)) > 0))

    assert (rises("rsqrt", 1 << 24), rises("rcp", 1 << 23), falls("ex2", 1 << 23), falls("sqrt", 1 << 24)) == (
        0,
        0,
        0,
        4,
    )
    assert falls("tanh", 1 << 23) == 14208


def test_sixteen_million_evaluations_take_less_than_a_second(tmp_path: Path) -> None:
    # Over values in a small buffer, so that memory does not count; measured 0.14 s each, the bound is the project's.
    library = compiled(
        tmp_path,
        f'#include "{HEADER}"\n#include <time.h>\n'
        "static uint32_t x[4096], y[4096];\n"
        + "".join(
            f"double time_{name}(void) {{ for (uint32_t i = 0; i < 4096; i++) x[i] = 0x3f000000u + i * 2654435u;"
            " clock_t start = clock();"
            f" for (int k = 0; k < 4096; k++) for (int i = 0; i < 4096; i++) y[i] = {twin_name(name)}(x[i] ^ y[i] % 2);"
            " return (double)(clock() - start) / CLOCKS_PER_SEC; }\n"
            for name in UNIT
        ),
    )
    for name in UNIT:
        function = getattr(library, f"time_{name}")
        function.restype = ctypes.c_double
        assert function() < 1.0, name
