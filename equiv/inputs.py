"""Case -> bits: a counter-based generator keyed by (seed, tensor, purpose), and value regimes written as bit patterns.

A regime fills `[groups, width]` elements, where a group is what shares one scale (a head, a block of 32, a token).
Everything is integer arithmetic on raw Philox output, or exact float64 arithmetic, so the same case has the same bits
with every numpy version and on every machine. Rows do not depend on how many rows follow. Knows no pair, no torch.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from equiv.rounding.formats import BF16, Format, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from equiv.records import Bits

    Ints = npt.NDArray[np.int64]
    Reals = npt.NDArray[np.float64]

Shape = tuple[int, int]

NAN_BF16 = (0x7FC0, 0x7F81, 0xFFFF, 0xFF81, 0x7FFF)
"""Quiet and signalling NaNs of both signs with different payloads."""


@dataclass(frozen=True, slots=True)
class Draws:
    """An endless supply of random integers for one tensor of one case; every `purpose` is an independent stream.

    Attributes:
        seed: the case's seed, 0 <= seed < 2**64.
        name: what is drawn, `q`; two names never share a stream.
    """

    seed: int
    name: str

    def words(self, purpose: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        """Uniform uint64 of `shape`, in C order from counter 0: a larger shape starts with the same numbers."""
        text = f"{self.seed}/{self.name}/{purpose}".encode()
        key = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), dtype="<u8").astype(np.uint64)
        raw = np.random.Philox(key=key).random_raw(max(1, math.prod(shape)))
        return np.asarray(raw, dtype=np.uint64)[: math.prod(shape)].reshape(shape)

    def below(self, purpose: str, bound: int, shape: tuple[int, ...] = (1,)) -> Ints:
        """Integers 0 <= n < bound (bound <= 2**32, so that the bias of the remainder stays under 2**-32)."""
        return (self.words(purpose, shape) % np.uint64(bound)).astype(np.int64)

    def one(self, purpose: str, low: int, high: int) -> int:
        """One integer low <= n <= high."""
        return low + int(self.below(purpose, high - low + 1)[0])

    def order(self, purpose: str, count: int) -> Ints:
        """A permutation of 0..count-1."""
        return np.argsort(self.words(purpose, (count,)), kind="stable").astype(np.int64)

    def bell(self, purpose: str, shape: tuple[int, ...]) -> Reals:
        """Bell-shaped values in [-4, 4], standard deviation 1.15: the sum of four uniform 32-bit integers, exact."""
        parts = self.words(purpose, (*shape, 2))
        low, high = parts & np.uint64(0xFFFFFFFF), parts >> np.uint64(32)
        total = (low + high).sum(axis=-1, dtype=np.uint64).astype(np.int64)
        return np.asarray(np.ldexp((total - 2 * (2**32 - 1)).astype(np.float64), -31), dtype=np.float64)

    def signs(self, purpose: str, shape: tuple[int, ...]) -> Ints:
        """0 or 1 with equal chance."""
        return self.below(purpose, 2, shape)


@dataclass(frozen=True, slots=True)
class Target:
    """The quantisation a regime aims at.

    Attributes:
        format: the code format; its largest finite value is what a scale maps amax to.
        low, high: scale exponents k for which `top * 2**k` is an ordinary amax: normal, over the floor, finite.
        floors: amax values around which the scale stops following the data.
    """

    format: Format
    low: int
    high: int
    floors: tuple[float, ...]

    @property
    def top(self) -> float:
        """Largest finite value: 448 for E4M3, 6 for E2M1."""
        return float(self.magnitudes[-1])

    @property
    def magnitudes(self) -> Reals:
        """All values >= 0 of the format, ascending."""
        return _magnitudes(self.format)

    @property
    def midpoints(self) -> Reals:
        """What lies exactly between two neighbouring values, the subnormal range included: 126 for E4M3, 7 for E2M1."""
        return (self.magnitudes[:-1] + self.magnitudes[1:]) / 2


@cache
def _magnitudes(fmt: Format) -> Reals:
    values = decode(np.arange(1 << fmt.width), fmt)
    return np.unique(values[np.isfinite(values) & ~np.signbit(values)])


def exact_bf16(values: npt.ArrayLike) -> Bits:
    """float64 -> BF16 bits; ValueError naming the first value that BF16 cannot hold exactly."""
    bits = exact_f32(values)
    if np.any(bits & 0xFFFF):
        raise ValueError(f"not a BF16 value: {np.asarray(values).ravel()[np.flatnonzero(bits.ravel() & 0xFFFF)[0]]!r}")
    return (bits >> 16).astype(np.uint16)


def exact_f32(values: npt.ArrayLike) -> Bits:
    """float64 -> FP32 bits; ValueError naming the first value that FP32 cannot hold exactly."""
    wide = np.asarray(values, dtype=np.float64)
    narrow = wide.astype(np.float32)
    changed = np.flatnonzero(narrow.astype(np.float64).view(np.uint64).ravel() != wide.view(np.uint64).ravel())
    if changed.size:
        raise ValueError(f"not an FP32 value: {wide.ravel()[changed[0]]!r}")
    return narrow.view(np.uint32)


def truncated(values: Reals, fmt: Format) -> Bits:
    """float64 -> BF16 or FP32, toward zero (for generating data, where any fixed rounding will do)."""
    nearest = values.astype(np.float32)
    bits = nearest.view(np.uint32) - (np.abs(nearest.astype(np.float64)) > np.abs(values))
    return (bits >> (32 - fmt.width)).astype(fmt.dtype)


def _signed(magnitude: Ints, signs: Ints, fmt: Format = BF16) -> Bits:
    return (magnitude | signs * fmt.sign_mask).astype(fmt.dtype)


def _exact(values: npt.ArrayLike, fmt: Format) -> Ints:
    return (exact_bf16(values) if fmt is BF16 else exact_f32(values)).astype(np.int64)


def normal(draws: Draws, shape: Shape, fmt: Format = BF16, *, center: int = 0, spread: int = 4) -> Bits:
    """Bell-shaped values; each group has its own exponent within `spread` of `center`."""
    exponents = center - spread + draws.below("exponent", 2 * spread + 1, (shape[0], 1))
    return truncated(np.ldexp(draws.bell("value", shape), exponents.astype(np.int32)), fmt)


def wide(draws: Draws, shape: Shape, fmt: Format = BF16, *, low: int = -30, high: int = 30) -> Bits:
    """Every exponent of [low, high] with equal chance, random mantissa and sign."""
    mantissa = fmt.fraction
    exponents = 127 + low + draws.below("exponent", high - low + 1, shape)
    return _signed(
        exponents << mantissa | draws.below("mantissa", 1 << mantissa, shape), draws.signs("sign", shape), fmt
    )


def any_bits(draws: Draws, shape: Shape) -> Bits:
    """Uniform BF16 bit patterns: NaNs with every payload, infinities, subnormals."""
    return (draws.words("bits", shape) >> np.uint64(48)).astype(np.uint16)


def finite_bits(draws: Draws, shape: Shape) -> Bits:
    """Uniform over the finite BF16 bit patterns, near enough: exponent 255 becomes 127."""
    bits = any_bits(draws, shape)
    return np.where(bits & 0x7F80 == 0x7F80, bits & 0xBFFF, bits).astype(np.uint16)


def under_amax(draws: Draws, amax: Bits, width: int, fmt: Format = BF16, reach: int = 10) -> Bits:
    """Groups whose largest magnitude has exactly the bits `amax` [groups], at a random place; the rest lies below it.

    The rest spreads over `reach` binades under amax, so codes from the top to the subnormals appear.
    """
    shape = (len(amax), width)
    span = reach << fmt.fraction
    magnitude = amax.astype(np.int64)[:, None] - 1 - draws.below("below", span, shape)
    place = draws.below("place", width, (len(amax),))
    magnitude[np.arange(len(amax)), place] = amax
    return _signed(np.maximum(magnitude, 0), draws.signs("sign", shape), fmt)


def midpoints(draws: Draws, shape: Shape, target: Target, fmt: Format = BF16) -> Bits:
    """Values whose quotient by the group's scale is exactly between two codes, or one ulp beside.

    All midpoints, with both signs and both neighbours, are dealt in turn. One channel holds an amax in (top/2, top]
    times the scale, which fixes the scale, as no midpoint exceeds top. FP32 has neighbours at an FP32 and a BF16 ulp.
    """
    groups, width = shape
    steps = np.array([0, -1, 1] if fmt is BF16 else [0, -1, 1, -(1 << 16), 1 << 16], dtype=np.int64)
    mids = target.midpoints
    dealt = draws.order("deal", len(mids) * len(steps) * 2)
    chosen = dealt[np.arange(groups * width) % len(dealt)].reshape(shape)
    exponents = np.maximum(target.low, draws.below("scale", 25, (groups, 1)) - 12).astype(np.int32)
    magnitude = _exact(np.ldexp(mids[chosen % len(mids)], exponents), fmt)
    magnitude += steps[chosen // len(mids) % len(steps)]
    top = _exact(np.ldexp(np.full((groups, 1), target.top), exponents), fmt)
    binade = 1 << fmt.fraction
    place = draws.below("place", width, (groups,))
    magnitude[np.arange(groups), place] = (top - draws.below("amax", binade, (groups, 1)))[:, 0]
    return _signed(magnitude, chosen // (len(mids) * len(steps)), fmt)


def amax_edges(
    draws: Draws, shape: Shape, target: Target, fmt: Format = BF16, steps: Sequence[int] = (0, 1, -1)
) -> Bits:
    """Groups whose amax is top * 2**k, or `steps` ulps beside, for k all over [low, high]: where a scale doubles."""
    exponents, step = _deal(draws, shape[0], range(target.low, target.high + 1), steps)
    edge = _exact(np.ldexp(np.full(shape[0], target.top), exponents.astype(np.int32)), fmt) + step
    return under_amax(draws, edge.astype(np.uint32), shape[1], fmt)


def floors(draws: Draws, shape: Shape, target: Target, fmt: Format = BF16) -> Bits:
    """Groups whose amax straddles each of the target's floors: the value below it, the next ones above and beneath."""
    floor, step = _deal(draws, shape[0], range(len(target.floors)), (0, 1, -1, 2, -2))
    at = truncated(np.array(target.floors)[floor], fmt).astype(np.int64) + step
    return under_amax(draws, at.astype(np.uint32), shape[1], fmt)


