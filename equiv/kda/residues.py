"""Values of `kda` that cancel, so that what a sum leaves behind is made of its rounding errors and shows each of them.

Two kinds, as the regimes `values = "mirrored"` and `values = "residues"` name them for all pieces at once:

* `mirrored`: of a head's channels four and four are the same, q, k, decay and all, and a state holds for the second
  four the negative of what it holds for the first. The products with k and with q cancel, in our kernels in the last
  addition of all, and so large are the states that the errors are as large as what v brings in: a decay, a norm, a
  product or a partial sum that is an ulp off gives other outputs.
* `residues`: all rows and window columns hold one large number, and the taps a, b, -a, -b: the convolution leaves the
  errors of its first three products, of which SiLU and the norms make q, k and v of ordinary size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.kda import TAPS
from equiv.inputs import truncated
from equiv.rounding.formats import F32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.inputs import Draws, Shape
    from equiv.records import Bits

    Fill = Callable[[Draws, Shape], Bits]
    FillState = Callable[[Draws, tuple[int, ...], bool], Bits]

FOUR = 4
"""Neighbouring channels that a lane of `KdaWS` and `KdaWide` has of a row."""
LEVEL = 0x48D5
"""The BF16 bits of 213 * 2**11."""
VALUES: Mapping[str, Mapping[str, str]] = {
    "mirrored": dict.fromkeys(
        ("q", "k", "v", "conv_w", "conv_bias", "conv_state", "f_b", "dt_bias", "state"), "mirrored"
    ),
    "residues": {
        **dict.fromkeys(("q", "k", "v", "conv_state"), "level"),
        "conv_w": "cancelling",
        "conv_bias": "zero",
    },
}
"""Name of all values -> piece -> its regime, where the case names no other."""


def level(_: Draws, shape: Shape) -> Bits:
    """`LEVEL` everywhere."""
    return np.full(shape, LEVEL, dtype=np.uint16)


def cancelling_taps(draws: Draws, shape: Shape) -> Bits:
    """Weights [n, 4]: a, b, -a, -b."""
    assert shape[1] == TAPS
    half = draws.bell("value", (shape[0], TAPS // 2)) / 2
    return truncated(np.concatenate([half, -half], axis=1), F32)


def mirrored(fill: Fill, inner: Callable[[Shape], int]) -> Fill:
    """As `fill`, but of every eight channels the last four are the same as the first.

    inner: of a piece's shape, how many neighbouring elements belong to one channel.
    """

    def twice(draws: Draws, shape: Shape) -> Bits:
        bits = fill(draws, shape).copy()
        fours = bits.reshape(-1, 2, FOUR * inner(shape))
        fours[:, 1] = fours[:, 0]
        return bits

    return twice


def mirrored_states(fill: FillState) -> FillState:
    """As `fill`, but of every eight keys of a row the last four are the negative of the first."""

    def twice(draws: Draws, shape: tuple[int, ...], wide: bool) -> Bits:  # noqa: FBT001  -- a table's entry
        bits = fill(draws, shape, wide).copy()
        fours = bits.reshape(-1, 2, FOUR)
        fours[:, 1] = fours[:, 0] ^ bits.dtype.type(1 << (8 * bits.itemsize - 1))
        return bits

    return twice
