"""States, and taps, of `kda` aimed at a decision: outputs or their norms at BF16 ties, sums that cancel.

One step is computed in float64 (spec/kda.md 1.2 to 1.5), and in each row of a state as many elements are changed as
sums are to meet a goal: to within the rounding of those elements, so that what is left is how the sums are rounded. All
of it is elementwise IEEE arithmetic in a fixed order, so the bits are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.kda import DIM, RANK, TAPS
from equiv.inputs import Draws
from equiv.kda import aimed
from equiv.kda.aimed import exp, midpoint, sigmoid
from equiv.kda.tensors import axis, whole
from equiv.rounding.formats import BF16, F32, decode

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.inputs import Ints, Reals
    from equiv.records import Bits, Case

AIMED = ("aimed_midpoints", "aimed_dot_zero", "aimed_out_zero", "aimed_gates", "aimed_norms")
"""Outputs before the norm halfway between two BF16 values; the first token's decayed state times its key 0; its outputs
0; outputs of a root mean square of 1, or of 2/3, so that gated or normalised they are halfway, where
`aimed.paired_gates` and mixed norm weights let them."""
MOST = 96
"""Heads of all requests together that an aimed state is made for."""
_TUNED = 8
"""Channels of an output that serve to make its root mean square what it shall be."""
_LEAST = 1e-30
"""Weight under which an element is no use to meet a goal."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What states meet in the first step, float64: [items, T, 128] each, `beta` [items, T]; item = request H + head."""

    query: Reals
    key: Reals
    value: Reals
    decay: Reals
    beta: Reals

    def of(self, items: Ints) -> Tokens:
        """Those of some items."""
        return Tokens(self.query[items], self.key[items], self.value[items], self.decay[items], self.beta[items])

    def output(self, token: int) -> tuple[Reals, Reals]:
        """(weight [items, 128], known [items, 128]): a token's output in row v is sum_k S[v, k] weight[k] + known[v].

        S is the state before the first token; the recurrence is linear in each of its rows.
        """
        weight, known = self.query[:, token], np.zeros_like(self.query[:, token])
        for at in range(token, -1, -1):
            along = self.beta[:, at, None] * total(self.key[:, at] * weight)[:, None]
            known = known + along * self.value[:, at]
            weight = (weight - along * self.key[:, at]) * self.decay[:, at]
        return weight, known


