"""A slow, independent float reference: exact rationals, rounded to a format by definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """An IEEE-like format: width, fraction bits, least normal exponent, code of the canonical NaN."""

    bits: int
    fraction: int
    least: int
    nan: int

    @property
    def inf(self) -> int:
        return ((1 << self.bits - 1 - self.fraction) - 1) << self.fraction


F32 = Format(32, 23, -126, 0x7FFFFFFF)
F16 = Format(16, 10, -14, 0x7FFF)
BF16 = Format(16, 7, -126, 0x7FFF)


def value(bits: int, form: Format) -> float | Fraction:
    """The number a code stands for: a Fraction, or a float for NaN, infinities and -0."""
    sign, magnitude = bits >> form.bits - 1, bits & (1 << form.bits - 1) - 1
    if magnitude > form.inf:
        return math.nan
    if magnitude == form.inf:
        return -math.inf if sign else math.inf
    if magnitude == 0:
        return -0.0 if sign else 0.0
    exponent, fraction = magnitude >> form.fraction, magnitude & (1 << form.fraction) - 1
    significand = fraction + (1 << form.fraction if exponent else 0)
    result = Fraction(significand) * Fraction(2) ** (form.least - form.fraction + max(exponent, 1) - 1)
    return -result if sign else result


def round_to(exact: float | Fraction, form: Format, mode: str = "rn") -> int:
    """Code of an exact value in a format; `exact` is a float only for NaN, infinities and signed zeros."""
    if isinstance(exact, float):
        if math.isnan(exact):
            return form.nan
        sign = 1 if math.copysign(1, exact) < 0 else 0
        return sign << form.bits - 1 | (form.inf if math.isinf(exact) else 0)
    sign, size = int(exact < 0), abs(exact)
    exponent = max(_floor_log2(size), form.least)
    unit = Fraction(2) ** (exponent - form.fraction)
    count, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and count % 2 == 1),
        "rz": False,
        "rp": rest > 0 and not sign,
        "rm": rest > 0 and bool(sign),
    }[mode]
    steps = int(count) + up  # of the format's codes, counted from 2^exponent - 2^fraction steps
    code = steps + ((exponent - form.least) << form.fraction)
    if code >= form.inf:
        to_largest = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and bool(sign))
        code = form.inf - 1 if to_largest else form.inf
    return sign << form.bits - 1 | code


def _floor_log2(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def fma(a: int, b: int, c: int, form: Format, mode: str = "rn") -> int:
    """a * b + c with one rounding."""
    x, y, z = (value(code, form) for code in (a, b, c))
    return round_to(_sum(_product(x, y), z, mode), form, mode)


def add(a: int, b: int, form: Format, mode: str = "rn") -> int:
    """a + b with one rounding."""
    return round_to(_sum(value(a, form), value(b, form), mode), form, mode)


def mul(a: int, b: int, form: Format, mode: str = "rn") -> int:
    """a * b with one rounding."""
    return round_to(_product(value(a, form), value(b, form)), form, mode)


def _product(x: float | Fraction, y: float | Fraction) -> float | Fraction:
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x * y
    # One is zero, infinite or NaN: only its sign and class matter.
    return _class(x) * _class(y)


def _class(x: float | Fraction) -> float:
    return x if isinstance(x, float) else math.copysign(1.0, x)


def _sum(x: float | Fraction, y: float | Fraction, mode: str) -> float | Fraction:
    special = [v for v in (x, y) if isinstance(v, float) and v != 0]
    if special:
        return _class(x) + _class(y) if len(special) == 2 else special[0]
    if isinstance(x, float) and isinstance(y, float):
        same = math.copysign(1, x) == math.copysign(1, y)
        return x if same else (-0.0 if mode == "rm" else 0.0)
    total = (x if isinstance(x, Fraction) else 0) + (y if isinstance(y, Fraction) else 0)
    return Fraction(total) if total else (-0.0 if mode == "rm" else 0.0)


def flush(code: int, form: Format) -> int:
    """A subnormal becomes zero with its sign."""
    sign = 1 << form.bits - 1
    return code & sign if code & ~sign < 1 << form.fraction else code
