"""LayerNorm biases aimed at a decision: a token's y lies where the last bit of a sum tips a code or a scale.

On random data another order of summation changes one code in some hundred thousand. Here y = d * rstd * w + b is
computed to float64 accuracy, and b is chosen so that y meets a boundary within an FP32 ulp; what is left is how
the sums are rounded. `tokens` deals the channels to up to 16 tokens; the other aims are at the first one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from equiv.geometry.dsa import DIM
from equiv.inputs import exact_f32
from equiv.rounding.formats import BF16, F32, decode

if TYPE_CHECKING:
    from equiv.inputs import Draws, Reals, Target
    from equiv.records import Bits

AIMED = ("aimed_ties", "aimed_scale")
TOKENS = "aimed_tokens"
MOST = 16
"""Tokens among which the channels are dealt."""
ROUNDS = 12
"""Times that biases are aimed anew because a scale has moved; what still moves then is aimed in vain."""
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


def tokens(keys: Bits, norm_w: Bits, eps: float, target: Target, width: int, *, rounds: bool) -> Bits:
    """FP32 bits of biases [128] that bring channels of several tokens to the midpoint nearest to what they are without.

    Args:
        keys: of the tokens, [T, 128] BF16 bits; the first 16 are aimed at. None: the biases are zero.
        norm_w: FP32 bits [128].
        eps: added to the variances.
        target: the code format.
        width: channels that share a scale.
        rounds: y is rounded to BF16 first, so boundaries are half a BF16 ulp beside.
    """
    if not len(keys):
        return np.zeros(DIM, dtype=np.uint32)
    plain = np.stack([normalised(key, norm_w, eps) for key in keys[:MOST]])
    channels = np.arange(plain.shape[1])
    owner = _owners(np.abs(plain))
    own = plain[owner, channels]
    half = 0x8000 if rounds else 0
    bits = np.zeros(len(channels), dtype=np.uint32)
    for _ in range(ROUNDS):
        y = plain + decode(bits, F32)
        amax = np.abs(y).reshape(len(y), -1, width).max(axis=2).repeat(width, axis=1)[owner, channels]
        scale = 2.0 ** np.ceil(np.log2(np.maximum(amax, 2.0**-100) / target.top))
        mids = target.midpoints
        nearest = np.argmin(np.abs(mids[:, None] - np.abs(own) / scale), axis=0)
        way = np.where(channels // 2 % 2 == 0, half, -half)
        edge = (exact_f32(mids[nearest] * scale).astype(np.int64) + way).astype(np.uint32)
        aimed = bias(np.copysign(decode(edge, F32), own), own)
        if np.array_equal(aimed, bits):
            break
        bits = aimed
    return bits


def _owners(size: Reals) -> npt.NDArray[np.int64]:
    """The token of each channel: in turn each token takes the channel that is largest in it of those that are left."""
    owner = np.full(size.shape[1], -1)
    for turn in range(size.shape[1]):
        token = turn % len(size)
        owner[np.argmax(np.where(owner < 0, size[token], -1))] = token
    return owner
