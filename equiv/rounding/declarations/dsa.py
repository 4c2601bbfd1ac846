"""Declarations of the pair `dsa_index`: the stock Triton chain and `DsaIndex`.

Read from the PTX of `triton_ref.dsa` and `cute.dsa.index` for both architectures: sm_100a spells some additions
`add.rn.f32.bf16` and some maxima `redux`, the trees are those of sm_90a. ptxas contracts two more products (the mean's
division into x - mean, the variance's into + eps); both are by 2^-7 and exact, so no row or order shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Declaration, Terms
from equiv.rounding.orders import Order, butterfly, leaves, pairwise

if TYPE_CHECKING:
    from collections.abc import Mapping

DIM: Final = 128
LANES: Final = 32
WARPS: Final = 4
STRIDES: Final = (16, 8, 4, 2, 1)
ARCHITECTURES: Final = ("sm_90a", "sm_100a")


def triton_order(*, fused: bool) -> Order:
    """128 terms on four warps, one a lane: a butterfly in each warp, shared memory, then a butterfly over the four.

    Fused, the first step is `fma(d, d, square of lane ^ 16)`, so that lanes 0-15 and 16-31 end with different bits.
    What reaches shared memory is lane 0's: Triton 3.6 stores from it alone; 3.8 lets all 32 lanes store to one address,
    where the lowest lane's value stays (H200: all of 48,000 stores; its LayerNorm equals this tree in 512 of 512 rows).
    """
    warps = [butterfly(leaves(range(LANES * w, LANES * (w + 1))), STRIDES, fused=fused)[0] for w in range(WARPS)]
    return Order.of(DIM, butterfly(warps, (2, 1))[0])


def cute_order(*, fused: bool) -> Order:
    """128 terms on one warp, four neighbours a lane: (c0 + c1) + (c2 + c3), a butterfly; `fused` fuses c0, c2."""
    lanes = [pairwise(leaves(range(4 * lane, 4 * lane + 4)), fused=fused) for lane in range(LANES)]
    return Order.of(DIM, butterfly(lanes, STRIDES)[0])


ORACLE: Final[Mapping[str, str]] = {
    "dsa.R11": "mul",
    "dsa.R12": "log2",
    "dsa.R13": "div.full.clamp",
    "dsa.R15a": "two_constants",
    "dsa.F1": "log2",
    "dsa.F3a": "two_constants",
    "dsa.K1e": "rsqrt.approx.ftz",
    "dsa.K2b": "fma",
    "dsa.K3a": "div.rn",
    "dsa.K3b": "log2",
    "dsa.K3c": "div.full",
    "dsa.K4a": "log2",
}

CANDIDATE: Final[Mapping[str, str]] = {
    "dsa.R11": "div.rn",
    "dsa.R12": "add_mask",
    "dsa.R13": "inverse",
    "dsa.R15a": "folded",
    "dsa.F1": "bits",
    "dsa.F3a": "folded",
    "dsa.K1e": "rsqrt.approx.ftz",
    "dsa.K2b": "fma",
    "dsa.K3a": "div.rn",
    "dsa.K3b": "add_mask",
    "dsa.K3c": "inverse",
    "dsa.K4a": "bits",
}

TRITON_ORDERS: Final = {"key.sum": triton_order(fused=False), "key.squares": triton_order(fused=True)}
CUTE_ORDERS: Final = {"key.sum": cute_order(fused=False), "key.squares": cute_order(fused=True)}

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    *(
        Declaration("oracle", {"triton": version}, arch, TRITON_ORDERS, ORACLE)
        for version in ("3.6.0", "3.8.0")
        for arch in ARCHITECTURES
    ),
    *(
        Declaration("candidate", {"nvidia-cutlass-dsl": "4.8.1"}, arch, CUTE_ORDERS, CANDIDATE)
        for arch in ARCHITECTURES
    ),
)
"""Triton 3.6.0 and 3.8.0 differ in control flow only; other versions were not read."""

TERMS: Final[Mapping[str, Terms]] = {
    "key.sum": Terms("values", DIM, ("projected",)),
    "key.squares": Terms("squares", DIM, ("projected",)),
}
"""The key's channels, in both: term i is channel i."""
