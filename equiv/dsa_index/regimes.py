"""Values of the pair `dsa_index`: which regimes each piece knows, and how the pieces make up the tensors.

A regime is named in the case file by piece: `q`, `key`, `head_weights` (the last two are columns of `projected`),
`norm_w`, `norm_b`, `slots`, `cache`. Exact control over the quantised key goes through `key = "constant"`: its variance
is 0, so the LayerNorm's result is `norm_b` to the bit (spec/dsa.md 5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from equiv import inputs as make
from equiv.dsa_index import aimed, tensors
from equiv.dsa_index.aimed import AIMED, TOKENS
from equiv.geometry.dsa import BLOCK, DIM, HEADS, PAGE
from equiv.inputs import Draws, Target
from equiv.rounding.formats import E2M1, E4M3, F32

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from equiv.inputs import Ints, Shape
    from equiv.records import Bits, Case

    Fill = Callable[[Draws, tuple[int, int], Target], Bits]

_FP8_FLOORS = (5e-11, 448 * 2.0**-43, 1e-10, 2.6e-8, 448 * 2.0**-34, 5.3e-5, 448 * 2.0**-23, 1e-4)
"""Every floor that some writer of FP8 scales uses, and the amax at which it starts to show (spec/dsa.md 3, fact 6)."""
FP8 = Target(E4M3, -42, 119, _FP8_FLOORS)
FP4 = Target(E2M1, -126, 125, (6 * 2.0**-126, 3 * 2.0**-126, 1.5 * 2.0**-126, 2.0**-126))
POW2_EXPONENTS = range(33, 64)
"""Where a polynomial log2 of 2**k * (1 + j ulp), j <= 11, rounds to k and the scale is halved (spec/dsa.md 3)."""

Q: Mapping[str, Fill] = {
    "normal": lambda d, shape, _: make.normal(d, shape),
    "bits": lambda d, shape, _: make.finite_bits(d, shape),
    "wide": lambda d, shape, _: make.wide(d, shape),
    "midpoints": make.midpoints,
    "amax_edges": make.amax_edges,
    "floors": make.floors,
    "zero": lambda _d, shape, _: np.zeros(shape, dtype=np.uint16),
    "zero_groups": lambda d, shape, _: make.zero_groups(d, shape),
    "signed_zeros": lambda d, shape, _: make.signed_zeros(d, shape),
    "subnormals": lambda d, shape, _: make.subnormals(d, shape),
    "one_hot": lambda d, shape, _: make.one_hot(d, shape),
    "constant": lambda d, shape, _: make.constant(d, shape),
    "nan_channel": lambda d, shape, _: make.poisoned(d, shape, make.NAN_BF16),
    "inf_channel": lambda d, shape, _: make.poisoned(d, shape, (0x7F80, 0xFF80)),
}


def _fold_edge(target: Target) -> int:
    """Exponent from which on the weight of an all-zero head, times its scale (FP8) and 2**-6, is a BF16 subnormal."""
    return -127 + 6 - (target.low if target is FP8 else 0)


KEY: Mapping[str, Fill] = {
    "normal": Q["normal"],
    "wide": lambda d, shape, _: make.wide(d, shape, low=-20, high=20),
    "constant": Q["constant"],
    "large_mean": lambda d, shape, _: make.large_mean(d, shape),
    "cancelling": lambda d, shape, _: make.cancelling(d, shape),
    "tiny": lambda d, shape, _: make.normal(d, shape, center=-14, spread=6),
    "huge": lambda d, shape, _: make.huge(d, shape),
    "zero": Q["zero"],
    "signed_zeros": Q["signed_zeros"],
    "subnormals": Q["subnormals"],
    "one_hot": Q["one_hot"],
    "nan_channel": Q["nan_channel"],
    "inf_channel": Q["inf_channel"],
    "mixed": lambda d, shape, _: _mixed(d, shape),
}


def _mixed(draws: Draws, shape: Shape) -> Bits:
    """Rows by turns of 40 binades, ordinary, of 16 binades, and with sums that cancel."""
    kinds = (
        make.wide(draws, shape, low=-20, high=20),
        make.normal(draws, shape),
        make.wide(draws, shape, low=-8, high=8),
        make.cancelling(draws, shape),
    )
    return np.where(
        np.arange(shape[0])[:, None] % 2 == 0, kinds[0], np.choose(np.arange(shape[0])[:, None] // 2 % 3, kinds[1:])
    )


HEAD_WEIGHTS: Mapping[str, Fill] = {
    "normal": Q["normal"],
    "bits": lambda d, shape, _: make.any_bits(d, shape),
    "specials": lambda d, shape, _: make.specials(d, shape),
    "tiny": lambda d, shape, _: make.wide(d, shape, low=-126, high=-70),
    "fold_edges": lambda d, shape, target: make.significands(d, shape, _fold_edge(target)),
}
NORM_W: Mapping[str, Fill] = {
    "normal": lambda d, shape, _: make.truncated(1.0 + d.bell("value", shape) / 8, F32),
    "ones": lambda _d, shape, _: make.exact_f32(np.ones(shape)),
    "zero": lambda _d, shape, _: make.exact_f32(np.zeros(shape)),
    "wide": lambda d, shape, _: make.wide(d, shape, F32, low=-12, high=12),
    "tiny": lambda d, shape, _: make.wide(d, shape, F32, low=-36, high=-12),
    "huge": lambda d, shape, _: make.wide(d, shape, F32, low=94, high=122),
}
NORM_B: Mapping[str, Fill] = {
    "normal": lambda d, shape, _: make.normal(d, shape, F32, center=-3, spread=1),
    "zero": NORM_W["zero"],
    "negative_zero": lambda _d, shape, _: make.exact_f32(np.full(shape, -0.0)),
    "midpoints": lambda d, shape, target: make.midpoints(d, shape, target, F32),
    "amax_edges": lambda d, shape, target: make.amax_edges(d, shape, target, F32),
    "floors": lambda d, shape, target: make.floors(d, shape, target, F32),
    "pow2_edges": lambda d, shape, target: make.amax_edges(
        d, shape, Target(target.format, POW2_EXPONENTS[0], POW2_EXPONENTS[-1], ()), F32, range(1, 9)
    ),
}
CACHE: Mapping[str, Fill] = {
    "bytes": lambda d, shape, _: (d.words("bytes", shape) >> np.uint64(56)).astype(np.uint8),
    "zero": lambda _d, shape, _: np.zeros(shape, dtype=np.uint8),
    "ones": lambda _d, shape, _: np.full(shape, 0xFF, dtype=np.uint8),
}


NEGATIVE = (-1, -64, -65, -(1 << 63), -128, -2, -(1 << 32))
"""Every one means "skip"; some become a valid page or position by a division or a truncation to 32 bits."""

Slots = Callable[[Draws, int, int, int], "Ints"]


def _permuted(draws: Draws, batch: int, pages: int, _: int) -> Ints:
    return draws.order("slots", pages * PAGE - 1)[:batch]


def _skipping(kept: Callable[[Ints], npt.NDArray[np.bool_]]) -> Slots:
    def slots(draws: Draws, batch: int, pages: int, stride: int) -> Ints:
        index = np.arange(batch)
        negative = np.array(NEGATIVE)[index % len(NEGATIVE)]
        return np.where(kept(index), _permuted(draws, batch, pages, stride), negative)

    return slots


def _page_edges(_d: Draws, batch: int, pages: int, _: int) -> Ints:
    """Last of a page, first of the next, last of that page, ..., then the very first slot, then those inside."""
    firsts = np.arange(pages) * PAGE
    edges = np.stack([firsts, firsts + PAGE - 1], axis=1).ravel()
    inner = np.setdiff1d(np.arange(pages * PAGE), edges)
    return np.concatenate([np.roll(edges, -1), inner])[:batch]


def _far_pages(draws: Draws, batch: int, pages: int, stride: int) -> Ints:
    """Pages around the byte offsets 2**31 and 2**32 and their images under 32-bit arithmetic, by turns."""
    limits = [-(-limit // stride) for limit in (1 << 31, 1 << 32)]
    around = {0, pages - 1} | {limit + step for limit in limits for step in (-1, 0)}
    chosen = np.array(sorted(page for page in around if 0 <= page < pages))
    position = draws.order("slots", PAGE)
    index = np.arange(batch)
    return chosen[index % len(chosen)] * PAGE + position[index // len(chosen) % PAGE]


SLOTS: Mapping[str, Slots] = {
    "permuted": _permuted,
    "in_order": lambda _d, batch, _p, _s: np.arange(batch),
    "reversed": lambda _d, batch, pages, _s: pages * PAGE - 1 - np.arange(batch),
    "page_edges": _page_edges,
    "far_pages": _far_pages,
    "skip_first": _skipping(lambda index: index > 0),
    "skip_last": _skipping(lambda index: index < index[-1]),
    "skip_even": _skipping(lambda index: index % 2 == 1),
    "skip_odd": _skipping(lambda index: index % 2 == 0),
    "skip_most": _skipping(lambda index: index % 7 == 3),
    "skip_all": _skipping(lambda index: index < 0),
}
"""Regimes with negative slots leave the last slot of the cache alone, where a wrapped -1 would land."""

REGIMES: Mapping[str, tuple[str, ...]] = {
    "q": tuple(Q),
    "key": tuple(KEY),
    "head_weights": tuple(HEAD_WEIGHTS),
    "norm_w": tuple(NORM_W),
    "norm_b": (*NORM_B, *AIMED, TOKENS),
    "slots": tuple(SLOTS),
    "cache": tuple(CACHE),
}


def regime(case: Case, piece: str) -> str:
    """The regime of a piece, the first of `REGIMES` where the case does not name it."""
    return case.regimes.get(piece, REGIMES[piece][0])


def inputs(case: Case) -> dict[str, Bits]:
    """Logical bit patterns of every input tensor and of the cache as it is before the run.

    Shapes: q uint16 [B, 32, 128], projected uint16 [B, width], norm_w and norm_b uint32 [128], slots uint64 [B] (int64
    bits), cache uint8 [pages, page bytes]. Columns of `projected` that are neither key nor weights are arbitrary bits.
    """
    batch, (target, group) = tensors.whole(case, "batch"), quantised(case)
    groups = batch * HEADS * (DIM // group)
    q = Q[regime(case, "q")](Draws(case.seed, "q"), (groups, group), target)
    beside = beside_query(case, tensors.rows(case), float(tensors.axis(case, "eps")))
    return {"q": q.reshape(batch, HEADS, DIM), **beside}


def quantised(case: Case) -> tuple[Target, int]:
    """The quantisation of query and key, and how many channels share a scale."""
    return (FP4, BLOCK) if tensors.is_fp4(case) else (FP8, DIM)


def beside_query(case: Case, row: Mapping[str, int], eps: float) -> dict[str, Bits]:
    """Everything but the query, as `inputs` gives it; any pair with this index key uses it.

    Args:
        case: whose pieces key, head_weights, norm_w, norm_b, slots and cache are filled.
        row: `width`, `key_at`, `weight_at` of the projected row, in elements.
        eps: added to the key's variance.
    """
    batch, (target, group) = tensors.whole(case, "batch"), quantised(case)

    def fill(piece: str, table: Mapping[str, Fill], shape: tuple[int, int]) -> Bits:
        return table[regime(case, piece)](Draws(case.seed, piece), shape, target)

    projected = make.any_bits(Draws(case.seed, "projected"), (batch, row["width"]))
    key, weight = row["key_at"], row["weight_at"]
    projected[:, key : key + DIM] = fill("key", KEY, (batch, DIM))
    projected[:, weight : weight + HEADS] = fill("head_weights", HEAD_WEIGHTS, (batch, HEADS))
    pages, per_group = tensors.pages(case), DIM // group
    norm_w = fill("norm_w", NORM_W, (per_group, group)).ravel()
    slots = SLOTS[regime(case, "slots")](Draws(case.seed, "slots"), batch, pages, tensors.page_stride(case))
    rounds = tensors.axis(case, "key_round") == "bf16"
    if (name := regime(case, "norm_b")) == TOKENS:
        keys = projected[slots >= 0, key : key + DIM]
        norm_b = aimed.tokens(keys, norm_w, eps, target, group, rounds=rounds)
    elif name in AIMED:
        goal = aimed.goals(Draws(case.seed, "norm_b"), (per_group, group), target, name=name, rounds=rounds)
        norm_b = aimed.bias(goal, aimed.normalised(projected[0, key : key + DIM], norm_w, eps))
    else:
        norm_b = fill("norm_b", NORM_B, (per_group, group)).ravel()
    return {
        "projected": projected,
        "norm_w": norm_w,
        "norm_b": norm_b,
        "slots": slots.astype(np.int64).view(np.uint64),
        "cache": fill("cache", CACHE, (pages, tensors.page_bytes(case))),
    }


def check(case: Case) -> list[tuple[str, str]]:
    """What is wrong with the combination of axes and regimes, as (path below the case, problem) pairs."""
    found = []
    batch, pages, stride = tensors.whole(case, "batch"), tensors.pages(case), tensors.page_stride(case)
    if tensors.is_fp4(case) and tensors.axis(case, "scale") == "f32":
        found.append(("axes.scale", 'an fp4 page holds UE8M0 scale bytes: write scale = "mx", got "f32"'))
    if batch > (room := pages * PAGE - 1):
        found.append(("axes.pages", f"{pages} pages have room for {room} requests, got batch={batch}"))
    if stride < tensors.page_bytes(case):
        found.append(("axes.page_stride", f"a page has {tensors.page_bytes(case)} bytes, got page_stride={stride}"))
    if stride % 16:
        found.append(("axes.page_stride", f"must be a multiple of 16 bytes, got {stride}"))
    if regime(case, "slots") == "far_pages":
        last = (pages - 1) * stride
        if last < 1 << 32:
            problem = f"far_pages needs a page that starts at byte 2**32 or beyond, the last one starts at {last}"
            found.append(("regimes.slots", problem))
        if batch > 4 * PAGE:
            found.append(("axes.batch", f"far_pages has room for {4 * PAGE} requests, got {batch}"))
    return found
