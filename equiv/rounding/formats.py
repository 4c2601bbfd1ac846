"""Number formats as facts: width, fraction bits, bias, and how zero, infinity and NaN are coded; the rest is derived.

Nothing here or elsewhere branches on a format's name. Codes are unsigned integers; the ordered integers of `ordered`
make neighbouring values differ by one, so a distance in ulps is a difference of int64 (numpy's own ulp helper wraps in
int32). Sources: IEEE 754, OCP OFP8 and OCP MX v1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

UNORDERED: Final = 2**62
"""The distance between a NaN and anything that the NaN policy does not call equal to it."""


@dataclass(frozen=True, slots=True)
class Format:
    """One binary format; `magnitude` below means the code without its sign bit.

    Attributes:
        width: bits of a code.
        fraction: stored fraction bits.
        bias: exponent bias.
        signed: the top bit of the code is a sign.
        subnormals: exponent field 0 holds zero and subnormals; False (UE8M0) makes it an ordinary exponent.
        infinity: magnitude of infinity, or None.
        nan_from: smallest magnitude that is a NaN (all above are, too), or None.
        nan: the code that conversions write for a NaN; for a format without NaN, the code they write instead.
    """

    name: str
    width: int
    fraction: int
    bias: int
    signed: bool
    subnormals: bool
    infinity: int | None
    nan_from: int | None
    nan: int

    @property
    def magnitude_mask(self) -> int:
        """Mask of the code without its sign."""
        return (1 << (self.width - int(self.signed))) - 1

    @property
    def sign_mask(self) -> int:
        """The sign bit, 0 for an unsigned format."""
        return (1 << (self.width - 1)) if self.signed else 0

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return (1 if self.subnormals else 0) - self.bias

    @property
    def largest(self) -> int:
        """Magnitude code of the largest finite number."""
        ends = [end for end in (self.infinity, self.nan_from) if end is not None]
        return min(ends) - 1 if ends else self.magnitude_mask

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy unsigned integer that carries one code."""
        return np.dtype(f"u{1 << max(0, (self.width - 1).bit_length() - 3)}")


_IEEE: Final = {"signed": True, "subnormals": True}
TF32: Final = Format("tf32", 19, 10, 127, **_IEEE, infinity=0x3FC00, nan_from=0x3FC01, nan=0x3FFFF)
"""The upper 19 bits of a 32-bit register, which is how TF32 is stored: a code is the register shifted down by 13."""
BF16: Final = Format("bf16", 16, 7, 127, **_IEEE, infinity=0x7F80, nan_from=0x7F81, nan=0x7FFF)
F16: Final = Format("f16", 16, 10, 15, **_IEEE, infinity=0x7C00, nan_from=0x7C01, nan=0x7FFF)
F32: Final = Format("f32", 32, 23, 127, **_IEEE, infinity=0x7F800000, nan_from=0x7F800001, nan=0x7FFFFFFF)
E4M3: Final = Format("e4m3", 8, 3, 7, **_IEEE, infinity=None, nan_from=0x7F, nan=0x7F)
E5M2: Final = Format("e5m2", 8, 2, 15, **_IEEE, infinity=0x7C, nan_from=0x7D, nan=0x7F)
E3M2: Final = Format("e3m2", 6, 2, 3, **_IEEE, infinity=None, nan_from=None, nan=0x1F)
E2M3: Final = Format("e2m3", 6, 3, 1, **_IEEE, infinity=None, nan_from=None, nan=0x1F)
E2M1: Final = Format("e2m1", 4, 1, 1, **_IEEE, infinity=None, nan_from=None, nan=0x7)
UE8M0: Final = Format("ue8m0", 8, 0, 127, signed=False, subnormals=False, infinity=None, nan_from=0xFF, nan=0xFF)
UE4M3: Final = Format("ue4m3", 7, 3, 7, signed=False, subnormals=True, infinity=None, nan_from=0x7F, nan=0x7F)
"""A block scale: E4M3 without its sign bit, which the hardware ignores."""

FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {f.name: f for f in (TF32, BF16, F16, F32, E4M3, E5M2, E3M2, E2M3, E2M1, UE8M0, UE4M3)}
)


