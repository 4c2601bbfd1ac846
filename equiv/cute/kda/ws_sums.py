"""Sums over the lanes of `KdaWS`: 128 channels on four warps (`spread_sums`, `block_total`), a state row on 8 lanes."""

from __future__ import annotations

from cutlass import Boolean, Float32, Int32, cute
from cutlass.cutlass_dsl import select_

from equiv.cute.kda.formulas import Pair, add2, add_rn
from equiv.cute.kda.ws_copies import view

ROWS = 4
"""Rows of a state that a scan thread owns."""


def pick(condition: Boolean, one: Float32, other: Float32) -> Float32:
    """`one` where the condition holds, else `other`."""
    return Float32(select_(condition, one, other))


def halve(values: list[Float32], upper: Boolean, distance: int) -> list[Float32]:
    """Adds the partner's values at that lane distance, but only half of them: the second half in `upper` lanes."""
    half = len(values) // 2
    sums = []
    for first, second in zip(values[:half], values[half:], strict=True):
        kept, sent = pick(upper, second, first), pick(upper, first, second)
        sums.append(add_rn(kept, cute.arch.shuffle_sync_bfly(sent, offset=distance)))
    return sums


def spread_sums(values: list[Float32], lane: Int32) -> Float32:
    """Sums of each of 2^n values over the warp, butterflies over distances 16 to 1, in as few shuffles as possible.

    Lane l ends with the sum of value l >> (5 - n): lanes share the values out while there are several, since each sum
    has the same tree in all lanes.
    """
    distance = 16
    while distance:
        if len(values) > 1:
            values = halve(values, (lane & distance) != 0, distance)
        else:
            values = [add_rn(values[0], cute.arch.shuffle_sync_bfly(values[0], offset=distance))]
        distance //= 2
    return values[0]


@cute.jit
def store_partial(sums: cute.Pointer, count: int, value: Float32, warp: Int32, lane: Int32):
    """Keeps a warp's sums, as `spread_sums` of `count` values left them, for `block_total`."""
    lanes = 32 // count
    if lane % lanes == 0:
        (sums + (lane // lanes) * 4 + warp).store(value)


def block_total(sums: cute.Pointer, index: int) -> Float32:
    """Sum `index` over the four warps: (w0 + w2) + (w1 + w3)."""
    warps = view(sums + index * 4, 4).load()
    return add_rn(add_rn(warps[0], warps[2]), add_rn(warps[1], warps[3]))


def pair_total(pair: Pair) -> Float32:
    """Both lanes of a pair."""
    return add_rn(pair[0], pair[1])


def row_sum(rows: list[tuple[Pair, Pair]], lane: Int32) -> Float32:
    """Sums of four state rows over 8 neighbouring lanes: (e0 + e2) + (e1 + e3) in each, then distances 4, 2, 1.

    Lane l of 8 ends with row l // 2.
    """
    values = [pair_total(add2(first, second)) for first, second in rows]
    values = halve(values, (lane & 4) != 0, 4)
    values = halve(values, (lane & 2) != 0, 2)
    return add_rn(values[0], cute.arch.shuffle_sync_bfly(values[0], offset=1))


def from_row_owners(value: Float32) -> list[Float32]:
    """The inverse of `row_sum`: what the lanes of rows 0 to 3 hold, in all 8 lanes."""
    return [cute.arch.shuffle_sync(value, 2 * row, mask_and_clamp=0x181F) for row in range(ROWS)]
