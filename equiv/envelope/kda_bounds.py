"""How far the states of two declared computations of `kda` can be apart: linear propagation through the delta rule.

One party's trajectory is known to the bit; d is the other's state minus that one. For a value row d (128 keys) a token
does d -> (I - beta k k^T) diag(decay) d + k w + local: w is what else the correction u may be off by, local the
roundings. The matrix in front is a contraction, |I - beta k k^T| = max(1, |1 - beta |k|^2|), so the Euclidean norm of d
grows by the local terms alone; each element's bound takes its coupling to the row, beta |k_j| |k . d|, from that norm.
Elements by themselves would lose the contraction and grow by up to 1 + beta |k|_1 |k|_inf a token.

Two roundings of numbers that are e apart are at most e and an ulp of the larger apart, and not apart at all where e is
0: so nothing widens that is not declared differently. Bounds are float64; a factor covers their own arithmetic and that
magnitudes are taken of a replay which may differ from the trajectory by last bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp
from equiv.rounding.intervals import UNIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.rounding.intervals import Interval

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]

GUARD: Final = 1 + 2.0**-18
LEAST: Final = 2.0**-149
"""The least float32 above 0."""
CHUNK: Final = 8
"""Items that are bounded at a time: a few arrays of 1 MiB."""


class Near(NamedTuple):
    """Values within `off` of `at`, both float64 of one shape."""

    at: F64
    off: F64

    @classmethod
    def of(cls, interval: Interval, centre: U32) -> Near:
        """An interval about the trajectory's own value, which lies in it."""
        with np.errstate(invalid="ignore"):
            low, high, at = (fp.floats(x).astype(np.float64) for x in (interval.low, interval.high, centre))
            same = interval.low == interval.high
            return cls(at, np.where(same, 0.0, np.maximum(high - at, at - low)))

    @property
    def most(self) -> F64:
        """Largest magnitude."""
        return np.asarray(np.abs(self.at) + self.off)


class Sums(NamedTuple):
    """Relative error bounds of a sum in the trajectory's order and in any allowed one, and whether those differ."""

    own: float
    other: float
    differ: bool

    def apart(self, own_size: F64, other_size: F64, moved: npt.NDArray[np.bool_]) -> F64:
        """How far two results are apart for rounding alone; sizes are sums of magnitudes."""
        wide = self.own * own_size + self.other * other_size
        return wide if self.differ else np.where(moved, wide, 0.0)


class Bound(NamedTuple):
    """Bounds on a state's difference: of each element `[N, 128, 128]`, and of each value row's norm `[N, 128]`."""

    each: F64
    row: F64


class Token(NamedTuple):
    """Operands of one token for N items: `[N, 128]`, beta `[N]`."""

    q: Near
    k: Near
    decay: Near
    v: Near
    beta: Near


class Found(NamedTuple):
    """Bounds after one token: of the state, and of o and u `[N, 128]`; and the trajectory's state again."""

    state: F64
    bound: Bound
    o: F64
    u: F64


def rounding(off: F64, size: F64) -> F64:
    """What rounding both of two numbers `off` apart, of magnitude `size` at most, may add: an ulp, or nothing."""
    return np.where(off > 0, 2 * UNIT * (size + off) + LEAST, 0.0)


def _norm(x: F64) -> F64:
    return np.asarray(np.sqrt(np.einsum("...k,...k->...", x, x)))


def _decayed(state: F64, bound: Bound, decay: Near) -> tuple[F64, Bound]:
    at, off = decay.at[:, None], decay.off[:, None]
    after = (state * at).astype(np.float32).astype(np.float64)
    local = np.abs(state) * off
    each = (at + off) * bound.each + local
    last = rounding(each, np.abs(after))
    each += last
    row = (decay.at + decay.off).max(axis=-1)[:, None] * bound.row + _norm(local + last)
    return after, Bound(each * GUARD, np.minimum(row, _norm(each)) * GUARD)


