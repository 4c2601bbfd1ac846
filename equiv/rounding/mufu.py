"""The special-function unit: `MUFU.RCP`, `RSQ`, `SQRT`, `EX2`, `LG2`, `TANH` as exact integer arithmetic.

All six are one scheme. The leading mantissa bits choose a row (C0, C1, C2) of a small table, x holds the 17 (`rcp`: 16)
bits below, and the result is the integer

    ((C0 << a) + R + C1 * x + C2 * square(x)) >> k

taken as a 24-bit significand (`lg2` and `tanh`: as a fixed-point number that is then truncated to 24 bits). `square` is
a squarer that cuts every partial product. Rows, squarer and rounding constants were recovered from one H200's results
by interval fitting (spec numerics 3.4): in each row exactly one pair (C1, C2) reproduces all its results, and C0 is
what the remaining interval allows with the fewest bits. The unit flushes subnormal operands and results (not `tanh`); a
NaN result is 0x7fffffff. Functions map float32 bit patterns to such of the same shape. C twin: csrc/special.h.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

NAMES: Final = ("rcp", "rsqrt", "sqrt", "ex2", "lg2", "tanh")
TABLES: Final = Path(__file__).parent / "tables"

_NAN: Final = 0x7FFFFFFF
_INF: Final = 0x7F800000
_SIGN: Final = 0x80000000
_ONE: Final = 0x3F800000
_FIELD: Final = 1 << 23
_LOW: Final = (1 << 17) - 1


@cache
def rows(name: str) -> I64:
    """The table of one function: read-only int64 [rows, 3], columns C0, C1, C2."""
    table = np.loadtxt(TABLES / f"{name}.inc", delimiter=",", usecols=(0, 1, 2), dtype=np.int64)
    table.flags.writeable = False
    return table


def square(x: I64) -> I64:
    """About x^2 / 2^19 of 17-bit integers: the sum of the cut partial products, its last bit dropped."""
    narrow = x.astype(np.int32)
    total = np.zeros_like(narrow)
    for bit in range(2, 17):
        total += (narrow >> (18 - bit)) & -(narrow >> bit & 1)
    return (total >> 1).astype(np.int64)


def _sum(name: str, row: I64, x: I64, shift: int | I64, rounding: int | I64) -> I64:
    c0, c1, c2 = np.moveaxis(rows(name)[row], -1, 0)
    squared = square(x << 1 if name == "rcp" else x)
    return np.asarray((c0 << shift) + rounding + c1 * x + c2 * squared)


def _split(bits: npt.ArrayLike) -> tuple[I64, I64, I64, npt.NDArray[np.bool_]]:
    """Magnitude, exponent field, mantissa and sign of float32 patterns."""
    x = np.asarray(bits, dtype=np.uint32).astype(np.int64)
    magnitude = x & _NAN
    return magnitude, magnitude >> 23, magnitude & (_FIELD - 1), x >= _SIGN


def _joined(result: I64, magnitude: I64) -> U32:
    return np.where(magnitude > _INF, _NAN, result).astype(np.uint32)


def _truncated(magnitude: I64, fraction: int) -> I64:
    """Float32 bits of magnitude / 2^fraction, truncated; float64 holds the integer exactly and shares the layout."""
    double = magnitude.astype(np.float64).view(np.int64)
    return np.asarray((double >> 29) - (1023 - 127 + fraction) * _FIELD)


def rcp(bits: npt.ArrayLike) -> U32:
    """`MUFU.RCP`: 128 rows; a result below 2^-126 is a zero of its sign."""
    a, field, mantissa, negative = _split(bits)
    x = mantissa & 0xFFFF
    significand = _sum("rcp", mantissa >> 16, x, 13, 0x27E7) >> 15
    result = significand + (252 - field) * _FIELD
    result = np.where((result < _FIELD) | (a == _INF), 0, result)
    result = np.where(field == 0, _INF, result)
    return _joined(result | np.where(negative, _SIGN, 0), a)


def _halved(field: I64) -> tuple[I64, I64]:
    """Whether the exponent is odd, and half of what is even."""
    odd = ~field & 1
    return odd, (field - 127 - odd) >> 1


def rsqrt(bits: npt.ArrayLike) -> U32:
    """`MUFU.RSQ`: 64 rows an octave; even powers of two are exact, apart from the polynomial.

    Zeros and subnormals give the infinity of their sign, other negative numbers NaN.
    """
    a, field, mantissa, negative = _split(bits)
    odd, half = _halved(field)
    x = mantissa & _LOW
    significand = _sum("rsqrt", odd << 6 | mantissa >> 17, x, 14, 0x3FFF) >> 16
    significand = np.where((odd == 0) & (mantissa == 0), 1 << 24, significand)
    result = np.where(a == _INF, 0, significand + (125 - half) * _FIELD)
    result = np.where(negative, _NAN, result)
    return _joined(np.where(field == 0, np.where(negative, _SIGN, 0) | _INF, result), a)


def sqrt(bits: npt.ArrayLike) -> U32:
    """`MUFU.SQRT`: 64 rows an octave. Zeros and subnormals give the zero of their sign, other negative numbers NaN."""
    a, field, mantissa, negative = _split(bits)
    odd, half = _halved(field)
    x = mantissa & _LOW
    shift = 15 - odd
    significand = _sum("sqrt", odd << 6 | mantissa >> 17, x, shift, (1 << shift) - 1) >> (shift + 2)
    result = np.where(a == _INF, _INF, significand + (126 + half) * _FIELD)
    result = np.where(negative, _NAN, result)
    return _joined(np.where(field == 0, np.where(negative, _SIGN, 0), result), a)


def ex2(bits: npt.ArrayLike) -> U32:
    """`MUFU.EX2`: 64 rows; the operand becomes fixed point with 23 fraction bits first, by truncation.

    A negative operand takes the complement of its truncated magnitude, except where that is an integer.
    """
    a, field, mantissa, negative = _split(bits)
    shift = np.clip(field - 127, -32, 8)
    significand = mantissa | _FIELD
    t = np.where(shift >= 0, significand << np.maximum(shift, 0), significand >> np.maximum(-shift, 0))
    v = np.where(negative, np.where(t % _FIELD != 0, ~t, -t), t)
    x = v & _LOW
    result = (_sum("ex2", v >> 17 & 63, x, 13, 0x17E2) >> 15) + ((v >> 23) + 126) * _FIELD
    result = np.where(result < _FIELD, 0, np.minimum(result, _INF))
    return _joined(np.where(a >= 0x43800000, np.where(negative, 0, _INF), result), a)


def lg2(bits: npt.ArrayLike) -> U32:
    """`MUFU.LG2`: exponent plus 64 rows' polynomial with 36 fraction bits, truncated to 24 bits.

    A negative sum's magnitude is its complement, so that 0.5 gives 0xbf7ffffe; one itself is apart from the polynomial.
    Zeros and subnormals of either sign give -Inf, other negative numbers NaN.
    """
    a, field, mantissa, negative = _split(bits)
    x = mantissa & _LOW
    total = ((field - 127) << 36) + (_sum("lg2", mantissa >> 17, x, 12, 0x345) >> 2)
    result = _truncated(np.where(total < 0, ~total, total), 36) | np.where(total < 0, _SIGN, 0)
    result = np.where(a == _ONE, 0, np.where(a == _INF, _INF, result))
    result = np.where(negative, _NAN, result)
    return _joined(np.where(field == 0, _SIGN | _INF, result), a)


_TANH_SPLIT: Final = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3])  # log2 of the rows of each binade from 2^-8 to 4
_TANH_FIRST: Final = np.concatenate([[0], np.cumsum(1 << _TANH_SPLIT)[:-1]])


def tanh(bits: npt.ArrayLike) -> U32:
    """`MUFU.TANH`: below 2^-8 the operand (subnormals too), from 8 on one, between them 51 rows, 40 fraction bits."""
    a, field, mantissa, negative = _split(bits)
    binade = np.clip(field - 119, 0, 10)
    split = _TANH_SPLIT[binade]
    x = mantissa >> (6 - split) & _LOW
    result = _truncated(_sum("tanh", _TANH_FIRST[binade] + (mantissa >> (23 - split)), x, 16, 0), 40)
    result = np.where(field < 119, a, np.where(field > 129, _ONE, result))
    return _joined(result | np.where(negative, _SIGN, 0), a)
