"""Float64 arithmetic and conversions on bit patterns, one number at a time and exact; slow, for checks and small sizes.

Every result is the exact rational value rounded once. Unlike in float32 a NaN's payload survives: an operation gives
one of its NaN operands made quiet (which one is measured on an H200 and stated at each), 0xfff8000000000000 where no
operand is a NaN. C twin: csrc/double.h, which float64 kernels use.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from equiv.rounding.conversions import Mode
from equiv.rounding.formats import BF16, F16, F32, Format

F64: Final = Format(
    "f64",
    64,
    52,
    1023,
    signed=True,
    subnormals=True,
    infinity=0x7FF << 52,
    nan_from=(0x7FF << 52) + 1,
    nan=(1 << 63) - 1,
)
FORMATS: Final = {one.name: one for one in (F16, BF16, F32, F64)}
INVALID: Final = 0xFFF8 << 48
_SIGN: Final = 1 << 63
_QUIET: Final = 1 << 51
_ONE: Final = 0x3FF << 52


def is_nan(code: int, fmt: Format = F64) -> bool:
    """Whether a code is a NaN."""
    return code & fmt.magnitude_mask > (fmt.infinity or 0)


def quiet(code: int) -> int:
    """The quiet NaN with a float64 NaN's sign and payload."""
    return code | _QUIET


def value(code: int, fmt: Format = F64) -> Fraction | float:
    """A code's exact value; a float for zeros, infinities and NaN."""
    magnitude, negative = code & fmt.magnitude_mask, bool(code & fmt.sign_mask)
    infinity = fmt.infinity or 0
    if magnitude > infinity:
        return math.nan
    if magnitude in {0, infinity}:
        return math.copysign(math.inf if magnitude else 0.0, -1 if negative else 1)
    field, fraction = magnitude >> fmt.fraction, magnitude & (1 << fmt.fraction) - 1
    significand = fraction | (1 << fmt.fraction if field else 0)
    exact = significand * Fraction(2) ** (max(field, 1) - fmt.bias - fmt.fraction)
    return -exact if negative else exact


def encode(exact: Fraction | float, fmt: Format, mode: Mode = Mode.RN) -> int:
    """The code of an exact number, rounded once; a float stands for a zero, an infinity or NaN (all ones, no sign)."""
    infinity = fmt.infinity or 0
    if isinstance(exact, float):
        if math.isnan(exact):
            return fmt.nan
        return (fmt.sign_mask if math.copysign(1, exact) < 0 else 0) | (infinity if exact else 0)
    negative, size = exact < 0, abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    exponent = max(exponent, fmt.emin)
    count, rest = divmod(size, Fraction(2) ** (exponent - fmt.fraction))
    rest /= Fraction(2) ** (exponent - fmt.fraction)
    up = {
        Mode.RN: rest > Fraction(1, 2) or (rest == Fraction(1, 2) and count % 2 == 1),
        Mode.RZ: False,
        Mode.RM: negative and rest > 0,
        Mode.RP: not negative and rest > 0,
    }[mode]
    code = int(count) + int(up) + (exponent - fmt.emin << fmt.fraction)
    if code >= infinity:
        outwards = mode is Mode.RN or mode is (Mode.RM if negative else Mode.RP)
        code = infinity if outwards else infinity - 1
    return (fmt.sign_mask if negative else 0) | code


def _invalid(operands: tuple[int, ...], code: int) -> int:
    """The first NaN of the operands made quiet, in the order given; without one the result, or the invalid NaN."""
    for operand in operands:
        if is_nan(operand):
            return quiet(operand)
    return INVALID if is_nan(code) else code


def _product(x: Fraction | float, y: Fraction | float) -> Fraction | float:
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x * y
    return _class(x) * _class(y)


def _class(x: Fraction | float) -> float:
    return x if isinstance(x, float) else math.copysign(1.0, x)


def _sum(x: Fraction | float, y: Fraction | float, mode: Mode) -> Fraction | float:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, float) and one != 0:  # infinite or NaN
            return one + (other if isinstance(other, float) else 0.0)
    if isinstance(x, float) and isinstance(y, float) and math.copysign(1, x) == math.copysign(1, y):
        return x
    total = sum((one for one in (x, y) if isinstance(one, Fraction)), Fraction(0))
    return total or (-0.0 if mode is Mode.RM else 0.0)


def fma(a: int, b: int, c: int, mode: Mode = Mode.RN) -> int:
    """Gives a * b + c; of several NaNs that of b, then of c, then of a."""
    return _invalid((b, c, a), encode(_sum(_product(value(a), value(b)), value(c), mode), F64, mode))


