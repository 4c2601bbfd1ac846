"""Each pattern is named for a difference made that way, and not for one that only looks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.patterns import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.records import Bits

DIMS = ("request", "head", "channel")
RANDOM = np.random.Philox(key=np.zeros(2, dtype=np.uint64)).random_raw(4 * 8 * 128).reshape(4, 8, 128)
LEFT: Bits = (RANDOM % np.uint64(0x100) + 0x3F00).astype(np.uint16)
"""BF16 values from 0.5 to 2, positive."""


def said(change: Callable[[Bits], None]) -> str:
    right = LEFT.copy()
    change(right)
    return describe(LEFT, right, right != LEFT, DIMS, "bf16")


def noise(where: Bits) -> None:
    """Changes values irregularly."""
    where ^= (0x2000 + np.arange(where.size).reshape(where.shape) % 7 * 0x11).astype(np.uint16)


def change(at: Any) -> Callable[[Bits], None]:
    def apply(right: Bits) -> None:
        part = right[at]
        noise(part)
        right[at] = part

    return apply


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (np.s_[:, 3, :], "all of head 3"),
        (np.s_[2, 3, :], "all of request 2, head 3"),
        (np.s_[:, :, 1::4], "all of every 4th channel from 1"),
        (np.s_[:, :, 1:100:4], "all of every 4th channel from 1 to 97"),
        (np.s_[:, :, 120:], "all of channels 120..127: the tail"),
        (np.s_[:, 2:4, :], "all of heads 2..3"),
        (np.s_[:, :, [3, 9, 40]], "all of channels 3, 9, 40"),
        (([0, 1, 2, 3], [5, 5, 5, 5], [1, 17, 80, 3]), "all in head 5, channels 1, 3, 17, 80"),
        (np.s_[:], "everywhere"),
        (np.s_[:, :, [3, 9, 40, 41, 70]], ""),
        (np.s_[:, 6, [3, 9, 40, 41, 70]], "all in head 6"),
    ],
)
def test_places_in_words(at: Any, words: str) -> None:
    assert said(change(at)) == words


def test_sign_only() -> None:
    def flip(right: Bits) -> None:
        right[1, :, 5] ^= 0x8000

    assert said(flip) == "all of request 1, channel 5; only the sign differs"


def test_one_ulp_up_and_both_ways() -> None:
    def up(right: Bits) -> None:
        right[:, 1, :] += 1

    def both(right: Bits) -> None:
        right[:, 1, ::2] += 1
        right[:, 1, 1::2] -= 1

    assert said(up) == "all of head 1; each one ulp up"
    assert said(both) == "all of head 1; each one ulp up or down"


def test_one_code_of_a_small_format() -> None:
    left = np.array([[[0x10, 0x20, 0x30]]], dtype=np.uint8)
    right = left - np.uint8(1)
    assert describe(left, right, left != right, DIMS, "e4m3") == "everywhere; each one code down"


def test_one_code_nearer_to_zero_on_both_sides_of_it_is_a_truncation() -> None:
    left = np.array([[[0x10, 0x20, 0xB0]]], dtype=np.uint8)
    for step, way in ((-1, "towards zero"), (1, "away from zero")):
        right = (left.astype(np.int16) + step).astype(np.uint8)
        assert describe(left, right, left != right, DIMS, "e4m3") == f"everywhere; each one code {way}"
    zeros, crossed = np.array([[[0x00, 0x10]]], dtype=np.uint8), np.array([[[0x80, 0x11]]], dtype=np.uint8)
    assert describe(zeros, crossed, zeros != crossed, DIMS, "e4m3") == "everywhere; each one code up or down"


def test_scaled_by_a_power_of_two_and_not_by_three() -> None:
    def double(right: Bits) -> None:
        right[0] += 0x80

    assert said(double) == "all of request 0; each 2 times the expected value"
    left = np.array([[[0x3F80, 0x4000]]], dtype=np.uint16)
    tripled = np.array([[[0x4040, 0x40C0]]], dtype=np.uint16)
    assert describe(left, tripled, left != tripled, DIMS, "bf16") == "everywhere"


def test_one_value_everywhere() -> None:
    def zero(right: Bits) -> None:
        right[:, 7, :] = 0

    assert said(zero) == "all of head 7; got 0x0 everywhere there"


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        (np.roll(LEFT, -1, axis=2), "each holds what belongs to channel +1"),
        (np.roll(LEFT, 1, axis=1), "each holds what belongs to head -1"),
        (LEFT[:, :, np.arange(128) ^ 1], "each holds what belongs to channel xor 1"),
        (LEFT[:, :, np.arange(128) ^ 64], "each holds what belongs to channel xor 64"),
        (LEFT[::-1], "each holds what belongs to the request as far from the other end"),
    ],
)
def test_moved_values(moved: Bits, words: str) -> None:
    def move(right: Bits) -> None:
        right[:] = moved

    assert said(move) == words


def test_two_exchanged_dimensions_of_one_size_are_a_transposition() -> None:
    square = np.arange(2 * 9 * 9, dtype=np.uint16).reshape(2, 9, 9)
    swapped = np.ascontiguousarray(square.swapaxes(1, 2))
    found = describe(square, swapped, square != swapped, ("head", "value", "key"), "bf16")
    assert found.endswith("transposed: value and key are exchanged")
    swapped[1, 0, 5] = 1
    assert "transposed" not in describe(square, swapped, square != swapped, ("head", "value", "key"), "bf16")


def test_a_single_element_gets_no_pattern_of_places() -> None:
    def one(right: Bits) -> None:
        right[0, 0, 0] += 1

    assert said(one) == "each one ulp up"


def test_plain_integers_have_places_only() -> None:
    left = np.zeros((4, 6), dtype=np.uint8)
    right = left.copy()
    right[2] = np.arange(1, 7)
    assert describe(left, right, left != right, ("page", "byte"), "u8") == "all of page 2"
