"""Device helpers for reductions over the lanes of a warp."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Uint32, cute


@cute.jit
def warp_sum(value: Float32) -> Float32:
    """Sum over the 32 lanes, in every lane: butterfly over lane distances 16, 8, 4, 2, 1."""
    return cute.arch.warp_reduction_sum(value)


@cute.jit
def warp_max(value: Uint32) -> Uint32:
    """Largest unsigned value of the 32 lanes, in every lane, by one `redux`."""
    return cute.arch.warp_redux_sync(value, "umax")


@cute.jit
def group_max(value: Uint32, lanes: int) -> Uint32:
    """Largest unsigned value of each group of `lanes` neighbouring lanes (a power of two), in every lane."""
    return cute.arch.warp_reduction(value, cutlass.max, threads_in_group=lanes)
