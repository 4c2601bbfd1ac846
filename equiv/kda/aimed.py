"""Values of `kda` aimed at a decision: sums exactly between two BF16 values, dot products that cancel.

Random data hardly ever meets a tie, and shows another order of summation in few elements. The regimes here construct
both. For states, one step is computed in float64 (spec/kda.md 1.2 to 1.5) and one element a row is changed so that a
chosen sum meets its goal to within the rounding of that element; what is left is how the sums are rounded. All of it
is elementwise IEEE arithmetic in a fixed order, so the bits are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.kda import DIM, RANK, TAPS
from equiv.inputs import truncated
from equiv.kda.tensors import axis, whole
from equiv.rounding.formats import BF16, F32, decode

if TYPE_CHECKING:
    from equiv.inputs import Draws, Ints, Reals, Shape
    from equiv.records import Bits, Case

AIMED = ("aimed_midpoints", "aimed_dot_zero", "aimed_out_zero")
MOST = 48
"""Heads of all requests together that an aimed state is made for."""


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


@dataclass(frozen=True, slots=True)
class _Step:
    """What a state meets in the first token of the first step, float64: [R, H, 128] each, `beta` [R, H]."""

    query: Reals
    key: Reals
    value: Reals
    decay: Reals
    beta: Reals


def adjust(case: Case, found: dict[str, Bits], real: Ints, source: Ints, name: str) -> None:
    """Changes one element a row of the states that the first token reads.

    Args:
        case: the case.
        found: all inputs; `state` is changed in place, the rest is read.
        real: the requests that have slots.
        source: the slot that each of them reads.
        name: `aimed_midpoints`: the outputs before the norm lie halfway between two BF16 values; `aimed_out_zero`: they
            are 0; `aimed_dot_zero`: the decayed state times the key is 0.
    """
    step = _first_token(case, found, real)
    state = decode(found["state"][source], F32)
    if name == "aimed_dot_zero":
        weight, known, goal = step.decay * step.key, np.zeros(step.value.shape), np.zeros(step.value.shape)
        total = _sum(state * weight[:, :, None, :])
    else:
        # o = sum_k S d (q - (q.k) beta k) + (q.k) beta v is linear in a row of the state.
        mixed = _sum(step.query * step.key) * step.beta
        weight = step.decay * (step.query - mixed[..., None] * step.key)
        known = mixed[..., None] * step.value
        total = _sum(state * weight[:, :, None, :]) + known
        goal = np.zeros(total.shape) if name == "aimed_out_zero" else _midpoint(total)
    at = np.argmax(np.abs(weight), axis=-1)
    largest = np.take_along_axis(weight, at[..., None], axis=-1)
    index = np.broadcast_to(at[:, :, None, None], (*total.shape, 1))
    moved = np.take_along_axis(state, index, axis=-1) + ((goal - total) / largest)[..., None]
    bits = found["state"][source]
    np.put_along_axis(bits, index, moved.astype(np.float32).view(np.uint32), axis=-1)
    found["state"][source] = bits


def _first_token(case: Case, found: dict[str, Bits], real: Ints) -> _Step:
    heads, tokens = whole(case, "heads"), whole(case, "tokens")
    dim = heads * DIM
    row = decode(found["rows"][real * tokens], BF16)
    offset = found["accepted"].view(np.int32)[0, real] - 1
    slot = found["slots"].view(np.int32)[real, 0]
    taps = decode(found["conv_w"], F32)
    total = decode(found["conv_bias"], F32)[None] if "conv_bias" in found else np.zeros((1, 3 * dim))
    for at in range(3):
        total = total + decode(found["conv_state"][slot, :, offset + at], BF16) * taps[:, at]
    total = total + row[:, : 3 * dim] * taps[:, 3]
    query, key, value = np.moveaxis(_bf16(total / (1 + _exp(-total))).reshape(-1, 3, heads, DIM), 1, 0)
    f_a, f_b = row[:, 4 * dim : 4 * dim + RANK], decode(found["f_b"], BF16)
    raw = np.stack([_bf16(_sum(f_b * one)) for one in f_a])
    rate = _exp(decode(found["a_log"], F32))[:, None]
    opened = _sigmoid(rate * (raw + decode(found["dt_bias"], F32)).reshape(-1, heads, DIM))
    return _Step(
        query=query / np.sqrt(_sum(query * query) + 1e-6)[..., None] * DIM**-0.5,
        key=key / np.sqrt(_sum(key * key) + 1e-6)[..., None],
        value=value,
        decay=_exp(float(axis(case, "lower_bound")) * opened),
        beta=_sigmoid(row[:, 4 * dim + RANK :]),
    )


def _midpoint(values: Reals) -> Reals:
    """The middle of the two BF16 values around each value."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    return decode(bits, F32)


def _bf16(values: Reals) -> Reals:
    """Rounded to BF16, by way of FP32."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.int64)
    return decode(bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000, F32)


def _sum(terms: Reals) -> Reals:
    """Sum along the last axis, a power of two, always in the same order."""
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]


def _exp(x: Reals) -> Reals:
    """Exponential to some 1e-12, by additions and multiplications alone; -700 <= x <= 700 is enforced."""
    small = np.clip(x, -700.0, 700.0) * 2.0**-12
    term = total = np.ones_like(small)
    for power in range(1, 16):
        term = term * small / power
        total = total + term
    for _ in range(12):
        total = total * total
    return total


def _sigmoid(x: Reals) -> Reals:
    return np.asarray(1 / (1 + _exp(-x)))