def adjust(case: Case, found: dict[str, Bits], real: Ints, source: Ints, names: npt.NDArray[np.str_]) -> None:
    """Changes as many elements a row of the states that the first step reads as there are goals.

    Args:
        case: the case.
        found: all inputs; `state` is changed in place, the rest is read.
        real: the requests that have slots.
        source: the slot that each of them reads.
        names: [R, H], of `AIMED`, or anything else for heads that stay as they are.
    """
    if not np.isin(names, AIMED).any():
        return
    heads = whole(case, "heads")
    every = first_step(case, found, real)
    for name in AIMED:
        items = np.flatnonzero(names.ravel() == name)
        if not items.size:
            continue
        where = source[items // heads], items % heads
        bits = found["state"][where]
        state, step = decode(bits, F32), every.of(items)
        if name == "aimed_dot_zero":
            weights = [(step.decay * step.key)[:, 0]]
            knowns = [np.zeros_like(step.value[:, 0])]
        else:
            count = 1 if name == "aimed_out_zero" else step.key.shape[1]
            weights, knowns = map(list, zip(*(step.output(token) for token in range(count)), strict=True))
        sums = [total(state * one[:, None, :]) + known for one, known in zip(weights, knowns, strict=True)]
        if name == "aimed_midpoints":
            goals = [midpoint(one) for one in sums]
        elif name in ("aimed_gates", "aimed_norms"):
            goals = list(np.moveaxis(_tied_norms(case, found, real, items, name), 1, 0))
        else:
            goals = [np.zeros_like(one) for one in sums]
        for at, change in _solved(weights, [goal - one for goal, one in zip(goals, sums, strict=True)]):
            index = np.broadcast_to(at[:, None, None], (*state.shape[:2], 1))
            value = np.take_along_axis(state, index, axis=-1) + change[..., None]
            np.put_along_axis(bits, index, value.astype(np.float32).view(np.uint32), axis=-1)
        found["state"][where] = bits


def _solved(weights: list[Reals], wanted: list[Reals]) -> list[tuple[Ints, Reals]]:
    """For each of n sums (column [items], change [items, rows]): all changes together add `wanted` to the sums.

    Gaussian elimination; each sum takes the column in which its weight is largest. A weight of zeros takes no part.
    """
    weights, wanted = [one.copy() for one in weights], list(wanted)
    columns: list[Ints] = []
    pivots: list[Reals] = []
    for first, weight in enumerate(weights):
        column = np.argmax(np.abs(weight), axis=-1)
        pivot = np.take_along_axis(weight, column[:, None], axis=-1)
        usable = np.abs(pivot) > _LEAST
        pivot = np.where(usable, pivot, np.inf)
        columns.append(column)
        pivots.append(pivot)
        for later in range(first + 1, len(weights)):
            share = np.take_along_axis(weights[later], column[:, None], axis=-1) / pivot
            weights[later] = weights[later] - share * weight
            np.put_along_axis(weights[later], column[:, None], 0.0, axis=-1)
            wanted[later] = wanted[later] - share * wanted[first]
    changes: list[Reals] = []
    for first in range(len(weights) - 1, -1, -1):
        rest = wanted[first]
        for column, change in zip(columns[:first:-1], changes, strict=True):
            rest = rest - np.take_along_axis(weights[first], column[:, None], axis=-1) * change
        changes.append(rest / pivots[first])
    return list(zip(columns, reversed(changes), strict=True))


def _tied_norms(case: Case, found: dict[str, Bits], real: Ints, items: Ints, name: str) -> Reals:
    """Outputs [items, T, 128], BF16 values, whose mean square and eps add up to 1 or 4/9, less or more a few ulps.

    `aimed_gates`: the root is 1; a channel whose gate is of `gate_pairs` has the significand that goes with it, and one
    whose norm weight is 3/2 an odd one under 171. `aimed_norms`: the root is 2/3, all such channels have odd ones.
    """
    heads, tokens = whole(case, "heads"), whole(case, "tokens")
    shape = (len(items), tokens, DIM)
    draws = Draws(case.seed, name)
    kinds = np.arange(DIM) % 4
    odd = 129 + 2 * draws.below("odd", 21, shape)
    any_one = 128 + draws.below("any", 128, shape)
    if name == "aimed_gates":
        rows = real[items // heads, None] * tokens + np.arange(tokens)
        columns = 3 * DIM * heads + items[:, None, None] % heads * DIM + np.arange(DIM)
        gates, (known, partner) = found["rows"][rows[..., None], columns], aimed.gate_pairs()
        order = np.argsort(known, kind="stable")
        first = np.searchsorted(known[order], gates)
        first = np.minimum(first, len(known) - 1)
        paired = np.where(known[order][first] == gates, partner[order][first], any_one)
        significand, mean = np.where(kinds == 1, odd, np.where(kinds == 3, any_one, paired)), 1.0
    else:
        significand, mean = np.where(kinds % 2 == 0, odd, any_one), 4.0 / 9.0
    exponent = -7 - draws.below("exponent", 4, shape) - (mean < 1)
    values = np.ldexp(significand.astype(np.float64), exponent.astype(np.int32))
    tuned = np.arange(DIM - 1, 0, -4)[:_TUNED]
    values[..., tuned] = 0.0
    beside = 1 + (draws.below("beside", 13, shape[:2]) - 6) * 2.0**-24
    rest = DIM * (mean * beside - float(axis(case, "eps"))) - total(values * values)
    for channel in tuned:
        values[..., channel] = decode(truncated_root(rest), BF16)
        rest = rest - values[..., channel] * values[..., channel]
    return np.where(draws.signs("sign", shape) == 0, values, -values)


def truncated_root(values: Reals) -> Bits:
    """The largest BF16 value whose square is not larger, 0 for negative values."""
    bits = np.sqrt(np.maximum(values, 0.0)).astype(np.float32).view(np.uint32) >> 16
    over = decode(bits.astype(np.uint16), BF16) ** 2 > np.maximum(values, 0.0)
    return (bits - over).astype(np.uint16)


def adjust_taps(case: Case, found: dict[str, Bits], real: Ints, heads: Ints) -> None:
    """Changes the last tap of some heads' channels: SiLU then sees a number of `aimed.silu_ties`, of one token each.

    Which request and token of the first step a channel is aimed at goes round.
    """
    if not len(real):
        return
    dim, tokens = whole(case, "heads") * DIM, whole(case, "tokens")
    channels = (np.arange(3)[:, None, None] * dim + heads[:, None] * DIM + np.arange(DIM)).ravel()
    turn = np.arange(len(channels))
    request, token = turn % len(real), turn // len(real) % tokens
    given, taps, summed = _windows(case, found, real), decode(found["conv_w"], F32), _start(case, found)[channels]
    for at in range(TAPS - 1):
        summed = summed + given[request, token + at, channels] * taps[channels, at]
    last = given[request, token + TAPS - 1, channels]
    goal = aimed.silu_ties(Draws(case.seed, "silu"), (len(channels),))
    usable = np.abs(last) > 2.0**-6
    wanted = (goal - summed) / np.where(usable, last, 1.0)
    found["conv_w"][channels[usable], TAPS - 1] = wanted.astype(np.float32).view(np.uint32)[usable]


def _windows(case: Case, found: dict[str, Bits], real: Ints) -> Reals:
    """What the taps of the first step slide over, [R, T + 3, 3 D]."""
    tokens, dim = whole(case, "tokens"), whole(case, "heads") * DIM
    rows = decode(found["rows"][real[:, None] * tokens + np.arange(tokens), : 3 * dim], BF16)
    offset = found["accepted"].view(np.int32)[0, real] - 1
    slot = found["slots"].view(np.int32)[real, 0]
    window = decode(found["conv_state"][slot[:, None], :, offset[:, None] + np.arange(TAPS - 1)], BF16)
    return np.concatenate([window, rows], axis=1)


def _start(case: Case, found: dict[str, Bits]) -> Reals:
    """What the taps are added to, [3 D]."""
    return decode(found["conv_bias"], F32) if "conv_bias" in found else np.zeros(3 * DIM * whole(case, "heads"))


def first_step(case: Case, found: dict[str, Bits], real: Ints) -> Tokens:
    """The tokens of the first step of the requests that have slots."""
    heads, tokens = whole(case, "heads"), whole(case, "tokens")
    dim = heads * DIM
    rows = decode(found["rows"][real[:, None] * tokens + np.arange(tokens)], BF16)
    given, taps = _windows(case, found, real), decode(found["conv_w"], F32)
    summed = np.broadcast_to(_start(case, found), (len(real), tokens, 3 * dim))
    for at in range(TAPS):
        summed = summed + given[:, at : at + tokens] * taps[:, at]
    convolved = _bf16(summed / (1 + exp(-summed)))
    f_a, f_b = rows[..., 4 * dim : 4 * dim + RANK], decode(found["f_b"], BF16)
    raw = np.stack([_bf16(total(f_b * one)) for one in f_a.reshape(-1, RANK)]).reshape(len(real), tokens, dim)
    rate = np.repeat(exp(decode(found["a_log"], F32)), DIM)
    opened = sigmoid(rate * (raw + decode(found["dt_bias"], F32)))

    def by_item(values: Reals) -> Reals:
        return np.moveaxis(values.reshape(len(real), tokens, heads, -1), 2, 1).reshape(len(real) * heads, tokens, -1)

    query, key, value = (by_item(convolved[..., part * dim : (part + 1) * dim]) for part in range(3))
    return Tokens(
        query=query / np.sqrt(total(query * query) + 1e-6)[..., None] * DIM**-0.5,
        key=key / np.sqrt(total(key * key) + 1e-6)[..., None],
        value=value,
        decay=by_item(exp(float(axis(case, "lower_bound")) * opened)),
        beta=by_item(sigmoid(rows[..., 4 * dim + RANK :]))[..., 0],
    )


def _bf16(values: Reals) -> Reals:
    """Rounded to BF16, by way of FP32."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.int64)
    return decode(bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000, F32)


def total(terms: Reals) -> Reals:
    """Sum along the last axis, a power of two, always in the same order."""
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]