def _deal(draws: Draws, count: int, first: range, second: Sequence[int]) -> tuple[Ints, Ints]:
    """`count` pairs, going through all of `first` x `second` in a random order before any pair comes again."""
    order = draws.order("pairs", len(first) * len(second))[np.arange(count) % (len(first) * len(second))]
    return first.start + order // len(second), np.array(second, dtype=np.int64)[order % len(second)]


def zero_groups(draws: Draws, shape: Shape, every: int = 3) -> Bits:
    """Each `every`-th group is zero, alternately +0 and -0 throughout; the others are `normal`."""
    bits = normal(draws, shape)
    index = np.arange(shape[0])
    bits[index % every == 0] = 0
    bits[index % (2 * every) == every] = 0x8000
    return bits


def signed_zeros(draws: Draws, shape: Shape) -> Bits:
    """Three quarters of the elements are +0 or -0, the others `normal`."""
    zeros = (draws.signs("zero", shape) << 15).astype(np.uint16)
    return np.where(draws.below("which", 4, shape) > 0, zeros, normal(draws, shape)).astype(np.uint16)


def subnormals(draws: Draws, shape: Shape) -> Bits:
    """BF16 subnormals only (under 2**-126), zero included."""
    return _signed(draws.below("mantissa", 128, shape), draws.signs("sign", shape))


