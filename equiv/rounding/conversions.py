"""The `cvt` instruction on bit patterns: what each conversion does with ties, overflow, NaN, zero and subnormals.

Binding table: spec numerics section 4. The definition of every conversion is one record in `CONVERSIONS`; the two
functions that execute them (`narrow`, `widen`) read the formats' facts. The C twin is csrc/numerics.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.errors import UsageError
from equiv.rounding import formats
from equiv.rounding.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, UE8M0, Format

if TYPE_CHECKING:
    from collections.abc import Mapping

U32 = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.unsignedinteger[Any]]


class Mode(StrEnum):
    """Rounding modes in PTX's spelling: nearest even, towards zero, down, up."""

    RN = "rn"
    RZ = "rz"
    RM = "rm"
    RP = "rp"


@dataclass(frozen=True, slots=True)
class Conversion:
    """One `cvt`.

    Attributes:
        name: PTX-like, `e4m3.f32.rn.satfinite`: target, source, modifiers.
        saturates: an overflow, Inf included, gives the largest finite number; otherwise Inf (UE8M0: its NaN code).
    """

    name: str
    source: Format
    target: Format
    mode: Mode
    saturates: bool

    def __call__(self, bits: npt.ArrayLike) -> Codes:
        """Converts codes of `source`, any shape, into codes of `target`."""
        if self.target is F32:
            return widen(bits, self.source)
        return narrow(bits, self)


def _nearest(magnitude: U32, target: Format) -> U32:
    """Nearest even of float32 magnitudes (no NaN) in `target`, not saturated; the result is a magnitude code."""
    drop = 23 - target.fraction
    tie = (magnitude >> np.uint32(drop)) & np.uint32(1)
    normal = (magnitude + np.uint32((1 << (drop - 1)) - 1) + tie) >> np.uint32(drop)
    normal = normal - np.uint32((target.emin + 126) << target.fraction)
    if target.emin == F32.emin:
        return normal
    # Adding a power of two whose ulp is the target's smallest step makes the float32 adder round there.
    magic = np.uint32((target.emin - target.fraction + 23 + 127) << 23)
    subnormal = (magnitude.view(np.float32) + magic.view(np.float32)).view(np.uint32) - magic
    return np.where(magnitude < np.uint32((target.emin + 127) << 23), subnormal, normal)


def _exponent(magnitude: U32, mode: Mode) -> U32:
    """UE8M0 of float32 magnitudes (no NaN): the exponent field, for `rp` one more above a power of two."""
    field = magnitude >> np.uint32(23)
    if mode is Mode.RZ:
        return field
    # 2^-127 is code 0 and the smallest UE8M0; what lies between it and the smallest float32 normal goes up to code 1.
    above = ((magnitude & np.uint32(0x7FFFFF)) != 0) & (magnitude > np.uint32(0x400000))
    return np.asarray(field + above.astype(np.uint32))


def narrow(bits: npt.ArrayLike, conversion: Conversion) -> Codes:
    """Executes a conversion from float32 into a narrower format.

    Args:
        bits: float32 bit patterns, any shape.
        conversion: one record of `CONVERSIONS` whose source is float32.

    Returns:
        Codes in `conversion.target.dtype`, same shape.
    """
    target = conversion.target
    x = np.asarray(bits, dtype=np.uint32)
    magnitude = x & np.uint32(0x7FFFFFFF)
    nan = magnitude > np.uint32(F32.infinity or 0)
    if target.subnormals:
        with np.errstate(all="ignore"):
            code = _nearest(magnitude, target)
    else:
        code = _exponent(magnitude, conversion.mode)
    beyond = target.nan if target.infinity is None else target.infinity
    past_end = target.largest if conversion.saturates else beyond
    code = np.where(code > np.uint32(target.largest), np.uint32(past_end), code)
    if target.signed:
        code = code | ((x >> np.uint32(32 - target.width)) & np.uint32(target.sign_mask))
    return np.where(nan, np.uint32(target.nan), code).astype(target.dtype)


def widen(bits: npt.ArrayLike, source: Format) -> U32:
    """Exact float32 of codes of a narrower format.

    A NaN becomes 0x7fffffff, except that BF16 (whose widening is a shift on the GPU) keeps its bits.
    """
    if source.signed and source.bias == F32.bias:  # the top half of a float32
        return np.asarray(bits, dtype=np.uint32) << np.uint32(32 - source.width)
    value = formats.decode(bits, source)
    with np.errstate(all="ignore"):
        exact = value.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(value), np.uint32(F32.nan), exact)


def _table() -> Mapping[str, Conversion]:
    narrowing = [
        Conversion("bf16.f32.rn", F32, BF16, Mode.RN, saturates=False),
        Conversion("f16.f32.rn", F32, F16, Mode.RN, saturates=False),
        Conversion("e4m3.f32.rn.satfinite", F32, E4M3, Mode.RN, saturates=True),
        Conversion("e5m2.f32.rn.satfinite", F32, E5M2, Mode.RN, saturates=True),
        Conversion("e2m3.f32.rn.satfinite", F32, E2M3, Mode.RN, saturates=True),
        Conversion("e3m2.f32.rn.satfinite", F32, E3M2, Mode.RN, saturates=True),
        Conversion("e2m1.f32.rn.satfinite", F32, E2M1, Mode.RN, saturates=True),
        Conversion("ue8m0.f32.rz", F32, UE8M0, Mode.RZ, saturates=False),
        Conversion("ue8m0.f32.rp", F32, UE8M0, Mode.RP, saturates=False),
        Conversion("ue8m0.f32.rz.satfinite", F32, UE8M0, Mode.RZ, saturates=True),
        Conversion("ue8m0.f32.rp.satfinite", F32, UE8M0, Mode.RP, saturates=True),
    ]
    widening = [
        Conversion(f"f32.{source.name}", source, F32, Mode.RN, saturates=False)
        for source in (BF16, F16, E4M3, E5M2, E2M3, E3M2, E2M1, UE8M0)
    ]
    return MappingProxyType({c.name: c for c in narrowing + widening})


CONVERSIONS: Final = _table()
"""Every conversion by name; `CONVERSIONS["e4m3.f32.rn.satfinite"](bits)` executes it."""


def named(name: str) -> Conversion:
    """The conversion of that name.

    Raises:
        UsageError: no such conversion; the known ones are listed.
    """
    if name not in CONVERSIONS:
        raise UsageError(f"no conversion named {name!r}; known: {', '.join(sorted(CONVERSIONS))}")
    return CONVERSIONS[name]
