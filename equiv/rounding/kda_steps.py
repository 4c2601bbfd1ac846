"""How each rounding point of `kda` may be computed: functions on float32 bit patterns that broadcast.

The groups at the end (`SILU`, `NORMALISED`, ...) are what the rows of the ledger offer, name -> function, declarable
ones first. BF16 values travel as the float32 that they are. Formulas: spec kda 1.3 to 1.9.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp
from equiv.rounding import special
from equiv.rounding.conversions import Mode, named, widen
from equiv.rounding.formats import BF16, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.rounding.ledger import Step

U32 = npt.NDArray[np.uint32]

LOG2E: Final = np.uint32(0x3FB8AA3B)
MINUS_LOG2E: Final = np.uint32(0xBFB8AA3B)
ONE: Final = np.uint32(special.ONE)
TINY: Final = np.uint32(0x358637BD)
"""1e-6, added to the sum of squares of q and k."""
ONE_128TH: Final = np.uint32(0x3C000000)

_to_bf16 = named("bf16.f32.rn")


def keep(bits: npt.ArrayLike) -> U32:
    """What is there, unrounded."""
    return np.asarray(bits, dtype=np.uint32)


def rounded(bits: npt.ArrayLike) -> U32:
    """The nearest BF16 value, `cvt.rn.bf16.f32`."""
    return widen(_to_bf16(bits), BF16)


def cut(bits: npt.ArrayLike) -> U32:
    """The BF16 value towards zero: what a store of the upper half would keep."""
    x = np.asarray(bits, dtype=np.uint32)
    return np.where(fp.is_nan(x), np.uint32(0x7FFF0000), x & np.uint32(0xFFFF0000))


def _shifted(bits: npt.ArrayLike) -> U32:
    return widen(bits, BF16)


def _decoded(bits: npt.ArrayLike) -> U32:
    return fp.canonical(fp.bits_of(decode(bits, BF16)))


def _copied(bits: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    return np.asarray(bits, dtype=np.uint16)


def _reencoded(bits: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Widened and rounded again: a NaN comes out as 0x7fff."""
    return np.asarray(_to_bf16(widen(bits, BF16)), dtype=np.uint16)


def exponential(x: npt.ArrayLike, *, ftz: bool = False) -> U32:
    """`ex2.approx(rn(x * log2 e))`, what Triton makes of `tl.exp`."""
    return special.ex2(fp.mul(x, LOG2E), ftz=ftz)


def _grown(x: npt.ArrayLike) -> U32:
    """1 + exp(-x); the sign goes into the constant."""
    return fp.add(special.ex2(fp.mul(x, MINUS_LOG2E), ftz=False), ONE)


def _double(function: Callable[..., npt.NDArray[np.float64]]) -> Step:
    """A formula in float64 rounded to float32: as if every instruction in it were exact."""

    def step(*operands: npt.ArrayLike) -> U32:
        with np.errstate(all="ignore"):
            return fp.canonical(fp.bits_of(function(*(fp.floats(x).astype(np.float64) for x in operands))))

    return step


def _sigmoid_divided(x: npt.ArrayLike) -> U32:
    return special.div_full(ONE, _grown(x), ftz=False)


def _sigmoid_reciprocal(x: npt.ArrayLike) -> U32:
    return special.rcp(_grown(x), ftz=True)


def _silu_divided(x: npt.ArrayLike) -> U32:
    return special.div_full(x, _grown(x), ftz=False)


def _silu_reciprocal(x: npt.ArrayLike) -> U32:
    return fp.mul(x, special.rcp(_grown(x), ftz=True))


def _root(n: npt.ArrayLike) -> U32:
    return special.sqrt(n, ftz=True)


def _key_divided(x: npt.ArrayLike, n: npt.ArrayLike) -> U32:
    return special.div_full(x, _root(n), ftz=False)


def _key_reciprocal(x: npt.ArrayLike, n: npt.ArrayLike) -> U32:
    return fp.mul(x, special.rcp(_root(n), ftz=True))


def _key_rsqrt(x: npt.ArrayLike, n: npt.ArrayLike) -> U32:
    return fp.mul(special.rsqrt(n, ftz=True), x)


