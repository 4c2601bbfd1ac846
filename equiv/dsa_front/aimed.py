"""Latents and weights aimed at decisions of the norm, and at those behind the sums of slices.

`rows`: each addition of a row's squares moves its factor by the last bit, and that tips normalised columns. Of a row,
lane 0 of the candidate's (`Layout`) holds a large element in one of its four chains (columns mod 4). What that chain,
the lanes it meets in the butterfly and the other slices add is by turns less and more than half an ulp of the sum, so
that each addition rounded otherwise changes it. The squares of all other elements vanish, so they may take significands
with which x * factor * gamma rounds to BF16 one way for the row's factor and another way for that of a sum an ulp
beside. Gamma brings small and large elements back to one size (`by_lane`).

`lone_rows`: a row's large element is alone, by turns in every place of a lane of the Hopper form, and so are the two
neighbouring sums beside which columns tip: what comes to its square from elsewhere, as a bit of its neighbour does that
shares the word, is seen.

`slices`: sums of slices that lie beside a tie of BF16 at which a scale doubles or a code changes.

`flushed`: products that need the subnormal numbers among their factors and on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from equiv import inputs as make
from equiv.dsa_front import values
from equiv.geometry.front import RANK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.inputs import Draws, Ints, Reals, Shape, Target
    from equiv.records import Bits

CHUNK: Final = 8
CHAINS: Final = 4
SMALL: Final = 20
"""Binades from the large element to the small ones."""
TRIES: Final = 200
"""Sums that are tried for one beside which both neighbours change some rounding."""
ROOTS: Final = np.arange(182, 205)
"""Significands of large elements: of a square of 2 to 2.56, the root moves by nearly an ulp where it does by one."""
FEW: Final = ((130, 165), (195, 220))
"""Significands of elements 12 binades below, whose squares are 0.26 to 0.41, or 0.58 to 0.74, ulps of the large one's:
each alone rounds down, or up, and two of a kind together the other way."""

DRAWN: Final = 10
"""Kinds drawn for a row: what meets its chain, as chains beside it, lanes and slices, is nine at most."""

_COLUMN: Final = np.arange(RANK)
_CHAIN: Final = _COLUMN % CHAINS


@dataclass(frozen=True, slots=True)
class Layout:
    """Who adds up a row's squares: each of some slices of the columns some lanes, eight columns in turn each."""

    lanes: int
    slices: int

    @property
    def lane(self) -> Ints:
        """Of each column."""
        return _COLUMN % (self.lanes * CHUNK) // CHUNK

    @property
    def slice(self) -> Ints:
        """Of each column."""
        return _COLUMN // (RANK // self.slices)

    @property
    def star(self) -> tuple[int, ...]:
        """The lane of the large element, and those it meets in the steps of a butterfly."""
        return (0, *(1 << step for step in range(self.lanes.bit_length() - 1)))


HOPPER_LANES: Final = 16
"""That add up a slice of a row in `IndexFrontHopper`."""
LAYOUTS: Final[Mapping[str, Layout]] = {
    "aimed_rows": Layout(32, 1),
    "aimed_halves": Layout(HOPPER_LANES, 2),
    "aimed_quarters": Layout(HOPPER_LANES, 4),
}
"""Regime of latents -> layout: of `IndexFrontMma`, and of `IndexFrontHopper` with two slices and with four."""


