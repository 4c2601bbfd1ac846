"""The shared formulas give, on both architectures, the bits of stock's instructions; sums have the order they claim."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import numpy as np
import pytest
import sample_kda_formulas as sample
import torch

import equiv
from equiv.cute.host import dynamic, stream_of
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda_steps as steps
from equiv.rounding import special

ARCHES = ("sm_90a", "sm_100a")
THREADS = sample.THREADS
BOUND, EPS = (fp.bits_of(np.float32(x)) for x in (-5.0, 1e-5))


@cache
def operands() -> tuple[np.ndarray[Any, Any], ...]:
    """X, a, b as bits: normal values, then signed zeros, large, tiny and subnormal ones."""
    draw = np.random.default_rng(5)
    x = draw.standard_normal((3, THREADS)) * 2.0 ** draw.integers(-6, 6, (3, THREADS))
    x[:, :8] = [0.0, -0.0, 88.0, -88.0, -104.0, 1e-30, -1e-40, 1e-20]
    x[1] = np.abs(x[1])
    return tuple(fp.bits_of(row.astype(np.float32)) for row in x)


@cache
def found(arch: str) -> dict[str, np.ndarray[Any, Any]]:
    x = torch.from_numpy(np.stack([fp.floats(row) for row in operands()]))
    y = torch.zeros(THREADS, len(sample.COLUMNS))
    with equiv.device(f"emulated:{arch}").active():
        sample.run_formulas(dynamic(x), dynamic(y), stream_of(x))
    return dict(zip(sample.COLUMNS, y.numpy().view(np.uint32).T, strict=True))


def expected() -> dict[str, Any]:
    x, a, b = operands()
    gate = steps.SIGMOID["div.full"]
    z = fp.mul(steps.exponential(b), fp.add(x, a))
    return {
        "silu": steps.SILU["div.full"](x),
        "sigmoid": gate(x),
        "exp": steps.exponential(x),
        "decay": steps.exponential(fp.mul(BOUND, gate(z))),
        "norm": special.rcp(special.sqrt(fp.add(a, steps.TINY), ftz=True), ftz=True),
        "rms": special.rcp(special.sqrt(fp.fma(a, steps.ONE_128TH, EPS), ftz=True), ftz=True),
        "gated": fp.mul(fp.mul(fp.mul(x, a), b), gate(x)),
        "fma low": fp.fma(x, a, b),
        "fma high": fp.fma(a, b, x),
        "mul low": fp.mul(x, a),
        "mul high": fp.mul(a, b),
        "add low": fp.add(x, a),
        "add high": fp.add(a, b),
    }


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", expected())
def test_a_formula_is_its_sequence_of_rounded_instructions(name: str, arch: str) -> None:
    np.testing.assert_array_equal(found(arch)[name], expected()[name])


def butterfly(lanes: np.ndarray[Any, Any], distances: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Sums over neighbours at xor distances, in the last axis."""
    at = np.arange(lanes.shape[-1])
    return reduce(lambda row, distance: fp.add(row, row[..., at ^ distance]), distances, lanes)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_warp_adds_over_distances_16_8_4_2_1(arch: str) -> None:
    warps = operands()[0].reshape(-1, 32)
    np.testing.assert_array_equal(found(arch)["sum"], butterfly(warps, (16, 8, 4, 2, 1)).ravel())


@pytest.mark.parametrize("arch", ARCHES)
def test_eight_lanes_sum_four_rows_and_lane_l_gets_row_l_halved(arch: str) -> None:
    x, a, b = operands()
    rows = butterfly(np.stack([x, a, b, x]).reshape(4, -1, 8), (4, 2, 1))
    lane = np.arange(8)
    np.testing.assert_array_equal(found(arch)["rows"].reshape(-1, 8), rows[lane // 2, :, lane].T)


@pytest.mark.parametrize("arch", ARCHES)
def test_four_warps_parts_are_added_crosswise(arch: str) -> None:
    w = operands()[0][:32].reshape(8, 4).T
    total = fp.add(fp.add(w[0], w[2]), fp.add(w[1], w[3]))
    np.testing.assert_array_equal(found(arch)["block"], total[np.arange(THREADS) % 8])


@pytest.mark.parametrize("arch", ARCHES)
def test_lanes_hold_the_matrix_product_where_the_docstring_says(arch: str) -> None:
    draw = np.random.default_rng(6)
    a, b = draw.integers(-8, 9, (16, 16)), draw.integers(-8, 9, (8, 16))
    c = draw.integers(-8, 9, (16, 8))
    g, q = np.arange(32) // 4, np.arange(32) % 4

    def words(rows: np.ndarray[Any, Any], picked: list[tuple[Any, Any]]) -> torch.Tensor:
        halves = torch.from_numpy(rows.astype(np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        made = np.stack([halves[row, k] | halves[row, k + 1].astype(np.uint32) << 16 for row, k in picked], axis=1)
        return torch.from_numpy(made.astype(np.uint32).view(np.int32))

    low, high = 2 * q, 8 + 2 * q
    mine = [(g, low), (g, low + 1), (g + 8, low), (g + 8, low + 1)]
    held = torch.from_numpy(np.stack([c[at] for at in mine], axis=1).astype(np.float32))
    x = words(a, [(g, low), (g + 8, low), (g, high), (g + 8, high)])
    y = words(b, [(g, low), (g, high)])
    with equiv.device(f"emulated:{arch}").active():
        sample.run_product(dynamic(x), dynamic(y), dynamic(held), stream_of(x))
    product = c + a @ b.T
    np.testing.assert_array_equal(held.numpy(), np.stack([product[at] for at in mine], axis=1))
