"""Differences in few numbers: every element is counted once, where it lies."""

from __future__ import annotations

import numpy as np
import pytest

from equiv.spread import COLUMNS, ROWS, grid, sizes


def test_distances_are_counted_by_their_number_of_bits() -> None:
    assert sizes(np.array([1, 1, 2, 3, 4, 7, 8, 2**40], dtype=np.int64)) == (2, 2, 2, 1, *[0] * 36, 1)
    assert sizes(np.array([2**62, 2**63 - 1], dtype=np.int64)) == (*[0] * 62, 2)
    assert sizes(np.array([], dtype=np.int64)) == ()


def test_a_small_tensor_keeps_every_place() -> None:
    differs = np.zeros((2, 3, 5), dtype=bool)
    differs[1, 0, 4] = differs[0, 2, 0] = True
    found = grid(differs)
    assert (len(found), len(found[0])) == (6, 5)
    assert found[3][4] == found[2][0] == 1
    assert sum(map(sum, found)) == 2


@pytest.mark.parametrize("shape", [(1000,), (100, 1000), (7, 65, 129), (17, 64)])
def test_a_large_one_is_cut_into_parts_that_lose_nothing(shape: tuple[int, ...]) -> None:
    differs = np.random.default_rng(1).integers(0, 2, shape).astype(bool)
    found = grid(differs)
    assert sum(map(sum, found)) == int(differs.sum())
    assert len(found) == min(int(np.prod(shape[:-1])), ROWS)
    assert {len(row) for row in found} == {min(shape[-1], COLUMNS)}
    corner = np.zeros(shape, dtype=bool)
    corner[(-1,) * len(shape)] = True
    assert grid(corner)[-1][-1] == 1
