"""What a projection's accumulators may be under any declared order, from the operands of the case (design section 4).

The exact sum in float64, widened by what the declared matrix instructions may lose (spec numerics 1.1): of a block of
products and C every term is cut below 2^(E - F), E the largest exponent among them, and the result once more towards
zero. A product loses something only where it has bits that low, C only where a product has the largest exponent. C is
the exact sum so far within what was lost before it, so that products which cancel are bounded by the partial sums that
really occur. The chains are walked in C (csrc/chain.c).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.ccode import library
from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, matrix
from equiv.rounding.formats import BF16
from equiv.rounding.intervals import UNIT, Interval
from equiv.rounding.projection import Chain, Part, part_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.records import Bits
    from equiv.rounding.declaration import Declaration

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

TRUNCATED: Final = 2.0**-23
"""Largest relative error of one rounding towards zero to float32."""
_LEAST: Final = 2.0**-149
_GUARD: Final = 1 + 2.0**-30
"""Covers the float64 arithmetic of the bounds, as in `equiv.rounding.intervals`."""
_SLACK: Final = 2.0**-52
"""Relative error of a float64 sum of 1536 products, a term: added as a share of the magnitudes."""


_SOURCE: Final = Path(__file__).parent / "csrc" / "chain.c"


@dataclass(frozen=True, slots=True)
class Operands:
    """Latents within intervals times exact weights.

    Attributes:
        middle: of the latents, float64 [B, K]; half: what they may be away from it, [B, K].
        bits: what the latents are multiples of, powers of two [B, K]; infinity for 0.
        weights: BF16 bits, [N, K].
    """

    middle: F64
    half: F64
    bits: F64
    weights: Bits

    @classmethod
    def of(cls, latent: Interval, weights: Bits) -> Operands:
        """From float32 bits of the latents' ends and BF16 bits of the weights."""
        low, high = (fp.floats(end).astype(np.float64) for end in (latent.low, latent.high))
        ends = (lowest_bits()[end >> np.uint32(16)] for end in (latent.low, latent.high))
        return cls((low + high) / 2, (high - low) / 2, np.minimum(*ends), weights)

    def spread(self) -> F64:
        """How far the exact result may be from that of the middles, `[B, N]`; rows that are certain cost nothing."""
        found = np.zeros((len(self.half), len(self.weights)))
        rows, columns = np.flatnonzero(self.half.any(axis=1)), np.flatnonzero(self.half.any(axis=0))
        if rows.size:
            weights = fp.floats(conversions.widen(self.weights[:, columns], BF16)).astype(np.float64)
            found[rows] = self.half[np.ix_(rows, columns)] @ np.abs(weights).T
        return found


@dataclass(frozen=True, slots=True)
class Walk:
    """What one order makes of all outputs, `[B, N]` each.

    Attributes:
        total: the exact sum of the middles' products.
        lost: bound on what the order may lose of it.
        sizes: sum of the largest magnitudes of the products.
    """

    total: F64
    lost: F64
    sizes: F64


def accumulators(latent: Interval, weights: Bits, declarations: Sequence[Declaration | None]) -> Interval:
    """Intervals `[B, N]` of the accumulators in any order that the parties declare; in any at all for an unknown one.

    Args:
        latent: BF16 values as float32 bits, `[B, K]`, finite.
        weights: BF16 bits, `[N, K]`, finite.
        declarations: of both parties.

    Raises:
        UsageError: an order is none of matrix chains.
        UnsupportedError: there is no C compiler.
    """
    given = Operands.of(latent, weights)
    spread = given.spread()
    parts = dict.fromkeys(part_of(d.order("projection")) for d in declarations if d is not None)
    walks = [_walk(part, given, spread) for part in parts]
    if not walks:
        walks = [walked(Chain(tuple(range(weights.shape[1])), ""), given, spread, 1, 0.0)]
    total, sizes = walks[0].total, walks[0].sizes
    lost = np.max([walk.lost for walk in walks], axis=0)
    if None in declarations:
        lost = np.maximum(lost, _any_order(given, sizes))
    lost = np.where(proven(given, sizes), 0.0, lost * _GUARD + sizes * _SLACK)
    half = lost + spread * _GUARD
    return Interval.around(total - half + 0.0, total + half + 0.0)


