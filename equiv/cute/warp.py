"""Device helpers for reductions over the lanes of a warp."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Uint32, cute


@cute.jit
def warp_sum(value: Float32) -> Float32:
    """Sum over the 32 lanes, in every lane: butterfly over lane distances 16, 8, 4, 2, 1."""
    return cute.arch.warp_reduction_sum(value)


@cute.jit
def group_sum(value: Float32, lanes: int) -> Float32:
    """Sum over each group of `lanes` neighbouring lanes (a power of two), in every lane: distances lanes / 2 .. 1."""
    return cute.arch.warp_reduction_sum(value, threads_in_group=lanes)


@cute.jit
def warp_max(value: Uint32) -> Uint32:
    """Largest unsigned value of the 32 lanes, in every lane, by one `redux`."""
    return cute.arch.warp_redux_sync(value, "umax")


@cute.jit
def group_max(value: Uint32, lanes: int) -> Uint32:
    """Largest unsigned value of each group of `lanes` neighbouring lanes (a power of two), in every lane."""
    return cute.arch.warp_reduction(value, cutlass.max, threads_in_group=lanes)


def warp_maxima(values: list[Uint32], lane: Int32) -> Uint32:
    """Largest of the 32 lanes of each of some values, a power of two of them: of value lane * (number) / 32.

    Lanes halve the values among them as they go, which takes fewer exchanges than one reduction a value.
    """
    distance = 16
    while len(values) > 1:
        half = len(values) // 2
        values = [largest_of(values[i], values[half + i], lane, distance) for i in range(half)]
        distance //= 2
    (found,) = values
    while distance:
        found = cutlass.max(found, cute.arch.shuffle_sync_bfly(found, offset=distance))
        distance //= 2
    return found


@cute.jit
def largest_of(low: Uint32, high: Uint32, lane: Int32, distance: cutlass.Constexpr[int]) -> Uint32:
    """Of `low`, in lanes whose bit `distance` is set of `high`: the larger one of this lane's and its partner's."""
    keep, give = low, high
    if lane & distance != 0:
        keep, give = high, low
    return cutlass.max(keep, cute.arch.shuffle_sync_bfly(give, offset=distance))