def step(state: F64, bound: Bound, token: Token, dot: Sums, out: Sums) -> Found:
    """One token.

    Args:
        state: the trajectory's, `[N, 128, 128]`.
        bound: on the other's difference from it.
        token: operands, each about the trajectory's own.
        dot: of the sum over keys for the correction.
        out: of the sum for o.
    """
    q, k, decay, v, beta = token
    state, bound = _decayed(state, bound, decay)
    size = np.abs(state)
    other = size + bound.each
    key, keys = np.abs(k.at), k.most
    coupled = np.minimum(_norm(k.at)[:, None] * bound.row, _times(bound.each, key))
    moved = (bound.row > 0) | (k.off > 0).any(axis=-1, keepdims=True)
    own_size, other_size = _times(size, key), _times(other, keys)
    free = _times(other, k.off) + dot.apart(own_size, other_size, moved) + v.off
    left = np.abs(v.at - np.einsum("nvk,nk->nv", state, k.at)) + 2 * dot.own * own_size
    free = free + rounding(free + coupled, left)
    b, most = beta.at[:, None], beta.most[:, None]
    u = (v.at - np.einsum("nvk,nk->nv", state, k.at)) * b
    rest = most * free + beta.off[:, None] * (left + coupled)
    rest = rest + rounding(rest + b * coupled, most * left)
    u_off = b * coupled + rest
    u_most = most * left + u_off
    after = (state + k.at[:, None, :] * u[:, :, None]).astype(np.float32).astype(np.float64)
    each = bound.each + key[:, None, :] * u_off[:, :, None] + k.off[:, None, :] * u_most[:, :, None]
    last = rounding(each, np.abs(after))
    each = each + last
    contraction = np.maximum(1.0, np.abs(1 - beta.at * _norm(k.at) ** 2))
    row = contraction[:, None] * bound.row + _norm(k.at)[:, None] * rest + _norm(k.off)[:, None] * u_most + _norm(last)
    row = np.minimum(row, _norm(each)) * GUARD
    each = np.minimum(each * GUARD, row[..., None])
    moved = (row > 0) | (q.off > 0).any(axis=-1, keepdims=True)
    size, other = np.abs(after), np.abs(after) + each
    o = np.minimum(_norm(q.at)[:, None] * row, _times(each, np.abs(q.at))) + _times(other, q.off)
    o = o + out.apart(_times(size, np.abs(q.at)), _times(other, q.most), moved)
    return Found(after, Bound(each, row), o * GUARD, u_off * GUARD)


def _times(state: F64, keys: F64) -> F64:
    """Sum over keys, `[N, 128, 128]` by `[N, 128]`."""
    return np.asarray((state @ keys[:, :, None])[..., 0])


def folded(state: F64, tokens: Sequence[Sequence[Near]], *, differ: bool, roundings: float) -> F64:
    """How far two folds of the same n tokens into one state are apart, `[N, 128, 128]`.

    The fold is S prod decay + sum_t u_t k_t prod_(s > t) decay_s, a sum of products each of which is rounded less than
    2 n + 2 times in any of the known ways. Both together round an element less than 4 n + 2 times; where that is to a
    subnormal number it is off by half the least one, times a correction at most.

    Args:
        state: before, `[N, 128, 128]`.
        tokens: of each token decays, keys and corrections `[N, 128]` about the trajectory's.
        differ: whether the parties fold in different ways.
        roundings: relative error bound of a product in the fold.
    """
    size, off = np.abs(state), np.zeros_like(state)
    factor = np.ones((*state.shape[:2], 1))
    for decay, k, u in tokens:
        factor = np.maximum(factor, u.most[:, :, None])
        off = decay.most[:, None] * off + decay.off[:, None] * size
        off += np.abs(k.at)[:, None, :] * u.off[:, :, None] + k.off[:, None, :] * u.most[:, :, None]
        size = decay.most[:, None] * size + k.most[:, None, :] * u.most[:, :, None]
    wide = 2 * roundings * size + (2 * len(tokens) + 1) * LEAST * factor
    return np.asarray((off + (wide if differ else np.where(off > 0, wide, 0.0))) * GUARD)
