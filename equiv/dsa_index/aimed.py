"""LayerNorm biases aimed at a decision: the first token's y lies where the last bit of a sum tips a code or a scale.

On random data another order of summation changes one code in some hundred thousand. Here y = d * rstd * w + b is
computed to float64 accuracy, and b is chosen so that y meets a boundary within an FP32 ulp; what is left is how
the sums are rounded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from equiv.inputs import exact_f32
from equiv.rounding.formats import BF16, F32, decode

if TYPE_CHECKING:
    from equiv.inputs import Draws, Reals, Target
    from equiv.records import Bits

AIMED = ("aimed_ties", "aimed_scale")
AMAX = 3.5
"""The scale is chosen so that the largest codes stand for about this, as LayerNorm's results are of order 1."""


def normalised(key: Bits, norm_w: Bits, eps: float) -> Reals:
    """LayerNorm of one key row [128] without its bias, in float64 with exact sums."""
    x = decode(key, BF16)
    d = x - math.fsum(x) / len(x)
    variance = math.fsum(d * d) / len(x)
    return np.asarray(d / math.sqrt(variance + eps) * decode(norm_w, F32), dtype=np.float64)


def goals(draws: Draws, shape: tuple[int, int], target: Target, *, name: str, rounds: bool) -> Reals:
    """Where y is to lie, [groups, width].

    Args:
        draws: of the bias.
        shape: groups that share a scale, and channels in one.
        target: the code format.
        name: `aimed_ties`: all channels but one at midpoints between codes; `aimed_scale`: one channel a group at the
            amax from which on the scale doubles.
        rounds: y is rounded to BF16 first, so boundaries are half a BF16 ulp beside.
    """
    groups, width = shape
    scale = 2.0 ** math.floor(math.log2(AMAX / target.top))
    half = 0x8000 if rounds else 0
    rows, place = np.arange(groups), draws.below("place", width, (groups,))
    if name == "aimed_scale":
        goal = draws.bell("value", shape) * (0.7 * scale * target.top / 4)
        edge = exact_f32(np.full(groups, target.top * scale)) + np.uint32(half)
        goal[rows, place] = decode(edge, F32)
        return goal
    mids = target.midpoints * scale
    dealt = draws.order("deal", 4 * len(mids))[np.arange(groups * width) % (4 * len(mids))].reshape(shape)
    way = np.where(dealt // len(mids) % 2 == 0, half, -half)
    bits = (exact_f32(mids[dealt % len(mids)]).astype(np.int64) + way).astype(np.uint32)
    goal = np.where(dealt // (2 * len(mids)) == 0, 1.0, -1.0) * decode(bits, F32)
    goal[rows, place] = 0.875 * scale * target.top
    return goal


def bias(goal: Reals, without: Reals) -> Bits:
    """FP32 bits of the bias that brings y to its goal, to within half an ulp of the bias."""
    return (goal.ravel() - without).astype(np.float32).view(np.uint32)