def _query_divided(x: npt.ArrayLike, n: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return fp.mul(_key_divided(x, n), scale)


def _query_reciprocal(x: npt.ArrayLike, n: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return fp.mul(_key_reciprocal(x, n), scale)


def _query_rsqrt(x: npt.ArrayLike, n: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return fp.mul(fp.mul(special.rsqrt(n, ftz=True), scale), x)


def _rstd_divided(n: npt.ArrayLike) -> U32:
    return special.div_full(ONE, _root(n), ftz=False)


def _rstd_reciprocal(n: npt.ArrayLike) -> U32:
    return special.rcp(_root(n), ftz=True)


def _mean_added(total: npt.ArrayLike, eps: npt.ArrayLike) -> U32:
    return fp.add(fp.mul(total, ONE_128TH), eps)


def _mean_fused(total: npt.ArrayLike, eps: npt.ArrayLike) -> U32:
    return fp.fma(total, ONE_128TH, eps)


def _mean_alone(total: npt.ArrayLike, _eps: npt.ArrayLike) -> U32:
    return fp.mul(total, ONE_128TH)


def _mul_add(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> U32:
    return fp.add(fp.mul(a, b), c)


def fold_backward(state: U32, decays: U32, keys: U32, values: U32, *, whole: bool) -> U32:
    """S' = fma(S, D, C): walking back, C = fma(D, rn(u k), C) and then D = rn(D dec), from C = 0 and D = 1.

    Of the last token that a step has, the compiler knows D and C and makes C = fma(u, k, 0): a product that underflows
    keeps its sign, which is lost where rn(u k) is added to 0.

    Args:
        state: `[..., V, K]` bits of S.
        decays: `[n, ..., K]`, oldest token first.
        keys: the same, normalised.
        values: `[n, ..., V]`, the corrections u.
        whole: these are all tokens of the step.
    """
    total, product = np.zeros_like(state), np.full_like(decays[0], ONE)
    for back, (dec, k, u) in enumerate(zip(decays[::-1], keys[::-1], values[::-1], strict=True)):
        if whole and not back:
            total = fp.fma(u[..., :, None], k[..., None, :], total)
        else:
            total = fp.fma(product[..., None, :], fp.mul(u[..., :, None], k[..., None, :]), total)
        product = fp.mul(product, dec)
    return fp.fma(state, product[..., None, :], total)


def fold_forward(state: U32, decays: U32, keys: U32, values: U32, *, whole: bool) -> U32:  # noqa: ARG001  as the other
    """The recurrence again with the recorded corrections, token by token: S = fma(k, u, rn(S dec))."""
    for dec, k, u in zip(decays, keys, values, strict=True):
        state = fp.fma(k[..., None, :], u[..., :, None], fp.mul(state, dec[..., None, :]))
    return state


def _group(**steps: Step) -> Mapping[str, Step]:
    """Steps by name; `_` in a keyword stands for the dot of an instruction."""
    return MappingProxyType({name.replace("_", "."): step for name, step in steps.items()})


def _both(function: Step) -> Mapping[str, Step]:
    """An operation of its own: to nearest, and towards zero."""
    return MappingProxyType({"rn": function, "rz": partial(function, mode=Mode.RZ)})


WIDEN: Final = _group(shift=_shifted, decode=_decoded)
COPY: Final = _group(copy=_copied, encode=_reencoded)
KEEP: Final = _group(keep=keep)
ROUND: Final = _group(rn=rounded, keep=keep)
CODE: Final = _group(rn=rounded, cut=cut)
ADD: Final = _both(fp.add)
SUB: Final = _both(fp.sub)
MUL: Final = _both(fp.mul)
FMA: Final[Mapping[str, Step]] = MappingProxyType({"fma": fp.fma, "mul_add": _mul_add})
EXP: Final = _group(
    ex2_approx=exponential,
    ex2_approx_ftz=partial(exponential, ftz=True),
    correct=_double(np.exp),
)
SIGMOID: Final = _group(
    div_full=_sigmoid_divided,
    rcp=_sigmoid_reciprocal,
    correct=_double(lambda x: np.asarray(1 / (1 + np.exp(-x)))),
)
SILU: Final = _group(
    div_full=_silu_divided,
    rcp=_silu_reciprocal,
    correct=_double(lambda x: np.asarray(x / (1 + np.exp(-x)))),
)
KEY: Final = _group(
    div_full=_key_divided,
    rcp=_key_reciprocal,
    rsqrt=_key_rsqrt,
    correct=_double(lambda x, n: np.asarray(x / np.sqrt(n))),
)
QUERY: Final = _group(
    div_full=_query_divided,
    rcp=_query_reciprocal,
    rsqrt=_query_rsqrt,
    correct=_double(lambda x, n, scale: np.asarray(x / np.sqrt(n) * scale)),
)
RSTD: Final = _group(
    div_full=_rstd_divided,
    rcp=_rstd_reciprocal,
    rsqrt=partial(special.rsqrt, ftz=True),
    correct=_double(lambda n: np.asarray(1 / np.sqrt(n))),
)
MEAN: Final[Mapping[str, Step]] = MappingProxyType({"mul": _mean_added, "fma": _mean_fused, "no_eps": _mean_alone})
FOLD: Final = _group(backward=fold_backward, forward=fold_forward)