def one_hot(draws: Draws, shape: Shape) -> Bits:
    """One non-zero element a group, at a random place."""
    bits = np.zeros(shape, dtype=np.uint16)
    rows = np.arange(shape[0])
    bits[rows, draws.below("place", shape[1], (shape[0],))] = normal(draws, (shape[0], 1))[:, 0]
    return bits


def constant(draws: Draws, shape: Shape) -> Bits:
    """Every group repeats one value, so that its variance is 0."""
    return np.repeat(normal(draws, (shape[0], 1)), shape[1], axis=1)


def large_mean(draws: Draws, shape: Shape) -> Bits:
    """Groups of four neighbouring BF16 values between 2**4 and 2**16: the mean is a hundred times the deviation."""
    base = (127 + 4 + draws.below("exponent", 13, (shape[0], 1))) << 7
    return _signed(base + draws.below("step", 4, shape), np.broadcast_to(draws.signs("sign", (shape[0], 1)), shape))


def cancelling(draws: Draws, shape: Shape) -> Bits:
    """Each value has its negative in the same group, every fourth one an ulp off: the sum is tiny, its order shows."""
    half = shape[1] // 2
    first = wide(draws, (shape[0], half), low=-8, high=8)
    second = (first ^ 0x8000) + (draws.below("off", 4, first.shape) == 0)
    mixed = np.concatenate([first, second.astype(np.uint16)], axis=1)
    return mixed[:, draws.order("mix", 2 * half)]


