"""Latents aimed at the norm: an addition of squares that is rounded otherwise shows in normalised columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.dsa_front import aimed
from equiv.inputs import Draws
from equiv.rounding.formats import BF16, decode

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.records import Bits

ROWS, RANK, EPS = 16, 1536, np.float32(1e-6)


def rounded(value: npt.NDArray[np.float64], mode: str) -> npt.NDArray[np.float32]:
    near = value.astype(np.float32)
    if mode == "up":
        return np.where(near < value, np.nextafter(near, np.float32(np.inf)), near)
    if mode == "down":
        return np.where(near > value, np.nextafter(near, np.float32(0)), near)
    return near


def normalised(x: npt.NDArray[np.float64], gamma: Bits, at: tuple[int, int], mode: str) -> Bits:
    """A row's BF16 bits; the addition of each lane's column `at` (of 6 chunks, of 8) is rounded as `mode` says."""
    columns = x.reshape(6, 32, 8)
    chains = np.zeros((32, 4), dtype=np.float32)
    for chunk in range(6):
        for column in range(8):
            total = columns[chunk, :, column] ** 2 + chains[:, column % 4].astype(np.float64)
            chains[:, column % 4] = rounded(total, mode if (chunk, column) == at else "")
    total = (chains[:, 0] + chains[:, 1]) + (chains[:, 2] + chains[:, 3])
    for distance in (16, 8, 4, 2, 1):
        total = total + total[np.arange(32) ^ distance]
    factor = np.float32(1 / np.sqrt(float(total[0] / np.float32(RANK) + EPS)))
    words = (x.astype(np.float32) * factor * decode(gamma, BF16).astype(np.float32)).view(np.uint32)
    return words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)


@pytest.mark.parametrize("mode", ["up", "down"])
def test_most_additions_of_a_rows_chain_decide_some_column(mode: str) -> None:
    gamma = aimed.by_lane(Draws(0, "w_qa"), (1, RANK), 32)[0]
    x = decode(aimed.rows(Draws(0, "latent"), (ROWS, RANK), gamma, float(EPS), aimed.LAYOUTS["aimed_rows"]), BF16)
    places = [(chunk, column) for chunk in range(6) for column in range(8) if (chunk, column) >= (0, 4)]
    killed = sum(
        (normalised(x[row], gamma, at, mode) != normalised(x[row], gamma, at, "")).any()
        for row in range(ROWS)
        for at in places
        if at[1] % 4 == row % 4
    )
    assert killed > 0.4 * ROWS * len(places) / 4  # each is aimed at one way, up or down


def sliced(x: npt.NDArray[np.float64], slices: int, at: str, mode: str) -> npt.NDArray[np.float32]:
    """Sums of squares [rows] as IndexFrontHopper adds them; the addition `at` is rounded as `mode` says."""
    columns = x.reshape(len(x), slices, RANK // slices // 128, 16, 8)

    def add(one: npt.NDArray[Any], other: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
        return rounded(one.astype(np.float64) + other, mode if name == at else "")

    chains = [np.zeros((len(x), slices, 16), dtype=np.float32)] * 4
    for chunk in range(columns.shape[2]):
        for column in range(8):
            square = columns[:, :, chunk, :, column] ** 2
            chains[column % 4] = add(chains[column % 4], square, f"chunk {chunk} column {column}")
    total = add(add(chains[0], chains[1], "0 + 1"), add(chains[2], chains[3], "2 + 3"), "pairs")
    for distance in (8, 4, 2, 1):
        total = add(total, total[..., np.arange(16) ^ distance], f"{distance} apart")
    found: npt.NDArray[np.float32] = total[:, 0, 0]
    for part in range(1, slices):
        found = add(found, total[:, part, 0], f"slice {part}")
    return found


@pytest.mark.parametrize("name", ["aimed_halves", "aimed_quarters"])
def test_every_addition_of_a_tile_of_the_hopper_form_decides_some_column_both_ways(name: str) -> None:
    layout = aimed.LAYOUTS[name]
    gamma = aimed.by_lane(Draws(1, "w_qa"), (1, RANK), layout.lanes)[0]
    x = decode(aimed.rows(Draws(1, "latent"), (ROWS, RANK), gamma, float(EPS), layout), BF16)
    factors, scale = x.astype(np.float32), decode(gamma, BF16).astype(np.float32)

    def columns(at: str, mode: str) -> npt.NDArray[np.uint32]:
        mean = sliced(x, layout.slices, at, mode) / np.float32(RANK) + EPS
        words = (factors * (1 / np.sqrt(mean.astype(np.float64))).astype(np.float32)[:, None] * scale).view(np.uint32)
        return words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)

    chunks = RANK // layout.slices // 128
    places = [f"chunk {chunk} column {column}" for chunk in range(chunks) for column in range(8)][4:]
    places += ["0 + 1", "pairs", *(f"{distance} apart" for distance in (8, 4, 2, 1))]
    places += [f"slice {part}" for part in range(1, layout.slices)]
    right = columns("", "")
    for at in places:
        for mode in ("up", "down"):
            assert (columns(at, mode) != right).any(), (at, mode)


def test_a_bit_of_the_neighbour_in_a_lone_square_decides_some_column() -> None:
    gamma = aimed.by_lane(Draws(1, "w_qa"), (1, RANK), 16)[0]
    bits = aimed.lone_rows(Draws(2, "latent"), (ROWS, RANK), gamma, float(EPS))
    x, scale = decode(bits, BF16), decode(gamma, BF16).astype(np.float32)
    large = np.abs(x).argmax(axis=1)
    assert len({(int(at) // 128, int(at) % 8) for at in large}) == min(ROWS, 48)
    assert (bits[np.arange(ROWS), large - 1] & 1).all()

    def columns(squares: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
        mean = squares / np.float32(RANK) + EPS
        words = x.astype(np.float32) * (1 / np.sqrt(mean.astype(np.float64))).astype(np.float32)[:, None] * scale
        found = words.view(np.uint32)
        return found + np.uint32(0x7FFF) + (found >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)

    exact = (x * x).sum(axis=1)
    biased = np.abs(x[np.arange(ROWS), large]).astype(np.float32).view(np.uint32) | np.uint32(1)
    more = exact + biased.view(np.float32).astype(np.float64) ** 2 - x[np.arange(ROWS), large] ** 2
    differs = (columns(exact.astype(np.float32)) != columns(more.astype(np.float32))).any(axis=1)
    assert differs.mean() > 0.9


def test_ordinary_rows_show_hardly_any() -> None:
    gamma = aimed.by_lane(Draws(0, "w_qa"), (1, RANK), 32)[0]
    x = Draws(0, "latent").bell("value", (ROWS, RANK))
    at = [normalised(row, gamma, (5, 3), "up") != normalised(row, gamma, (5, 3), "") for row in x]
    assert sum(one.any() for one in at) < 4


def test_gamma_and_weights_of_flushed_latents_make_products_of_one_size() -> None:
    pieces = [decode(aimed.flushed(Draws(0, "latent"), (4, RANK), piece), BF16) for piece in range(3)]
    with np.errstate(all="ignore"):
        least = np.minimum(np.minimum(np.abs(pieces[0]), np.abs(pieces[1])), np.abs(pieces[0] * pieces[1]))
    size = np.abs(np.prod(pieces, axis=0))
    assert (least < 2.0**-126).all()
    assert size.max() < 1
    assert np.median(size) > 2.0**-12