def by_lane(draws: Draws, shape: Shape, lanes: int) -> Bits:
    """Gamma: about 2^-5 in the lanes of a layout's star and 2^15 in all others, the same in both halves of the columns.

    Of 16 lanes those are the same for any number of slices.
    """
    layout = Layout(lanes, 1)
    exponent = 127 + np.where(np.isin(layout.lane, layout.star), -5, SMALL - 5)
    bits = (exponent << 7 | draws.below("mantissa", 128, shape)).astype(np.uint16)
    return values.mirrored(bits, RANK // 2, negative=False)


def flushed(draws: Draws, shape: Shape, piece: int) -> Bits:
    """Latents (`piece` 0), gamma (1) or weights (2) of products of an ordinary size that lose what is flushed.

    With an eps of 1 the factor is about 1. By turns of column pairs the latent is subnormal and gamma about 2^118;
    gamma is, and the weight is about 2^118; latent times gamma is, both about 2^-65, and the weight is about 2^120.
    """
    turn = (_COLUMN // 2 + _COLUMN // CHUNK) % 3
    exponent = np.array([[0, 127, 62], [245, 0, 62], [127, 245, 247]])[piece][turn]
    bits = exponent << 7 | draws.below("mantissa", 127, shape) + 1
    words: Bits = (bits | draws.signs("sign", shape) << 15).astype(np.uint16)
    return words


def slices(target: Target, width: int, shape: Shape) -> Bits:
    """Weights [4096, 1536] for latents of ones, by which each scale's group of channels meets ties in its sums.

    The first quarter of K gives a BF16 number and half an ulp of it, another one 0.3 or 0.6 float32 ulps: rounded down,
    up, and to the nearest this is the tie, which BF16 rounds down, or more. One channel of a group is at the amax above
    which the scale doubles, the next six at a midpoint between codes.
    """
    bits = np.zeros(shape, dtype=np.uint16)
    down = target.midpoints[::2]  # the even code is below
    mid = float(down[np.searchsorted(down, target.top / 2)])
    for group in range(shape[0] // width):
        for channel in range(7):
            kind = (group if channel == 0 else channel) % 6
            size = target.top if channel == 0 else mid
            exponent = int(np.frexp(size)[1]) - 1
            little = np.ldexp((1.25, 2.5)[kind // 3], exponent - 25)
            row = bits[group * width + (channel * 5 + group) % width]
            row[group % 64] = make.exact_bf16([size])[0]
            row[group % 64 + 64] = make.exact_bf16([np.ldexp(1.0, exponent - 8)])[0]
            row[(kind % 3 + 1) * RANK // 4 + group % 256] = make.exact_bf16([little])[0]
    return bits


def rows(draws: Draws, shape: Shape, gamma: Bits, eps: float, layout: Layout) -> Bits:
    """Latents [rows, 1536] for a gamma [1536].

    A row's chain and whether its additions round down or up first are dealt such that neighbouring rows have all
    chains, and runs of four rows, and of 16, both ways; the large element's size is drawn.
    """
    size = 127 - 2 + draws.below("size", 9, (shape[0],))
    turn = int(draws.below("turn", 2, (1,))[0])
    kinds = draws.below("kinds", 2, (shape[0], DRAWN))
    significands = [least + draws.below(f"few{kind}", most - least, shape) for kind, (least, most) in enumerate(FEW)]
    order = draws.order("roots", TRIES)
    small = size[:, None] - SMALL << 7 | draws.below("mantissa", 128, shape)
    bits = small.astype(np.uint16)
    for row in range(shape[0]):
        kind = _kinds(layout, row % CHAINS, row // 4 + row // 16 + turn, kinds[row])
        large = int(np.argmax((layout.lane == 0) & (row % CHAINS == _CHAIN)))
        end = layout.lane == layout.star[-1] if layout.slices == 1 else layout.slice == layout.slices - 1
        last = int(np.flatnonzero(end & (kind >= 0))[0])
        kind[last] = -1
        root, trim, decisive = _sum(int(size[row]) - 127, int((kind == 1).sum()), eps, np.roll(order, row))
        # Of slices, all rows of a tile share an instruction a column, so columns are aimed either way in some of them.
        bits[row] = _aimed(bits[row], decisive, gamma, row // CHAINS if layout.slices > 1 else 0)
        for which, significand in enumerate(significands):
            bits[row] = np.where(kind == which, (size[row] - 12 << 7) + significand[row] - 128, bits[row])
        bits[row, large] = (size[row] << 7) + root - 128
        bits[row, last] = make.exact_bf16([trim])[0]
    return bits | (draws.signs("sign", shape) << 15).astype(np.uint16)


def lone_rows(draws: Draws, shape: Shape, gamma: Bits, eps: float) -> Bits:
    """Latents [rows, 1536] for a gamma [1536] of `by_lane` with 16 lanes.

    The large element is the second of its word; the first one, which like all others is too small to show in the sum,
    is odd. Four rows in turn have it in the four words of a chunk, the next four in the next of a lane's twelve chunks.
    """
    star = Layout(HOPPER_LANES, 1).star
    size = 127 - 2 + draws.below("size", 9, (shape[0],))
    turn = int(draws.below("turn", RANK // (HOPPER_LANES * CHUNK), (1,))[0])
    order = draws.order("roots", TRIES)
    bits = (size[:, None] - SMALL << 7 | draws.below("mantissa", 128, shape)).astype(np.uint16)
    for row in range(shape[0]):
        chunk = (row // 4 + turn) % (RANK // (HOPPER_LANES * CHUNK))
        large = chunk * HOPPER_LANES * CHUNK + star[row % len(star)] * CHUNK + 2 * (row % 4) + 1
        root, trim, decisive = _sum(int(size[row]) - 127, 0, eps, np.roll(order, row))
        bits[row] = _aimed(bits[row], decisive, gamma, row // 4)
        bits[row, large - 1] |= 1
        bits[row, large] = (size[row] << 7) + root - 128
        bits[row, (large + CHUNK * HOPPER_LANES) % RANK] = make.exact_bf16([trim])[0]
    return bits | (draws.signs("sign", shape) << 15).astype(np.uint16)


def _kinds(layout: Layout, chain: int, turn: int, drawn: Ints) -> Ints:
    """Index into `FEW` of each column [1536], or -1.

    Those of the chain behind its first by turns, then one of each chain beside, of each lane, and of each slice behind.
    """
    kind = np.full(RANK, -1)
    own = np.flatnonzero((layout.slice == 0) & (layout.lane == 0) & (chain == _CHAIN))
    kind[own[1:]] = (np.arange(1, len(own)) + turn) % 2
    beside = [(0, 0, chain ^ 1), (0, 0, (chain ^ 2) & 2 | drawn[0])]
    beside += [(0, lane, chain) for lane in layout.star[1:]] + [(part, 0, chain) for part in range(1, layout.slices)]
    for at, (part, lane, other) in enumerate(beside, 1):
        columns = np.flatnonzero((part == layout.slice) & (lane == layout.lane) & (other == _CHAIN))
        kind[columns[(turn + at) % len(columns)]] = drawn[at]
    return kind


def _trims() -> Reals:
    """BF16 numbers whose squares are a whole number of 2^-22, up to 40, and as much as `FEW` has beyond."""
    found = np.ldexp(np.arange(128, 256)[:, None], np.arange(-19, -15)).ravel(order="F")
    squares = found * found * 2.0**22
    beyond = squares % 1
    return found[(squares < 40) & ((beyond > 0.2) & (beyond < 0.45) | (beyond > 0.55) & (beyond < 0.8))]


_TRIMS: Final = _trims()


def _sum(size: int, up: int, eps: float, order: Ints) -> tuple[int, float, npt.NDArray[np.bool_]]:
    """(significand of the large element, the last of the few, `_decisive` of the factor) for some sum of squares."""
    for number in order:
        root, trim = ROOTS[number % len(ROOTS)], _TRIMS[number * 7 % len(_TRIMS)]
        ulps = up + np.rint(trim * trim * 2.0**22)
        total = 4.0**size * ((float(root) / 128) ** 2 + (ulps + np.arange(-1, 2)) * 2.0**-22)
        mean = (total / RANK).astype(np.float32) + np.float32(eps)
        decisive = _decisive((1 / np.sqrt(mean.astype(np.float64))).astype(np.float32))
        if decisive.any(axis=(1, 2)).all():
            break
    return int(root), float(trim * 2.0**size), decisive


def _decisive(factors: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Whether x * factor * gamma rounds to another BF16 with the first, and with the last factor, than with the middle.

    [2, significand of x - 128, significand of gamma - 128], of three factors.
    """
    significands = np.arange(128, 256, dtype=np.float32)
    words = ((significands[:, None] * factors[:, None, None]) * significands).view(np.uint32)
    rounded = words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.asarray(rounded[[0, 2]] != rounded[1])


def _aimed(bits: Bits, decisive: npt.NDArray[np.bool_], gamma: Bits, turn: int) -> Bits:
    """The row with decisive significands in columns whose gamma has any, for either neighbour by turns."""
    found = decisive[(np.arange(len(gamma)) + turn) % 2, :, gamma % 128]
    return np.where(found.any(axis=1), bits & 0xFF80 | np.argmax(found, axis=1).astype(np.uint16), bits)
