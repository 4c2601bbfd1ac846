"""Ways in which kernels get a rounding point of `kda` wrong: functions on float32 bit patterns, by ledger row.

No declaration may name one. `equiv explain` runs the model with each of them until it gives the bits that a kernel
left, and tests force them to see that a check notices. Their names end the sentence "kda.8 (o = S q) were ...".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp
from equiv.rounding import kda_steps as steps
from equiv.rounding import special

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.rounding.ledger import Step

U32 = npt.NDArray[np.uint32]

BF16: Final = "rounded to BF16"
_EPS_128: Final = fp.bits_of(128e-6)
_LN2: Final = fp.bits_of(0.693147182464599609375)
_FIFTH: Final = fp.bits_of(0.2)
_SQUARED_EPS: Final = fp.bits_of(1e-12)


def _to_bf16(known: Mapping[str, Step]) -> Step:
    """The row's first step with its result rounded to BF16."""
    first = next(iter(known.values()))
    return lambda *operands: steps.rounded(first(*operands))


def _first(one: npt.ArrayLike, *_others: npt.ArrayLike) -> U32:
    """The first operand as it is: the row does nothing to it."""
    return np.asarray(one, dtype=np.uint32)


def _second(_one: npt.ArrayLike, other: npt.ArrayLike) -> U32:
    return np.asarray(other, dtype=np.uint32)


def _decayed_twice(state: npt.ArrayLike, decay: npt.ArrayLike) -> U32:
    return fp.mul(fp.mul(state, decay), decay)


def _transposed(state: npt.ArrayLike) -> U32:
    return np.asarray(np.swapaxes(np.asarray(state, dtype=np.uint32), -1, -2))


def _bf16_product(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> U32:
    return fp.add(steps.rounded(fp.mul(a, b)), c)


def _silu_product(x: npt.ArrayLike) -> U32:
    return fp.mul(x, steps.SIGMOID["div.full"](x))


def _clamped_softplus(x: npt.ArrayLike) -> U32:
    """min(log(1 + e^x) / 5, 1): times a lower bound of -5, max(-softplus(x), -5)."""
    grown = fp.mul(special.lg2(fp.add(steps.exponential(x), fp.bits_of(1.0)), ftz=False), _LN2)
    return fp.minimum(fp.mul(grown, _FIFTH), fp.bits_of(1.0))


def _mean_plus(total: npt.ArrayLike, eps: npt.ArrayLike) -> U32:
    return fp.add(fp.mul(total, steps.ONE_128TH), eps)


def _sum_with_eps_128(total: npt.ArrayLike, _eps: npt.ArrayLike) -> U32:
    return fp.add(total, _EPS_128)


def _larger(total: npt.ArrayLike, _eps: npt.ArrayLike) -> U32:
    return np.asarray(np.maximum(np.asarray(total, dtype=np.uint32), _SQUARED_EPS))  # both positive: ordered as bits


def _mean_of_sum(total: npt.ArrayLike, eps: npt.ArrayLike) -> U32:
    return fp.mul(fp.add(total, eps), steps.ONE_128TH)


def _unscaled(x: npt.ArrayLike, n: npt.ArrayLike, _scale: npt.ArrayLike) -> U32:
    normalised: U32 = steps.KEY["div.full"](x, n)
    return normalised


_LEFT_OUT: Final = {"left out": _first}
_CUT: Final = {"cut to BF16": steps.cut}

FAULTS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "kda.2": _CUT,
        "kda.4": {"taken with products rounded to BF16": _bf16_product},
        "kda.5a": {"the product of the sum and its sigmoid": _silu_product, **_LEFT_OUT},
        "kda.5": _CUT,
        "kda.13a": {
            "the sum + 128e-6, as if eps were added to a mean": _sum_with_eps_128,
            "the mean of squares + 1e-6": _mean_plus,
            "the larger of the sum and 1e-12": _larger,
            BF16: _to_bf16(steps.ADD),
        },
        "kda.13b": {**_LEFT_OUT, BF16: _to_bf16(steps.KEY)},
        "kda.13c": {**_LEFT_OUT, "left unscaled": _unscaled, BF16: _to_bf16(steps.QUERY)},
        "kda.13d": {"A_log itself": _first, BF16: _to_bf16(steps.EXP)},
        "kda.13e": {BF16: _to_bf16(steps.ADD)},
        "kda.13f": {"z alone": _second, BF16: _to_bf16(steps.MUL)},
        "kda.13g": {
            "min(softplus(a z) / 5, 1), as if a softplus were clamped to the bound": _clamped_softplus,
            BF16: _to_bf16(steps.SIGMOID),
        },
        "kda.13h": {BF16: _to_bf16(steps.MUL)},
        "kda.13i": {BF16: _to_bf16(steps.EXP)},
        "kda.13j": {"raw beta itself": _first, BF16: _to_bf16(steps.SIGMOID)},
        "kda.13k": {**_LEFT_OUT, "done twice": _decayed_twice},
        "kda.13l": {"v alone": _first, BF16: _to_bf16(steps.SUB)},
        "kda.13m": {"taken without beta": _first, BF16: _to_bf16(steps.MUL)},
        "kda.10": {BF16: steps.rounded},
        "kda.13n": {BF16: _to_bf16(steps.FMA)},
        "kda.8": _CUT,
        "kda.7a": {BF16: steps.rounded, "transposed": _transposed},
        "kda.13o": {**_LEFT_OUT, BF16: _to_bf16(steps.KEY)},
        "kda.13q": {"(sum of squares + eps) / 128": _mean_of_sum},
        "kda.13s": {BF16: _to_bf16(steps.MUL)},
        "kda.13t": {"taken without w": _first, BF16: _to_bf16(steps.MUL)},
        "kda.13u": {"SiLU, the gate times its sigmoid": _silu_product, BF16: _to_bf16(steps.SIGMOID)},
        "kda.13v": {"left ungated": _first},
    }
)
"""Ledger row -> in words, what is done instead -> the function."""
