"""Shapes of sums in the kernels of `kda`: one term a thread, neighbours a lane, chains of matrix instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.orders import Add, Node, Order, add, butterfly, chain, leaves, matrix_chain, pairwise

if TYPE_CHECKING:
    from collections.abc import Sequence

DIM: Final = 128
LANES: Final = 32
STRIDES: Final = (16, 8, 4, 2, 1)
ARCHITECTURES: Final = ("sm_90a", "sm_100a")
MMA: Final = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


def four_warps(warps: Sequence[Node]) -> Node:
    """(w0 + w2) + (w1 + w3)."""
    return Add(Add(warps[0], warps[2]), Add(warps[1], warps[3]))


def one_a_lane(*, fused: bool) -> Order:
    """128 terms, one a thread: a butterfly in each warp, then (w0 + w2) + (w1 + w3); lane 0's view where fused."""
    warps = [butterfly(leaves(range(LANES * w, LANES * (w + 1))), STRIDES, fused=fused)[0] for w in range(4)]
    return Order.of(DIM, four_warps(warps))


def lanes(each: int, parts: Sequence[Node]) -> Order:
    """One partial sum a lane, `each` neighbours in it, added by a butterfly over the lanes."""
    strides = [1 << i for i in reversed(range((DIM // each).bit_length() - 1))]
    return Order.of(DIM, butterfly(parts, strides)[0])


def serial(each: int = 4, unfused: Sequence[int] = ()) -> Order:
    """`each` neighbours a lane as Triton 3.6 adds them: x1, then fma of x0, x2, x3, ...; `unfused` ones are added."""
    parts = []
    for at in range(0, DIM, each):
        total: Node = leaves([at + 1])[0]
        for i in (0, *range(2, each)):
            total = add(leaves([at + i])[0], total, fused=i not in unfused)
        parts.append(total)
    return lanes(each, parts)


def paired(each: int = 4, *, fused: bool) -> Order:
    """Neighbours in pairs, pairs of pairs; fused, a pair is fma of its first product onto its second."""
    return lanes(each, [pairwise(leaves(range(at, at + each)), fused=fused) for at in range(0, DIM, each)])


def crossed(each: int = 4, *, fused: bool) -> Order:
    """As packed f32x2 arithmetic adds: even neighbours and odd ones pairwise apart, then the two sums."""
    parts = []
    for at in range(0, DIM, each):
        even, odd = (pairwise(leaves(range(at + i, at + each, 2)), fused=fused) for i in (0, 1))
        parts.append(Add(even, odd))
    return lanes(each, parts)


def gates(arch: str) -> dict[str, Order]:
    """One chain of eight matrix instructions, and four chains of two."""
    variant = f"{MMA} {arch}"
    quarters = [matrix_chain(range(32 * w, 32 * w + 32), 16, variant) for w in range(4)]
    return {
        "gate.0": Order.of(DIM, matrix_chain(range(DIM), 16, variant)),
        "gate.1": Order.of(DIM, chain(quarters)),
    }
