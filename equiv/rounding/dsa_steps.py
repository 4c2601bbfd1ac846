"""How each rounding point of `dsa_index` may be computed: functions on float32 bit patterns that broadcast.

The groups at the end (`RATIO`, `POWER`, ...) are what the rows of the ledger offer, name -> function, declarable ones
first. Formulas: spec dsa 1.4 to 1.8 and 3.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, special
from equiv.rounding.conversions import Mode
from equiv.rounding.formats import BF16, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.rounding.formats import Format
    from equiv.rounding.ledger import Step

U32 = npt.NDArray[np.uint32]

E4M3_MAX: Final = np.uint32(0x43E00000)
_ONE_448TH: Final = np.uint32(0x3B124925)
_ONE_6TH: Final = np.uint32(0x3E2AAAAB)
_ONE_128TH: Final = np.uint32(0x3C000000)
_TWO_M6: Final = np.uint32(0x3C800000)
_DIM_ROOT: Final = fp.bits_of(128.0**-0.5)
_HEADS_ROOT: Final = fp.bits_of(32.0**-0.5)


def pow2_log2(s: npt.ArrayLike) -> U32:
    """`exp2(ceil(log2(s)))` by libdevice's log2f, `cvt.rpi.ftz` and `ex2.approx.ftz`.

    Up to 22 ulps above a power of two the polynomial rounds to it, and half of the true scale comes out.
    """
    return special.ex2(fp.ceil(special.log2_libdevice(s), ftz=True), ftz=True)


def pow2_add_mask(s: npt.ArrayLike) -> U32:
    """`(bits + 0x7fffff) & 0x7f800000`: the smallest power of two >= s for every normal s."""
    return (np.asarray(s, dtype=np.uint32) + np.uint32(0x7FFFFF)) & fp.INF


def _pow2_floor(s: npt.ArrayLike) -> U32:
    return np.asarray(s, dtype=np.uint32) & fp.INF


def _pow2_above(s: npt.ArrayLike) -> U32:
    return (np.asarray(s, dtype=np.uint32) + np.uint32(0x800000)) & fp.INF


def _inverse(scale: npt.ArrayLike) -> U32:
    """Exact reciprocal of a power of two from its bits."""
    return np.uint32(254 << 23) - np.asarray(scale, dtype=np.uint32)


def _clamp(x: U32) -> U32:
    """`tl.clamp(x, -448, 448)`: `min.xorsign.abs`, so that a NaN becomes 448 with its sign."""
    return np.asarray(np.minimum(x & fp.MAGNITUDE, E4M3_MAX) | (x & fp.SIGN))


def _divide(x: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return special.div_full(x, scale, ftz=False)


def _divide_clamp(x: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return _clamp(_divide(x, scale))


def _times_inverse(x: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return fp.mul(x, _inverse(scale))


def _unrounded_quotient(x: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    """The exact x / scale to float32 by rounding to odd, on which a later rounding acts as on the exact value."""
    a, b = fp.floats(x).astype(np.float64), fp.floats(scale).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = a / b
        bits = np.asarray(exact, dtype=np.float32).view(np.uint32)
        kept = np.abs(fp.floats(bits).astype(np.float64))
        bits = np.where(kept > np.abs(exact), bits - np.uint32(1), bits)
        inexact = np.isfinite(exact) & (kept != np.abs(exact))
    return fp.canonical(bits | inexact.astype(np.uint32))


def _fp4_exponent_log2(amax: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """`clamp(ceil(log2(amax * fl(1/6))), -127, 127)` by libdevice's log2f."""
    e = fp.floats(fp.ceil(special.log2_libdevice(fp.mul(amax, _ONE_6TH)), ftz=True))
    return np.clip(np.nan_to_num(e, nan=127.0, posinf=127.0, neginf=-127.0), -127, 127).astype(np.int64)


