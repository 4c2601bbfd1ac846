"""Rows and weights of `kda` aimed at a decision: what is rounded lies exactly between two BF16 values, or just beside.

Random data hardly ever meets a tie. All of it is elementwise IEEE arithmetic in a fixed order, so the bits are the same
on every machine.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.kda import RANK, TAPS
from equiv.inputs import exact_bf16, normal, truncated
from equiv.rounding.formats import BF16, F32, decode

if TYPE_CHECKING:
    from equiv.inputs import Draws, Ints, Reals, Shape
    from equiv.records import Bits


def row_ties(draws: Draws, shape: Shape) -> Bits:
    """Values from 32 on with odd significands under 171: one and a half times that is exactly between two BF16 values.

    So large that SiLU leaves the positive ones alone; one in eight is negative.
    """
    significand = 129 + 2 * draws.below("mantissa", 21, shape) - 128
    exponent = 127 + 5 + draws.below("exponent", 4, shape)
    negative = draws.below("sign", 8, shape) == 0
    bits: Bits = (negative * 0x8000 | exponent << 7 | significand).astype(np.uint16)
    return bits


def tap_ties(draws: Draws, shape: Shape) -> Bits:
    """Weights [n, 4] that make `row_ties` ties: exact, or off it by a lesser tap, or by the sum of three tiny ones.

    The tiny ones are about a quarter of an FP32 ulp each: added to the large product one by one they are lost.
    """
    assert shape[1] == TAPS
    beside = 2.0**-15
    tiny = 2.0**-26
    kinds = np.array([[0, 0, 0], [0, beside, 0], [0, -beside, 0], [0, 0, beside], [tiny] * 3, [-tiny] * 3])
    taps = np.full(shape, 1.5)
    taps[:, :3] = kinds[draws.below("kind", len(kinds), (shape[0],))]
    return truncated(taps, F32)


def f_a_ties(draws: Draws, shape: Shape) -> Bits:
    """BF16 values of [1, 2), exactly 1 in every 16th channel."""
    bits = 0x3F80 + draws.below("mantissa", 128, shape)
    bits[:, ::16] = 0x3F80
    return bits.astype(np.uint16)


def f_b_ties(draws: Draws, shape: Shape) -> Bits:
    """Rows that pick one channel of `f_a_ties` and add half a BF16 ulp, and to most of them something far smaller.

    The terms are in different chunks of 16, or of 32, as chance has it: a matrix unit that cuts off low bits, or adds
    chunks in another order, tips the tie.
    """
    rows, chunks = np.arange(shape[0]), RANK // 16
    values = np.zeros(shape)
    picked = draws.below("picked", RANK - chunks, (shape[0],))
    values[rows, picked // 15 * 16 + picked % 15 + 1] = 1.0
    half = draws.below("half", chunks, (shape[0],))
    values[rows, 16 * half] = np.where(draws.signs("half sign", (shape[0],)) == 0, 2.0**-8, -(2.0**-8))
    least = np.array([0.0, 2.0**-18, -(2.0**-18), 2.0**-22, -(2.0**-22), 2.0**-24, -(2.0**-24), 2.0**-27])
    far = (half + 1 + draws.below("far", chunks - 1, (shape[0],))) % chunks
    values[rows, 16 * far] = least[draws.below("least", len(least), (shape[0],))]
    return truncated(values, BF16)


def silu_ties(draws: Draws, shape: tuple[int, ...]) -> Reals:
    """Numbers from 0.2 to 7.5 whose SiLU is halfway between two BF16 values, to within two FP32 ulps."""
    goal = midpoint(np.float64(0.125) + 7.0 * (draws.below("goal", 1 << 16, shape) * 2.0**-16))
    low, high = np.zeros(shape), np.full(shape, 16.0)
    for _ in range(48):
        middle = (low + high) / 2
        over = middle / (1 + exp(-middle)) > goal
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.asarray(high * (1 + (draws.below("beside", 5, shape) - 2) * 2.0**-24))


@cache
def gate_pairs() -> tuple[Bits, Ints]:
    """(BF16 x, significand m of 128..255) for which m sigmoid(x) is within 4 FP32 ulps of half a BF16 ulp."""
    magnitude = np.arange(0x3C00, 0x4180)
    gates = np.concatenate([magnitude, magnitude | 0x8000]).astype(np.uint16)
    product = sigmoid(decode(gates, BF16))[:, None] * np.arange(128, 256)
    scaled = np.frexp(product)[0] * 256
    near = np.abs(scaled - np.floor(scaled) - 0.5) < 4 * 2.0**-16
    which, significand = np.nonzero(near)
    return gates[which], significand.astype(np.int64) + 128


def paired_gates(draws: Draws, shape: Shape) -> Bits:
    """Output gates by channel: of `gate_pairs`, so open that the sigmoid is within a few ulps of 1, or ordinary.

    Which channel has which is that of `aimed_gates` states and mixed norm weights: 0 and 2 of four, 1, and 3.
    """
    known, _ = gate_pairs()
    kinds = np.arange(shape[1]) % 4
    found = np.where(kinds % 2 == 0, known[draws.below("pair", len(known), shape)], open_gates(draws, shape))
    return np.where(kinds == 3, normal(draws, shape, center=0, spread=1), found).astype(np.uint16)


def open_gates(draws: Draws, shape: Shape) -> Bits:
    """Values from 14 to 18: the sigmoid is 1 less at most a dozen halves of an ulp."""
    return exact_bf16(14 + draws.below("open", 32, shape) / 8.0)


def midpoint(values: Reals) -> Reals:
    """The middle of the two BF16 values around each value."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    return decode(bits, F32)


def exp(x: Reals) -> Reals:
    """Exponential to some 1e-12, by additions and multiplications alone; -700 <= x <= 700 is enforced."""
    small = np.clip(x, -700.0, 700.0) * 2.0**-12
    term = total = np.ones_like(small)
    for power in range(1, 16):
        term = term * small / power
        total = total + term
    for _ in range(12):
        total = total * total
    return total


def sigmoid(x: Reals) -> Reals:
    """1 / (1 + e^-x)."""
    return np.asarray(1 / (1 + exp(-x)))
