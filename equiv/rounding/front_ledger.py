"""The ledger of the pair `dsa_front`: the latent's norm, the projection, then every row of `dsa_index`.

Ids are those of spec dsa 2.1; formulas: spec dsa 1.1 and 1.2. The functions on float32 bit patterns stand below.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, dsa_ledger, matrix, matrix_native, special
from equiv.rounding import dsa_steps as steps
from equiv.rounding.formats import BF16
from equiv.rounding.ledger import Ledger, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits
    from equiv.rounding.ledger import Step
    from equiv.rounding.orders import Order

U32 = npt.NDArray[np.uint32]

WIDTH: Final = fp.bits_of(1536.0)
ONE_WIDTH: Final = fp.bits_of(1.0 / 1536.0)


def _squares(order: Order, x: U32) -> U32:
    return order.seen(order.dot(x, x))


def _exact_squares(order: Order, x: U32) -> U32:
    values = fp.floats(x).astype(np.float64)
    return np.repeat(fp.bits_of((values * values).sum(axis=-1))[..., None], max(1, len(order.owner)), axis=-1)


def _fused(_mean: U32, total: U32, eps: U32) -> U32:
    return fp.fma(total, ONE_WIDTH, eps)


def _matrix(variant: str, weights: Bits, latent: Bits) -> U32:
    """Accumulators `[B, N]` of weights `[N, K]` and latents `[B, K]`: a chain of one matrix instruction from +0."""
    codes = matrix_native.fused_dot(matrix.variant(*variant.split()), weights, latent.T)
    return codes.T.astype(np.uint32)


def _rounded_once(_variant: str, weights: Bits, latent: Bits) -> U32:
    """The exact sum, rounded to float32: what an instruction without cuts between its products would give."""
    w, x = (fp.floats(conversions.widen(bits, BF16)).astype(np.float64) for bits in (weights, latent))
    return fp.bits_of(x @ w.T)


SQUARES: Final[Mapping[str, Step]] = MappingProxyType({"rn": _squares, "exact": _exact_squares})
MEAN: Final[Mapping[str, Step]] = MappingProxyType(
    {"div.rn": lambda t: fp.div(t, WIDTH), "div.full": lambda t: special.div_full(t, WIDTH, ftz=False)}
)
SHIFTED: Final[Mapping[str, Step]] = MappingProxyType(
    {
        "add": lambda mean, _, eps: fp.add(mean, eps),
        "fma": _fused,
        "rz": lambda mean, _, eps: steps.ADD["rz"](mean, eps),
    }
)
MATRIX: Final[Mapping[str, Step]] = MappingProxyType({"matrix": _matrix, "rn": _rounded_once})

_ROW = Row(
    id="",
    value="",
    source="f32",
    target="f32",
    mode="rn",
    kind="rounding",
    steps=steps.MUL,
    off="rz",
    ties="even",
    oracle="normalise_rows_kernel",
    candidate="IndexFront.row_factors, normalize",
)
_PROJECTION = replace(_ROW, oracle="project_kernel", candidate="IndexFront.multiply, reduced")

FRONT: Final = (
    replace(
        _ROW,
        id="dsa.R1",
        value="row: sum of x * x",
        steps=SQUARES,
        off="exact",
        why="order `row.squares`; squares of BF16 values are exact, so fused or not is the same",
        nan="Inf and NaN go through",
    ),
    replace(
        _ROW,
        id="dsa.R2",
        value="row: mean = sum / 1536",
        kind="variant",
        steps=MEAN,
        variants=2,
        off="div.full",
        why="no power of two: div.full is the product with fl(1/1536)",
    ),
    replace(
        _ROW,
        id="dsa.R3",
        value="row: mean + eps",
        kind="variant",
        steps=SHIFTED,
        variants=2,
        why="ptxas makes a product with fl(1/1536) of the stock division and contracts it; R2 does not happen then",
        zero="eps keeps it > 0",
    ),
    replace(
        _ROW,
        id="dsa.R4",
        value="row: rr = 1 / sqrt(mean + eps)",
        steps=steps.RSQRT,
        variants=2,
        mode="table",
        ties="",
        off="correct",
        why="MUFU.RSQ: 78 % of inputs correctly rounded",
        nan="Inf gives 0",
    ),
    replace(_ROW, id="dsa.R5", value="row: x * rr", why="an instruction of its own", zero="gradual underflow"),
    replace(
        _ROW, id="dsa.R6", value="row: (x * rr) * gamma", why="an instruction of its own", zero="gradual underflow"
    ),
    replace(
        _ROW,
        id="dsa.R7",
        value="q_c: the normalised latent",
        target="bf16",
        steps=steps.BF16_CODE,
        off="cut",
        saturation="none: Inf",
        nan="0x7fff",
        zero="sign kept; subnormals kept",
        why="what the tensor core multiplies; one rounding, after gamma",
    ),
    replace(
        _PROJECTION,
        id="dsa.R8",
        value="accumulator of 16 products after 16",
        source="bf16",
        mode="rz",
        ties="",
        steps=MATRIX,
        off="rn",
        zero="never -0",
        why="order `projection`; terms cut 25 bits below the largest, then towards zero (spec numerics 1.1)",
    ),
    replace(
        _PROJECTION,
        id="dsa.R9",
        value="partial sums of K added",
        steps=steps.ADD,
        why="order `projection`: split 2 and 4 only",
    ),
    replace(
        _PROJECTION,
        id="dsa.R10",
        value="q: the projection's output",
        target="bf16",
        steps=steps.BF16_CODE,
        off="cut",
        saturation="none: Inf",
        nan="0x7fff",
        zero="sign kept; subnormals kept",
        why="what is quantised; computed twice by the candidate, to the same bits",
    ),
)


def _shared(row: Row) -> Row:
    return replace(row, candidate=row.candidate.replace("DsaIndex", "IndexFront"))


LEDGER: Final = Ledger((*FRONT, *(_shared(row) for row in dsa_ledger.LEDGER)))
"""All rows of `dsa_front`, in the order in which they happen."""
