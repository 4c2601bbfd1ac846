"""Float32 rounding from exact fractions: slow, independent of how the package rounds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

MODES = ("rn", "rz", "rm", "rp")


def value(bits: int) -> float:
    """The float32 of a bit pattern as a Python float."""
    return float(np.uint32(bits).view(np.float32))


def rounded(exact: Fraction, mode: str, zero_sign: int = 0) -> int:
    """Float32 bits of an exact number in a rounding mode; `zero_sign` is the sign bit of an exact zero."""
    if exact == 0:
        return zero_sign << 31
    sign, size = int(exact < 0), abs(exact)
    exponent = max(math.frexp(size.numerator / size.denominator if size > Fraction(1, 2**1000) else 0.0)[1] - 1, -126)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while exponent > -126 and size < Fraction(2) ** exponent:
        exponent -= 1
    steps = size / Fraction(2) ** (exponent - 23)
    down = steps.numerator // steps.denominator
    rest = steps - down
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2 == 1),
        "rz": False,
        "rm": sign == 1 and rest > 0,
        "rp": sign == 0 and rest > 0,
    }[mode]
    magnitude = ((exponent + 126) << 23) + down + int(up)
    if magnitude >= 0x7F800000:
        away = mode == "rn" or (mode == "rm" and sign == 1) or (mode == "rp" and sign == 0)
        magnitude = 0x7F800000 if away else 0x7F7FFFFF
    return sign << 31 | magnitude