def add(a: int, b: int, mode: Mode = Mode.RN) -> int:
    """Gives a + b; of two NaNs the second."""
    return _invalid((b, a), encode(_sum(value(a), value(b), mode), F64, mode))


def sub(a: int, b: int, mode: Mode = Mode.RN) -> int:
    """Gives a - b; of two NaNs the second, its sign kept."""
    return add(a, b if is_nan(b) else b ^ _SIGN, mode)


def mul(a: int, b: int, mode: Mode = Mode.RN) -> int:
    """Gives a * b; of two NaNs the second."""
    return _invalid((b, a), encode(_product(value(a), value(b)), F64, mode))


def div(a: int, b: int, mode: Mode = Mode.RN) -> int:
    """Gives a / b; of two NaNs the first."""
    x, y = value(a), value(b)
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return encode(x / y, F64, mode)
    if isinstance(y, float) and not math.isnan(y):  # x / 0 and x / inf are x * inf and x * 0
        y = math.copysign(0.0 if math.isinf(y) else math.inf, y)
    return _invalid((a, b), encode(_class(x) * _class(y), F64, mode))


def rcp(a: int, mode: Mode = Mode.RN) -> int:
    """Gives 1 / a."""
    return div(_ONE, a, mode)


def sqrt(a: int, mode: Mode = Mode.RN) -> int:
    """The square root; of a number below zero it is invalid."""
    x = value(a)
    if isinstance(x, float):
        return _invalid((a,), encode(math.nan if x == -math.inf else x, F64))
    if x < 0:
        return INVALID
    scale = 2 * (64 + max(0, x.denominator.bit_length() - x.numerator.bit_length()))
    scaled = (x.numerator << scale) // x.denominator
    root = math.isqrt(scaled)
    # A root that is not exact lies between two neighbours on a grid much finer than the result's: any point there does.
    exact = root * root * x.denominator == x.numerator << scale
    return encode(Fraction(2 * root + (not exact), 1) / Fraction(2) ** (scale // 2 + 1), F64, mode)


def minimum(a: int, b: int) -> int:
    """`min.f64`: a number before a NaN, -0 below +0; of two NaNs the second."""
    return _select(a, b, larger=False)


def maximum(a: int, b: int) -> int:
    """`max.f64`: a number before a NaN, -0 below +0; of two NaNs the second."""
    return _select(a, b, larger=True)


def _select(a: int, b: int, *, larger: bool) -> int:
    if is_nan(a):
        return quiet(b) if is_nan(b) else b
    keys = [code ^ (2 * _SIGN - 1) if code & _SIGN else code | _SIGN for code in (a, b)]
    return a if is_nan(b) or (keys[0] > keys[1]) == larger else b


def negate(a: int) -> int:
    """`neg.f64`: the sign flipped, but a NaN only made quiet."""
    return quiet(a) if is_nan(a) else a ^ _SIGN


def magnitude(a: int) -> int:
    """`abs.f64`: the sign cleared, but a NaN only made quiet."""
    return quiet(a) if is_nan(a) else a & ~_SIGN


def narrow(code: int, fmt: Format, mode: Mode = Mode.RN) -> int:
    """`cvt` to a smaller format: a NaN keeps its sign and the leading bits of its payload, and becomes quiet."""
    if not is_nan(code):
        return encode(value(code), fmt, mode)
    sign = fmt.sign_mask if code & _SIGN else 0
    return sign | (fmt.infinity or 0) | (quiet(code) & (1 << 52) - 1) >> 52 - fmt.fraction


def widen(code: int, fmt: Format) -> int:
    """`cvt.f64` from a smaller format: exact; a NaN keeps its sign and payload, and becomes quiet."""
    if not is_nan(code, fmt):
        return encode(value(code, fmt), F64)
    payload = code & (1 << fmt.fraction) - 1
    return quiet((_SIGN if code & fmt.sign_mask else 0) | 0x7FF << 52 | payload << 52 - fmt.fraction)


def to_integer(code: int, bits: int, *, signed: bool, rounding: str) -> int:
    """`cvt` to an integer: saturates, as a Python integer; a NaN gives the type's top bit alone.

    Args:
        code: float64.
        bits: width of the integer.
        signed: whether it is signed.
        rounding: `rni` (nearest even), `rzi`, `rmi` or `rpi`.
    """
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    exact = value(code)
    if isinstance(exact, float):
        if math.isnan(exact):
            return low if signed else 1 << bits - 1
        return high if exact == math.inf else low if exact else 0
    whole = {"rni": round(exact), "rzi": math.trunc(exact), "rmi": math.floor(exact), "rpi": math.ceil(exact)}[rounding]
    return min(max(whole, low), high)