def poisoned(draws: Draws, shape: Shape, patterns: Sequence[int], every: int = 3) -> Bits:
    """Each `every`-th group (from the second on) holds one of `patterns` in one channel; all else is `normal`."""
    bits = normal(draws, shape)
    rows = np.arange(1 % shape[0], shape[0], every)
    place = draws.below("place", shape[1], (shape[0],))[rows]
    bits[rows, place] = np.array(patterns, dtype=np.uint16)[rows // every % len(patterns)]
    return bits


def huge(draws: Draws, shape: Shape) -> Bits:
    """Groups of bell-shaped values whose size is dealt: squares of 128 about 2**128, beyond it, and sums beyond it."""
    sizes = np.array([58, 59, 60, 61, 62, 64, 100, 119, 125])
    exponents = sizes[draws.order("deal", len(sizes))[np.arange(shape[0]) % len(sizes)]][:, None]
    return truncated(np.ldexp(draws.bell("value", shape), exponents.astype(np.int32)), BF16)


def significands(draws: Draws, shape: Shape, top: int, binades: int = 4) -> Bits:
    """All 128 significands of the BF16 binade of 2**top and of those below it, dealt in turn, with random signs."""
    chosen = draws.order("deal", binades << 7)[np.arange(math.prod(shape)) % (binades << 7)].reshape(shape)
    return _signed((127 + top - (binades - 1) << 7) + chosen, draws.signs("sign", shape))


def specials(draws: Draws, shape: Shape) -> Bits:
    """Of both signs, dealt in turn: 0, least and largest subnormal, least normal, largest finite, Inf, two NaNs, 1."""
    table = np.array([0, 1, 0x7F, 0x80, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81, 0x3F80], dtype=np.int64)
    chosen = draws.order("deal", 2 * len(table))[np.arange(math.prod(shape)) % (2 * len(table))].reshape(shape)
    return _signed(table[chosen // 2], chosen % 2)


def nan_words(draws: Draws, shape: tuple[int, ...], format_name: str) -> Bits:
    """BF16 or FP32 (`bf16`, `f32`) NaNs with random signs and payloads: what nobody may read and nobody may change."""
    size = math.prod(shape) * (2 if format_name == "f32" else 1)
    halves = draws.words("bits", (-(-size // 4),)).view("<u2")[:size] | np.uint16(0x7FC0)
    return (halves.view("<u4").astype(np.uint32) if format_name == "f32" else halves.astype(np.uint16)).reshape(shape)
