"""Declarations of the pair `kda`: the stock Triton chain, `KdaWide` and `KdaWS`.

Orders are those of spec kda 2.2 and 2.3 until each kernel's own PTX is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Declaration
from equiv.rounding.orders import Add, Node, Order, butterfly, chain, leaves, matrix_chain, pairwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def neighbours(form: str, each: int = 4) -> Order:
    """`each` neighbours a lane, summed as `form` says, then a butterfly over the lanes.

    `serial`: x1, then fma of x0, x2, x3, ...; `pairs`: fused pairs, pairwise; `plain`: (0 + 2) + (1 + 3), unfused;
    `halves`: fma of (0, 2) + fma of (1, 3).
    """
    lanes = []
    for lane in range(DIM // each):
        at = leaves(range(each * lane, each * lane + each))
        if form == "serial":
            lanes.append(chain([at[1], at[0], *at[2:]], fused=True))
        elif form == "pairs":
            lanes.append(pairwise(at, fused=True))
        else:
            crossed = [node for i in (0, 1) for node in at[i::2]]
            lanes.append(pairwise(crossed, fused=form == "halves"))
    count = DIM // each
    strides = [1 << i for i in reversed(range(count.bit_length() - 1))]
    return Order.of(DIM, butterfly(lanes, strides)[0])


def persistent() -> Order:
    """KdaWS's dots: lane l of 8 has keys 4 (l + 8 c) + e; a chain of fmas over c for each e, (e0 + e2) + (e1 + e3)."""
    lanes = []
    for lane in range(8):
        parts = [chain(leaves(4 * (lane + 8 * c) + e for c in range(4)), fused=True) for e in range(4)]
        lanes.append(four_warps(parts))
    return Order.of(DIM, butterfly(lanes, (4, 2, 1))[0])


def gates(arch: str) -> dict[str, Order]:
    """One chain of eight matrix instructions, and four chains of two."""
    variant = f"{MMA} {arch}"
    quarters = [matrix_chain(range(32 * w, 32 * w + 32), 16, variant) for w in range(4)]
    return {
        "gate.0": Order.of(DIM, matrix_chain(range(DIM), 16, variant)),
        "gate.1": Order.of(DIM, chain(quarters)),
    }


def _declared(
    party: str, form: str, arch: str, orders: Mapping[str, Order], variants: Mapping[str, str]
) -> Declaration:
    package = {"triton": "3.8.0"} if party == "oracle" else {"nvidia-cutlass-dsl": "4.8.1"}
    return Declaration(party, package, arch, {**gates(arch), **orders}, variants, form)


def _oracle(form: str, arch: str) -> Declaration:
    new, narrow = arch == "sm_100a", form.endswith("bf16")
    sums = neighbours("plain" if new else "pairs", 8 if narrow else 4)  # 16 bytes of the state's row a lane
    squares = neighbours(("plain" if narrow else "halves") if new else "pairs")
    orders = {
        "q.squares": squares if form.startswith("multi") else one_a_lane(fused=True),
        "dot": sums,
        "out": sums,
        "norm.squares": neighbours("pairs", 8),
        "commit.squares": one_a_lane(fused=True),
    }
    verify = {"kda.13b": "rsqrt", "kda.13c": "rsqrt", "kda.13o": "rsqrt", "kda.13p": "backward"}
    return _declared("oracle", form, arch, orders, verify if form.startswith("verify") else {})


def _candidate(form: str, arch: str) -> Declaration:
    orders = {
        "q.squares": one_a_lane(fused=False),
        "dot": persistent(),
        "out": persistent(),
        "norm.squares": one_a_lane(fused=False),
        "commit.squares": one_a_lane(fused=False),
    }
    return _declared("candidate", form, arch, orders, {"kda.13b": "rcp", "kda.13c": "rcp", "kda.13r": "rcp"})


ORACLE_FORMS: Final = ("packed", "packed-bf16", "multi", "multi-bf16", "verify", "verify-bf16")
CANDIDATE_FORMS: Final = ("wide", "ws", "wide-commit", "ws-commit")

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    *(_oracle(form, arch) for form in ORACLE_FORMS for arch in ARCHITECTURES),
    *(_candidate(form, arch) for form in CANDIDATE_FORMS for arch in ARCHITECTURES),
)
