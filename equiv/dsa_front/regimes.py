"""Values of the pair `dsa_front`: regimes of latent, gamma and weights; what follows the query is `dsa_index`'s.

The latent is the first 1536 columns of `projected`, or `q_c` where it comes normalised. Exact control over the query
goes through `normalized`, `w_q = "selector"`: a head then quantises 128 columns of the latent as they are, and the
latent may take every regime that `dsa_index` has for its query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv import inputs as make
from equiv.dsa_front import aimed, tensors, values
from equiv.dsa_index import regimes as index
from equiv.dsa_index.tensors import whole
from equiv.geometry.dsa import DIM
from equiv.geometry.front import OUTPUTS, RANK
from equiv.inputs import Draws
from equiv.rounding.formats import BF16, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.inputs import Shape
    from equiv.records import Bits, Case

    Fill = Callable[[Draws, Shape], Bits]


def _zero_heads(draws: Draws, shape: Shape) -> Bits:
    """Weights of which every third head is zero, alternately +0 and -0."""
    head = np.arange(shape[0])[:, None] // DIM
    bits = np.where(head % 3 == 0, (head % 2) << 15, values.uniform(draws, shape, -4))
    return bits.astype(np.uint16)


def _poisoned_heads(draws: Draws, shape: Shape) -> Bits:
    """Weights of which every fifth head has a NaN in one channel."""
    bits = values.uniform(draws, shape, -4)
    bits[np.arange(77, shape[0], 5 * DIM), draws.below("column", shape[1], (1,))] = 0x7FC0
    return bits


def _small_heads(draws: Draws, shape: Shape) -> Bits:
    """Weights 108 to 139 binades smaller than ordinary ones, by head: projected heads about every floor of a scale."""
    drop = 108 + np.arange(shape[0])[:, None] // DIM
    return make.truncated(np.ldexp(decode(values.uniform(draws, shape, -4), BF16), -drop), BF16)


LATENT: Mapping[str, Fill] = {
    "normal": make.normal,
    "integers": values.integers,
    "wide": lambda d, shape: make.wide(d, shape, low=-12, high=12),
    "zero_rows": make.zero_groups,
    "signed_zeros": make.signed_zeros,
    "subnormals": make.subnormals,
    "tiny": lambda d, shape: make.normal(d, shape, center=-11, spread=4),
    "large": values.large,
    "flushed": lambda d, shape: aimed.flushed(d, shape, 0),
    "ones": lambda _, shape: make.exact_bf16(np.ones(shape)),
    "one_hot": make.one_hot,
    "mirrored": lambda d, shape: values.mirrored(make.normal(d, shape, spread=0), RANK // 2, negative=True),
    "neighbours": lambda d, shape: values.mirrored(make.normal(d, shape, spread=0), 1, negative=True),
    "nan_element": lambda d, shape: make.poisoned(d, shape, make.NAN_BF16),
    "inf_element": lambda d, shape: make.poisoned(d, shape, (0x7F80, 0xFF80)),
}
QUERY = ("bits", "midpoints", "amax_edges", "floors")
"""Regimes of `dsa_index`'s query, for the columns that share a scale behind a selector."""
W_Q: Mapping[str, Fill] = {
    "normal": lambda d, shape: values.uniform(d, shape, -4),
    "integers": values.integers,
    "wide": lambda d, shape: make.wide(d, shape, low=-12, high=12),
    "zero_heads": _zero_heads,
    "small_heads": _small_heads,
    "flushed": lambda d, shape: aimed.flushed(d, shape, 2),
    "selector": lambda _, shape: values.selector(shape),
    "mirrored": lambda d, shape: values.mirrored(values.uniform(d, shape, -4), RANK // 2, negative=False),
    "neighbours": lambda d, shape: values.mirrored(values.uniform(d, shape, -4), 1, negative=False),
    "nan_channel": _poisoned_heads,
    "overflowing": lambda d, shape: np.where(
        np.arange(shape[0])[:, None] // DIM % 4 == 1, 0x7F00, values.uniform(d, shape, -4)
    ).astype(np.uint16),
}
W_QA: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.truncated(1.0 + d.bell("value", shape) / 8, BF16),
    "ones": lambda _, shape: make.exact_bf16(np.ones(shape)),
    "zero": lambda _, shape: np.zeros(shape, dtype=np.uint16),
    "wide": lambda d, shape: make.wide(d, shape, low=-12, high=12),
    "by_lane": lambda d, shape: aimed.by_lane(d, shape, 32),
    "by_half_lane": lambda d, shape: aimed.by_lane(d, shape, aimed.HOPPER_LANES),
    "flushed": lambda d, shape: aimed.flushed(d, shape, 1),
}
SLICES = "slices"
"""Weights that are aimed at the quantisation, so they depend on the format (`equiv.dsa_front.aimed`)."""
LONE = "aimed_lone"
AIMED = (*aimed.LAYOUTS, LONE)
"""Latents that are aimed at how they are normalised, so they depend on gamma and eps (`equiv.dsa_front.aimed`)."""


REGIMES: Mapping[str, tuple[str, ...]] = {
    "latent": (*LATENT, *QUERY, *AIMED),
    "w_q": (*W_Q, SLICES),
    "w_qa": tuple(W_QA),
    **{piece: known for piece, known in index.REGIMES.items() if piece != "q"},
}


def regime(case: Case, piece: str) -> str:
    """The regime of a piece, the first of `REGIMES` where the case does not name it."""
    return case.regimes.get(piece, REGIMES[piece][0])


def inputs(case: Case) -> dict[str, Bits]:
    """Logical bit patterns of every input tensor and of the cache as it is before the run.

    Shapes: projected uint16 [B, width], q_c uint16 [B, 1536] (normalised only), w_q uint16 [4096, 1536], w_qa uint16
    [1536]; norm_w, norm_b, slots and cache as in `dsa_index`. The latent's columns of a normalised case and the columns
    of no piece are arbitrary bits.
    """
    found = index.beside_query(case, tensors.rows(case), float(tensors.axis(case, "key_eps")))
    found["w_qa"] = W_QA[regime(case, "w_qa")](Draws(case.seed, "w_qa"), (1, RANK))[0]
    latent = _latent(case, found["w_qa"])
    if tensors.is_normalized(case):
        found["q_c"] = latent
    else:
        found["projected"][:, :RANK] = latent
    if (name := regime(case, "w_q")) == SLICES:
        found["w_q"] = aimed.slices(*index.quantised(case), (OUTPUTS, RANK))
    else:
        found["w_q"] = W_Q[name](Draws(case.seed, "w_q"), (OUTPUTS, RANK))
    return found


def _latent(case: Case, gamma: Bits) -> Bits:
    batch, name, draws = whole(case, "batch"), regime(case, "latent"), Draws(case.seed, "latent")
    eps = float(tensors.axis(case, "eps"))
    if name == LONE:
        return aimed.lone_rows(draws, (batch, RANK), gamma, eps)
    if name in AIMED:
        return aimed.rows(draws, (batch, RANK), gamma, eps, aimed.LAYOUTS[name])
    if name not in QUERY:
        return LATENT[name](draws, (batch, RANK))
    target, group = index.quantised(case)
    return index.Q[name](draws, (batch * RANK // group, group), target).reshape(batch, RANK)
