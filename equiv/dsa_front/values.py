"""Value regimes that only a projection needs: millions of weights quickly, exact sums, sums that cancel.

Shapes are [rows, 1536] BF16 bits, of latents as of weights; `equiv.inputs` has the other regimes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from equiv import inputs as make
from equiv.rounding.formats import BF16

if TYPE_CHECKING:
    from equiv.inputs import Draws, Shape
    from equiv.records import Bits

_ZEROS: Final = np.array([8 - value.bit_length() for value in range(256)], dtype=np.uint16)
"""Leading zeros of a byte."""
WHOLE: Final = 8
"""Largest magnitude of an order-proof integer: 1536 products of two sum up to 98304, which has 17 bits."""


def uniform(draws: Draws, shape: Shape, top: int) -> Bits:
    """Uniform in (-2^top, 2^top) with 8 significant bits at every size, down to 2^(top - 9); 16 random bits a value."""
    words = draws.words("bits", (-(-math.prod(shape) // 4),)).view("<u2")[: math.prod(shape)].astype(np.uint16)
    exponent = np.uint16(126 + top) - _ZEROS[words >> np.uint16(8)]
    sign = (words & np.uint16(0x80)) << np.uint16(8)
    bits: Bits = sign | exponent << np.uint16(7) | words & np.uint16(0x7F)
    return bits.reshape(shape)


def integers(draws: Draws, shape: Shape) -> Bits:
    """Whole numbers of [-8, 8]."""
    words = draws.words("bits", (-(-math.prod(shape) // 4),)).view("<u2")[: math.prod(shape)]
    return make.exact_bf16(np.arange(-WHOLE, WHOLE + 1))[words.reshape(shape) % np.uint16(2 * WHOLE + 1)]


def selector(shape: Shape) -> Bits:
    """One 1 a row: output n is element n % 1536 of the latent, so a head quantises 128 of its columns as they are."""
    bits = np.zeros(shape, dtype=np.uint16)
    rows = np.arange(shape[0])
    bits[rows, rows % shape[1]] = 0x3F80
    return bits


def mirrored(bits: Bits, distance: int, *, negative: bool) -> Bits:
    """Every other run of `distance` columns repeats the one before it, with the other sign if `negative`.

    Of a latent that is mirrored with the other sign and weights with the same, the products cancel in pairs, all but
    one in eight of them, which the latent moves by an ulp.
    """
    found = bits.reshape(bits.shape[0], -1, 2, distance).copy()
    found[:, :, 1] = found[:, :, 0]
    if negative:
        found[:, :, 1] ^= np.uint16(0x8000)
        found[:, :, 1, ::8] += np.uint16(1)
    return found.reshape(bits.shape)


def large(draws: Draws, shape: Shape) -> Bits:
    """Rows whose square sum is far below, about and beyond the largest float32 number, dealt in turn."""
    sizes = np.array([56, 57, 58, 59, 60, 61, 64, 100, 119, 40])
    exponents = sizes[draws.order("deal", len(sizes))[np.arange(shape[0]) % len(sizes)]][:, None]
    return make.truncated(np.ldexp(draws.bell("value", shape), exponents.astype(np.int32)), BF16)