def named(name: str) -> Format:
    """The format called `name`.

    Raises:
        UsageError: no such format; the known ones are listed.
    """
    if name not in FORMATS:
        raise UsageError(f"no number format named {name!r}; known: {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def is_nan(bits: npt.ArrayLike, fmt: Format) -> npt.NDArray[np.bool_]:
    """Which codes are NaN; all False for a format without NaN."""
    magnitude = np.asarray(bits, dtype=fmt.dtype) & fmt.dtype.type(fmt.magnitude_mask)
    if fmt.nan_from is None:
        return np.zeros(magnitude.shape, dtype=bool)
    return np.asarray(magnitude >= fmt.nan_from)


def is_finite(bits: npt.ArrayLike, fmt: Format) -> npt.NDArray[np.bool_]:
    """Which codes are neither NaN nor infinite."""
    magnitude = np.asarray(bits, dtype=fmt.dtype) & fmt.dtype.type(fmt.magnitude_mask)
    return np.asarray(magnitude <= fmt.largest)


def decode(bits: npt.ArrayLike, fmt: Format) -> npt.NDArray[np.float64]:
    """Exact values of codes as float64; every format here is a subset of float64, so nothing is rounded.

    Args:
        bits: codes of `fmt`, any shape; bits above `fmt.width` must be clear.
        fmt: their format.

    Returns:
        float64 of the same shape; NaN codes give NaN, -0 gives -0.0.
    """
    code = np.asarray(bits, dtype=np.int64)
    magnitude = code & fmt.magnitude_mask
    field = magnitude >> fmt.fraction
    fraction = magnitude & ((1 << fmt.fraction) - 1)
    normal = field > 0 if fmt.subnormals else np.ones(code.shape, dtype=bool)
    significand = np.where(normal, fraction + (1 << fmt.fraction), fraction).astype(np.float64)
    exponent = np.where(normal, field - fmt.bias, fmt.emin) - fmt.fraction
    value = np.ldexp(significand, exponent.astype(np.int32))
    if fmt.infinity is not None:
        value = np.where(magnitude == fmt.infinity, np.inf, value)
    value = np.where((code & fmt.sign_mask) != 0, -value, value)
    return np.where(is_nan(code, fmt), np.nan, value)


class ZeroPolicy(StrEnum):
    """How -0 and +0 relate: one step apart, or equal."""

    DISTINCT = "distinct"
    SAME = "same"


class NanPolicy(StrEnum):
    """When two NaNs are at distance 0: only with the same bits, or always."""

    BITS = "bits"
    ANY = "any"


def ordered(bits: npt.ArrayLike, fmt: Format, zero: ZeroPolicy = ZeroPolicy.DISTINCT) -> npt.NDArray[np.int64]:
    """Codes as int64 in the order of their values, neighbours one apart.

    With `ZeroPolicy.DISTINCT` -0 is -1 and +0 is 0; with `SAME` both are 0. NaNs lie beyond the infinities.
    """
    code = np.asarray(bits, dtype=np.int64)
    magnitude = code & fmt.magnitude_mask
    below = -magnitude - (1 if zero is ZeroPolicy.DISTINCT else 0)
    return np.where((code & fmt.sign_mask) != 0, below, magnitude)


def ulp_distance(
    left: npt.ArrayLike,
    right: npt.ArrayLike,
    fmt: Format,
    *,
    zero: ZeroPolicy = ZeroPolicy.DISTINCT,
    nan: NanPolicy = NanPolicy.BITS,
) -> npt.NDArray[np.int64]:
    """Distance in representable values between two arrays of codes, exact in int64.

    Returns:
        0 where equal under the policies, `UNORDERED` where exactly one side is NaN or two NaNs are not equal by `nan`.
    """
    a = np.asarray(left, dtype=fmt.dtype)
    b = np.asarray(right, dtype=fmt.dtype)
    distance = np.abs(ordered(a, fmt, zero) - ordered(b, fmt, zero))
    nan_a, nan_b = is_nan(a, fmt), is_nan(b, fmt)
    equal_nans = (nan_a & nan_b) if nan is NanPolicy.ANY else (nan_a & nan_b & (a == b))
    distance = np.where(nan_a | nan_b, UNORDERED, distance)
    return np.where(equal_nans, 0, distance)