def _fp4_exponent_bits(amax: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """E - 2 + (mantissa > 1.5), E the unbiased exponent of amax."""
    bits = np.asarray(amax, dtype=np.uint32).astype(np.int64)
    return (bits >> 23) - 127 - 2 + ((bits & 0x7FFFFF) > 0x400000)


def _fp4_exponent_floor(amax: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return (np.asarray(amax, dtype=np.uint32).astype(np.int64) >> 23) - 127 - 2


def _fp4_exponent_above(amax: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return _fp4_exponent_floor(amax) + 1


def _fp4_exponent_not_strict(amax: npt.ArrayLike) -> npt.NDArray[np.int64]:
    bits = np.asarray(amax, dtype=np.uint32)
    return _fp4_exponent_floor(bits) + ((bits & np.uint32(0x7FFFFF)) >= 0x400000)


def _mantissa_cut(bits: npt.ArrayLike, conversion: Step, kept: int) -> U32:
    codes: U32 = conversion(np.asarray(bits, dtype=np.uint32) & np.uint32(-1 << (23 - kept) & 0xFFFFFFFF))
    return codes


def _two_constants(w: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return fp.mul(fp.mul(fp.mul(w, scale), _DIM_ROOT), _HEADS_ROOT)


def _folded(w: npt.ArrayLike, scale: npt.ArrayLike) -> U32:
    return fp.mul(fp.mul(w, scale), _TWO_M6)


def _cut(bits: npt.ArrayLike, target: Format) -> npt.NDArray[np.unsignedinteger]:
    """Float32 cut off to a stored format: the rounding towards zero that a missing rounding amounts to."""
    x = np.asarray(bits, dtype=np.uint32)
    conversion = next(c for c in conversions.CONVERSIONS.values() if c.target is target and c.mode is Mode.RN)
    code = conversions.narrow(x, conversion)
    value, kept = np.abs(fp.floats(x).astype(np.float64)), np.abs(decode(code, target))
    return np.where(kept > value, code - 1, code).astype(target.dtype)


def _keep(bits: npt.ArrayLike) -> U32:
    return np.asarray(bits, dtype=np.uint32)


def _to_bf16(bits: npt.ArrayLike) -> U32:
    return conversions.widen(conversions.named("bf16.f32.rn")(bits), BF16)


def _mul_add(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> U32:
    return fp.add(fp.mul(a, b), c)


def _codes(name: str) -> Mapping[str, Step]:
    conversion = conversions.named(name)
    return MappingProxyType({"rn": conversion, "cut": partial(_cut, target=conversion.target)})


def _both(function: Step) -> Mapping[str, Step]:
    return MappingProxyType({"rn": function, "rz": partial(function, mode=Mode.RZ)})


def _correct_rsqrt(x: npt.ArrayLike) -> U32:
    with np.errstate(all="ignore"):
        return fp.bits_of(1.0 / np.sqrt(fp.floats(x).astype(np.float64)))


def _widen(bits: npt.ArrayLike) -> U32:
    return conversions.widen(bits, BF16)


def _decode(bits: npt.ArrayLike) -> U32:
    return fp.canonical(fp.bits_of(decode(bits, BF16)))


def _amax_bits(x: npt.ArrayLike) -> U32:
    """Largest magnitude along the last axis as an integer: magnitudes are ordered as their bits are, NaN on top."""
    largest: U32 = np.max(np.asarray(x, dtype=np.uint32) & fp.MAGNITUDE, axis=-1)
    return largest


def _amax_float(x: npt.ArrayLike) -> U32:
    """The same by `max.f32`, which drops a NaN."""
    return fp.canonical(
        np.fmax.reduce(fp.floats(np.asarray(x, dtype=np.uint32) & fp.MAGNITUDE), axis=-1).view(np.uint32)
    )


def _mean_of(total: npt.ArrayLike) -> U32:
    return fp.mul(total, _ONE_128TH)


WIDEN: Final[Mapping[str, Step]] = MappingProxyType({"shift": _widen, "decode": _decode})
AMAX: Final[Mapping[str, Step]] = MappingProxyType({"bits": _amax_bits, "max.f32": _amax_float})
RATIO: Final[Mapping[str, Step]] = MappingProxyType(
    {"mul": lambda a: fp.mul(a, _ONE_448TH), "div.rn": lambda a: fp.div(a, E4M3_MAX)}
)
POWER: Final[Mapping[str, Step]] = MappingProxyType({"log2": pow2_log2, "add_mask": pow2_add_mask})
POWER_FAULTS: Final[Mapping[str, Step]] = MappingProxyType(
    {"rounded down": _pow2_floor, "doubled where exact": _pow2_above}
)
APPLY: Final[Mapping[str, Step]] = MappingProxyType(
    {"div.full": _divide, "inverse": _times_inverse, "div.full.clamp": _divide_clamp, "unrounded": _unrounded_quotient}
)
SCALED: Final[Mapping[str, Step]] = MappingProxyType({"inverse": _times_inverse, "unrounded": _unrounded_quotient})
EXPONENT: Final[Mapping[str, Step]] = MappingProxyType({"log2": _fp4_exponent_log2, "bits": _fp4_exponent_bits})
EXPONENT_FAULTS: Final[Mapping[str, Step]] = MappingProxyType(
    {
        "rounded down": _fp4_exponent_floor,
        "always the next": _fp4_exponent_above,
        "one more where exact": _fp4_exponent_not_strict,
    }
)
E4M3_CODE: Final = _codes("e4m3.f32.rn.satfinite")
E4M3_FAULTS: Final[Mapping[str, Step]] = MappingProxyType(
    {"mantissa cut first": partial(_mantissa_cut, conversion=conversions.named("e4m3.f32.rn.satfinite"), kept=3)}
)
E2M1_CODE: Final = _codes("e2m1.f32.rn.satfinite")
BF16_CODE: Final = _codes("bf16.f32.rn")
FOLD: Final[Mapping[str, Step]] = MappingProxyType({"two_constants": _two_constants, "folded": _folded})
MEAN: Final[Mapping[str, Step]] = MappingProxyType({"rn": _mean_of, "unscaled": _keep})
SUB: Final = _both(fp.sub)
ADD: Final = _both(fp.add)
MUL: Final = _both(fp.mul)
RSQRT: Final[Mapping[str, Step]] = MappingProxyType(
    {
        "rsqrt.approx.ftz": partial(special.rsqrt, ftz=True),
        "rsqrt.approx": partial(special.rsqrt, ftz=False),
        "correct": _correct_rsqrt,
    }
)
AFFINE: Final[Mapping[str, Step]] = MappingProxyType({"fma": fp.fma, "mul_add": _mul_add})
TO_BF16: Final[Mapping[str, Step]] = MappingProxyType({"rn": _to_bf16, "keep": _keep})

LEFT_OUT: Final[Mapping[str, Step]] = MappingProxyType({"left out": lambda x, *_others: _keep(x)})
THROUGH_BF16: Final[Mapping[str, Step]] = MappingProxyType({"rounded to BF16": lambda a, b: _to_bf16(fp.mul(a, b))})
FOLD_FAULTS: Final[Mapping[str, Step]] = MappingProxyType(
    {
        "taken without the scale": lambda w, _scale: fp.mul(w, _TWO_M6),
        "taken without 2^-6": fp.mul,
        "taken with 2^-3.5 alone": lambda w, scale: fp.mul(fp.mul(w, scale), _DIM_ROOT),
    }
)
