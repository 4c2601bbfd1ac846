"""Intervals of float32 bit patterns, and what a reduction in any of several orders may yield.

An interval holds every value that some declared computation gives; its ends are float32 values, -0 below +0. Operations
that round monotonically map ends to ends. Overflow is monotone too: an end may be infinite, and the interval then holds
the infinity and everything finite on its side (a variance of Inf, a root of 0). A NaN has no place in an order, so an
interval with a NaN at an end admits nothing; a contract must leave such elements undefined, as no bound explains them.
Bounds of sums hold as long as no partial sum overflows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]

UNIT: Final = 2.0**-24
"""Largest relative error of one rounding to float32."""
_GUARD: Final = 1 + 2.0**-30
"""Covers the float64 arithmetic of the bounds themselves: a few hundred operations of relative error 2^-53 each."""
_LEAST: Final = 2.0**-149


@dataclass(frozen=True, slots=True)
class Interval:
    """Closed intervals by their ends, float32 bits of one shape."""

    low: U32
    high: U32

    @classmethod
    def point(cls, bits: npt.ArrayLike) -> Interval:
        """The interval that holds one value."""
        x = np.asarray(bits, dtype=np.uint32)
        return cls(x, x)

    @classmethod
    def around(cls, low: F64, high: F64) -> Interval:
        """What float32 values between two float64 bounds there are, for results that are float32 themselves.

        Rounding is monotone and leaves a float32 value alone, so the rounded bounds enclose it.
        """
        return cls(fp.canonical(fp.bits_of(low)), fp.canonical(fp.bits_of(high)))

    @property
    def nan(self) -> npt.NDArray[np.bool_]:
        """Where an end is NaN."""
        return fp.is_nan(self.low) | fp.is_nan(self.high)

    def rising(self, function: Callable[[Any], Any]) -> Interval:
        """Image under a function that never falls."""
        return Interval(function(self.low), function(self.high))

    def falling(self, function: Callable[[Any], Any]) -> Interval:
        """Image under a function that never rises."""
        return Interval(function(self.high), function(self.low))

    def shrunk(self, share: float) -> Interval:
        """The inner part of width `share` about the middle; 1 is the interval itself, 0 its middle."""
        if share == 1:
            return self
        with np.errstate(all="ignore"):
            low, high = fp.floats(self.low).astype(np.float64), fp.floats(self.high).astype(np.float64)
            middle, half = (low + high) / 2, (high - low) / 2 * share
            inner = Interval.around(middle - half, middle + half)
        same = self.low == self.high
        return Interval(np.where(same, self.low, inner.low), np.where(same, self.high, inner.high))

    def magnitude(self) -> Interval:
        """Absolute values."""
        low, high = self.low & fp.MAGNITUDE, self.high & fp.MAGNITUDE
        straddles = (self.low ^ self.high) & fp.SIGN != 0
        least = np.where(straddles, np.uint32(0), np.minimum(low, high))
        return Interval(np.where(self.nan, fp.NAN, least), np.maximum(low, high))


def hull(intervals: Sequence[Interval]) -> Interval:
    """The smallest interval around all."""
    low, high = intervals[0].low, intervals[0].high
    for other in intervals[1:]:
        low = fp.minimum(low, other.low, nan=True)
        high = fp.maximum(high, other.high, nan=True)
    return Interval(low, high)


def corners(function: Callable[[Any, Any], Any], a: Interval, b: Interval) -> Interval:
    """Image of a function that is monotone in each argument, as multiplication is: the hull of the four corners."""
    return hull([Interval.point(function(x, y)) for x in (a.low, a.high) for y in (b.low, b.high)])


def gamma(roundings: int) -> float:
    """Bound d u / (1 - d u) on the relative error of d successive roundings to float32 (Higham)."""
    return roundings * UNIT / (1 - roundings * UNIT)


def sum_of(terms: U32, roundings: int) -> tuple[Interval, F64]:
    """What the sum along the last axis may be in any order whose terms undergo at most `roundings` additions.

    |computed - exact| <= gamma(d) * sum |x_i| for every order of depth d. A sum of zeros is +0, or -0 if all are -0 and
    no order starts from +0; both are allowed then.

    Args:
        terms: float32 bits `[..., n]`.
        roundings: depth d of the deepest order.

    Returns:
        Interval `[...]`, and the half width `[...]` in float64 with the centre's own error in it.
    """
    with np.errstate(all="ignore"):
        x = fp.floats(terms).astype(np.float64)
        total = x.sum(axis=-1)
        size = np.abs(x).sum(axis=-1)
        half = (gamma(roundings) + terms.shape[-1] * 2.0**-53) * size * _GUARD
        interval = Interval.around(total - half, total + half)
    zero = size == 0
    return Interval(np.where(zero, fp.SIGN, interval.low), np.where(zero, np.uint32(0), interval.high)), half


def squares_about_mean(terms: U32, half: F64, roundings: int) -> Interval:
    """What sum((x_i - m)^2) may be for a computed mean m within `half` of the exact one, differences rounded.

    With m0 the float64 mean, m = m0 + e and |e| <= h: sum (x - m)^2 = V - 2 e R + n e^2, where V = sum (x - m0)^2 and
    R = sum (x - m0) is all but 0. Each difference is rounded once before it is squared, a factor within (1 +- u)^2;
    the summation of non-negative terms adds a factor within 1 +- gamma(d). A square that underflows is off by at most
    2^-150.

    Args:
        terms: float32 bits `[..., n]`.
        half: bound h on the error of the mean, `[...]`.
        roundings: d of the deepest order, a product's own rounding counted.
    """
    n = terms.shape[-1]
    with np.errstate(all="ignore"):
        x = fp.floats(terms).astype(np.float64)
        centre = x.sum(axis=-1) / n
        d = x - centre[..., None]
        v, r = (d * d).sum(axis=-1), np.abs(d.sum(axis=-1))
        h = half + _LEAST
        factor = (1 + UNIT) ** 2 * (1 + gamma(roundings)) * _GUARD
        low = np.maximum(v - 2 * h * r, 0) / factor - n * _LEAST
        high = (v + 2 * h * r + n * h * h) * factor + n * _LEAST
        return Interval.around(np.maximum(low, 0), high)
