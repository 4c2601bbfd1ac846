"""Declarations of `KdaWS`, form `ws` of the pair `kda`'s candidate.

Read from its PTX for both architectures, which differ in form alone: sm_100a has packed operations where sm_90a has two.
Products that an addition follows are `.rn`, so ptxas contracts none of them; what is fused is written as `fma.rn`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.geometry.kda import DIM
from equiv.rounding.declaration import Declaration
from equiv.rounding.orders import Node, Order, add, butterfly, chain, leaves, matrix_chain

if TYPE_CHECKING:
    from collections.abc import Mapping

MMA: Final = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
MMA_K: Final = 16
ARCHITECTURES: Final = ("sm_90a", "sm_100a")


def gate_columns(chunk: int) -> list[int]:
    """Columns of a 16-column chunk in the order of the instruction's k.

    A lane reads four neighbouring columns 4 i .. 4 i + 3 and passes them as k = 2 i, 2 i + 1, 2 i + 8, 2 i + 9.
    """
    return [MMA_K * chunk + 4 * (k % 8 // 2) + k % 2 + 2 * (k // 8) for k in range(MMA_K)]


def gate_order(mode: int, arch: str) -> Order:
    """F_B projection: one chain of eight matrix instructions, or four of two added as ((w0 + w1) + w2) + w3."""
    columns = [gate_columns(chunk) for chunk in range(DIM // MMA_K)]
    chains = 4 if mode == 1 else 1
    length = len(columns) // chains
    parts = [
        matrix_chain(sum(columns[length * i : length * (i + 1)], []), MMA_K, f"{MMA} {arch}") for i in range(chains)
    ]
    return Order.of(DIM, chain(parts))


def squares_order() -> Order:
    """Rounded squares, one channel a lane: a butterfly in each of four warps, then (w0 + w2) + (w1 + w3)."""
    warps = [butterfly(leaves(range(32 * w, 32 * w + 32)), (16, 8, 4, 2, 1))[0] for w in range(4)]
    return Order.of(DIM, add(add(warps[0], warps[2]), add(warps[1], warps[3])))


def row_order() -> Order:
    """A state row on 8 lanes, lane l with keys 4 (l + 8 c) + e: an FMA chain over c for each e, then over e and lanes.

    A chain begins with a rounded product; (e0 + e2) + (e1 + e3), then lane distances 4, 2, 1.
    """

    def lane(index: int) -> Node:
        e = [chain(leaves(4 * (index + 8 * c) + i for c in range(4)), fused=True) for i in range(4)]
        return add(add(e[0], e[2]), add(e[1], e[3]))

    return Order.of(DIM, butterfly([lane(index) for index in range(8)], (4, 2, 1))[0])


VARIANTS: Final[Mapping[str, str]] = {
    "kda.4": "fma",
    "kda.5a": "div.full",
    "kda.13b": "rcp",
    "kda.13c": "rcp",
    "kda.13d": "ex2.approx",
    "kda.13g": "div.full",
    "kda.13i": "ex2.approx",
    "kda.13j": "div.full",
    "kda.13q": "fma",
    "kda.13r": "rcp",
    "kda.13u": "div.full",
}


def _declared(arch: str) -> Declaration:
    orders = {
        "gate.0": gate_order(0, arch),
        "gate.1": gate_order(1, arch),
        "q.squares": squares_order(),
        "dot": row_order(),
        "out": row_order(),
        "norm.squares": squares_order(),
    }
    return Declaration("candidate", {"nvidia-cutlass-dsl": "4.8.1"}, arch, orders, VARIANTS, "ws")


DECLARATIONS: Final[tuple[Declaration, ...]] = tuple(_declared(arch) for arch in ARCHITECTURES)