def proven(given: Operands, sizes: F64) -> Mask:
    """Outputs `[B, N]` that every order gives exactly.

    Either all products are multiples of one 2^e, normal, and their magnitudes sum up to less than 2^(e + 24): then no
    partial sum needs more than 24 bits, and no term is cut. Or there is at most one product, which has 16 bits.

    Args:
        given: the operands.
        sizes: sums of the products' magnitudes, `[B, N]`.
    """
    certain = ~np.asarray(given.half.any(axis=1))
    unit = given.bits.min(axis=1)[:, None] * _least_bits(given.weights)
    grid = (unit >= _LEAST) & (sizes < unit * 2.0**24)
    few = [np.count_nonzero(one, axis=1) <= 1 for one in (given.middle, given.weights & np.uint16(0x7FFF))]
    single = (few[0][:, None] | few[1]) & ((sizes == 0) | (sizes >= 2.0**-120))
    return np.asarray(certain[:, None] & (grid | single))


def _least_bits(codes: Bits) -> F64:
    """The least of `lowest_bits` in each row; by exponents, which take a quarter of the memory."""
    exponents = np.frexp(np.minimum(lowest_bits(), 2.0**1000))[1].astype(np.int16) - np.int16(1)
    return np.asarray(np.ldexp(1.0, exponents[codes].min(axis=1).astype(np.int64)))


@cache
def lowest_bits() -> F64:
    """Of every finite BF16 code the largest power of two of which the value is a multiple; infinity for zeros."""
    codes = np.arange(1 << 16)
    exponent, fraction = codes >> 7 & 0xFF, codes & 0x7F
    whole = np.where(exponent > 0, fraction | 0x80, fraction)
    bits = np.ldexp((whole & -whole).astype(np.float64), np.maximum(exponent, 1) - 127 - 7)
    return np.where(whole == 0, np.inf, bits)


def _any_order(given: Operands, sizes: F64) -> F64:
    """Of an unknown order: every product is cut and rounded towards zero at most once for every other product."""
    count = given.weights.shape[1]
    return np.asarray(count * 2 * TRUNCATED * sizes + _LEAST * count)


def _walk(part: Part, given: Operands, spread: F64) -> Walk:
    if isinstance(part, Chain):
        model = matrix.variant(*part.variant.split())
        return walked(part, given, spread, model.k, 2.0**-model.row.align)
    left, right = (_walk(one, given, spread) for one in (part.left, part.right))
    total, lost = left.total + right.total, left.lost + right.lost
    lost += UNIT * (np.abs(total) + spread + lost) + _LEAST
    return Walk(total, lost, left.sizes + right.sizes)


def walked(chain: Chain, given: Operands, spread: F64, step: int, unit: float) -> Walk:
    """One chain of instructions of `step` products, which cut their terms below `unit` times the largest of them.

    The exponent of a product is the sum of its factors', so the largest term is at most the product of the powers of
    two below the block's largest factors, or C.

    Raises:
        UnsupportedError: there is no C compiler.
        MemoryError: the weights do not fit.
    """
    middle, half, bits = (np.ascontiguousarray(chain.of(one)) for one in (given.middle, given.half, given.bits))
    weights = chain.of(given.weights)
    if weights.strides[1] != weights.itemsize:
        weights = np.ascontiguousarray(weights)
    (rows, k), n = middle.shape, len(weights)
    walk = Walk(*(np.empty((rows, n)) for _ in range(3)))
    largest = np.abs(middle) + half
    pointers = [array.ctypes.data for array in (middle, largest, bits, weights)]
    results = [array.ctypes.data for array in (np.ascontiguousarray(spread), walk.total, walk.lost, walk.sizes)]
    pitch = weights.strides[0] // weights.itemsize
    if _library().equiv_chain(rows, n, k, step, unit, TRUNCATED, _LEAST, *pointers, pitch, *results):
        raise MemoryError(f"[{rows}, {k}] x [{k}, {n}]")
    return walk


@cache
def _library() -> Any:  # noqa: ANN401  ctypes' libraries have no type
    found = library("chain", _SOURCE.read_text(), ())
    integer, number, pointer = ctypes.c_int, ctypes.c_double, ctypes.c_void_p
    found.equiv_chain.argtypes = (*(integer,) * 4, *(number,) * 3, *(pointer,) * 4, ctypes.c_ssize_t, *(pointer,) * 4)
    return found
