"""Matrix instructions exact to the bit: the fused, aligned, truncating sum that all of them are built from.

The terms of one sum, the products and C, are cut at a fixed number of bits below the largest exponent among them,
added exactly, and rounded once. Exponents are those of the *operands*: a product is not normalised first. No result is
-0; a NaN is the format's canonical one; subnormals are never flushed. Source: spec numerics 1.1, 1.4 and 1.5. Which
instruction has which parameters is `matrix_table`; the C twin is csrc/matrix.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equiv.errors import UsageError
from equiv.rounding import arithmetic, conversions, formats
from equiv.rounding.conversions import Mode
from equiv.rounding.formats import F16, F32, Format
from equiv.rounding.matrix_table import MatrixVariant, Result, variant

__all__ = ["MatrixVariant", "fused_dot", "variant"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Parts:
    """Decoded codes: value = significand * 2^(exponent - fraction), exactly.

    A subnormal keeps the least normal exponent and a significand below one. NaN and Inf have significand 0.

    Attributes:
        significand: signed.
        exponent: of the operand as stored.
        infinite: -1, 0 or 1.
        nan: where it is NaN.
        fraction: fraction bits of `significand`.
    """

    significand: I64
    exponent: I64
    infinite: I64
    nan: Bools
    fraction: int

    def __getitem__(self, index: Any) -> Parts:  # noqa: ANN401
        """The same index into every array."""
        arrays = (self.significand[index], self.exponent[index], self.infinite[index], self.nan[index])
        return Parts(*arrays, fraction=self.fraction)

    @property
    def zero(self) -> Bools:
        """Where the value is zero."""
        return np.asarray((self.significand == 0) & (self.infinite == 0) & ~self.nan)


def split(bits: npt.ArrayLike, fmt: Format) -> Parts:
    """Decodes codes of a format, any shape."""
    code = np.asarray(bits, dtype=np.int64)
    magnitude = code & fmt.magnitude_mask
    sign = np.where((code & fmt.sign_mask) != 0, -1, 1)
    field = magnitude >> fmt.fraction
    normal = field > 0 if fmt.subnormals else np.ones(code.shape, dtype=bool)
    significand = (magnitude & ((1 << fmt.fraction) - 1)) + np.where(normal, 1 << fmt.fraction, 0)
    exponent = np.where(normal, field - fmt.bias, fmt.emin)
    nan = formats.is_nan(code, fmt)
    infinite = np.zeros_like(code) if fmt.infinity is None else np.where(magnitude == fmt.infinity, sign, 0)
    finite = ~nan & (infinite == 0)
    return Parts(np.where(finite, sign * significand, 0), exponent, infinite, nan, fmt.fraction)


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of many sums, along axis 1: significands with `fraction` fraction bits, exponents, and which count.

    A term that does not count is zero and has no exponent.
    """

    significand: I64
    exponent: I64
    counts: Bools
    fraction: int


def _align(significand: I64, exponent: I64, fraction: int, largest: I64, align: int) -> I64:
    """Terms in units of 2^(largest - align), each cut towards zero."""
    shift = np.clip(align - fraction - (largest - exponent), -63, 62)
    magnitude = np.abs(significand)
    cut = np.where(shift >= 0, magnitude << np.maximum(shift, 0), magnitude >> np.maximum(-shift, 0))
    return np.asarray(np.sign(significand) * cut)


def _round(total: I64, exponent: I64, result: Result) -> I64:
    """Codes of total * 2^exponent, rounded once; an exact zero and a result that vanishes are +0."""
    magnitude = np.abs(total)
    # A total is below 2^53, so float64 holds it exactly and its exponent is that of the highest bit.
    top = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64) - 1 + exponent
    emin = result.format.emin
    lowest = np.maximum(top, emin)
    drop = np.clip(lowest - result.kept - exponent, -62, 63)
    down = np.maximum(drop, 0)
    code = np.where(drop >= 0, magnitude >> down, magnitude << np.maximum(-drop, 0))
    if result.mode is Mode.RN:
        rest, half = magnitude & ((np.int64(1) << down) - 1), (np.int64(1) << down) >> 1
        up = (rest > half) | ((rest == half) & ((code & 1) != 0))
        code = code + np.where((down > 0) & up, 1, 0)
    # The leading one of a normal significand counts as one step of the exponent field.
    code = (code + ((lowest - emin) << result.kept)) << (result.format.fraction - result.kept)
    infinity = result.format.infinity
    assert infinity is not None
    code = np.where(magnitude == 0, 0, np.minimum(code, infinity))
    return np.asarray(np.where((total < 0) & (code != 0), code | result.format.sign_mask, code))


def _products(a: Parts, b: Parts, scales: tuple[Parts, Parts] | None, group: int) -> Terms:
    """Terms of A [M, L] times B [L, N], [M, L / group, N]; scales [M, L / group] and [L / group, N]."""
    significand = a.significand[:, :, None] * b.significand[None]
    exponent = a.exponent[:, :, None] + b.exponent[None]
    counts = significand != 0
    fraction = a.fraction + b.fraction
    if group > 1:
        # The sum of a group is exact: its products are brought to one exponent, which is then that of the scales alone.
        least = int(a.exponent.min() + b.exponent.min())
        m, length, n = significand.shape
        exact = (significand << (exponent - least)).reshape(m, length // group, group, n)
        counts = counts.reshape(exact.shape).any(axis=2)
        significand = exact.sum(axis=2)
        exponent = np.full(significand.shape, np.int64(0))
        fraction -= least
    if scales is not None:
        scale_a, scale_b = scales
        significand = significand * scale_a.significand[:, :, None] * scale_b.significand[None]
        exponent = exponent + scale_a.exponent[:, :, None] + scale_b.exponent[None]
        counts = counts & ~scale_a.zero[:, :, None] & ~scale_b.zero[None]
        fraction += scale_a.fraction + scale_b.fraction
    return Terms(significand, exponent, counts, fraction)


def _specials(a: Parts, b: Parts, c: Parts, scale_nan: Bools) -> tuple[Bools, Bools, Bools]:
    """Where a sum of A [M, L] times B [L, N] plus C [M, N] is NaN, +Inf, -Inf by its operands."""
    infinite = (a.infinite != 0)[:, :, None] | (b.infinite != 0)[None]
    sign = np.where(a.infinite != 0, a.infinite, np.sign(a.significand))[:, :, None] * np.where(
        b.infinite != 0, b.infinite, np.sign(b.significand)
    )
    nan = (a.nan[:, :, None] | b.nan[None] | (infinite & (a.zero[:, :, None] | b.zero[None]))).any(axis=1)
    plus = (infinite & (sign > 0)).any(axis=1) | (c.infinite > 0)
    minus = (infinite & (sign < 0)).any(axis=1) | (c.infinite < 0)
    return nan | c.nan | scale_nan | (plus & minus), plus, minus


def fused_sum(model: MatrixVariant, a: Parts, b: Parts, c: Codes, scales: tuple[Parts, Parts] | None) -> Codes:
    """One fused step: D [M, N] = A [M, L] times B [L, N] plus C [M, N]; scales by term, [M, T] and [T, N]."""
    result, align = model.result, model.row.align
    fmt = result.format
    addend = split(c, fmt)
    terms = _products(a, b, scales, model.row.group)
    exponents = np.where(terms.counts, terms.exponent, result.zero_exponent)
    exponents = np.concatenate(
        [exponents, np.where(addend.significand != 0, addend.exponent, result.zero_exponent)[:, None]], axis=1
    )
    largest = np.maximum(exponents.max(axis=1), result.zero_exponent)
    aligned = _align(terms.significand, terms.exponent, terms.fraction, largest[:, None], align)
    total = aligned.sum(axis=1) + _align(addend.significand, addend.exponent, addend.fraction, largest, align)
    code = _round(total, largest - align, result)
    scale_nan: Bools = np.zeros(code.shape, dtype=bool)
    if scales is not None:
        scale_a, scale_b = scales
        scale_nan = np.asarray((scale_a.nan[:, :, None] | scale_b.nan[None]).any(axis=1))
    nan, plus, minus = _specials(a, b, addend, scale_nan)
    infinity = fmt.infinity
    assert infinity is not None
    code = np.where(plus, infinity, np.where(minus, infinity | fmt.sign_mask, code))
    codes: Codes = np.where(nan, fmt.nan, code).astype(fmt.dtype)
    return codes


def _add(x: Codes, y: Codes, fmt: Format) -> Codes:
    """X + y to nearest, as FADD and HADD2 do."""
    if fmt is F32:
        return arithmetic.add(x, y)
    # 24 bits are enough for a sum of two 11-bit numbers to survive two roundings.
    total = arithmetic.add(conversions.widen(x, fmt), conversions.widen(y, fmt))
    return conversions.named(f"{fmt.name}.f32.rn")(total)


def _operand(model: MatrixVariant, bits: npt.ArrayLike, fmt: Format) -> Parts:
    """An operand as it is multiplied, from its elements in memory or registers."""
    codes = np.asarray(bits) >> model.row.dropped
    if model.row.unpacked:
        return split(conversions.named("f16.f32.rn")(conversions.widen(codes, fmt)), F16)
    return split(codes, fmt)


def checked(
    model: MatrixVariant,
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike | None,
    scales: tuple[npt.ArrayLike | None, npt.ArrayLike | None],
) -> tuple[Codes, Codes, Codes | None, Codes | None, Codes | None]:
    """The arguments of `fused_dot` as arrays, each of the shape and type that the instruction needs.

    Raises:
        UsageError: one is not; the text names it.
    """
    left, right = np.asarray(a), np.asarray(b)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or left.shape[1] % model.k:
        raise UsageError(
            f"{model.instruction}: A {list(left.shape)} times B {list(right.shape)}, expected [M, K] times [K, N]"
            f" with K a multiple of {model.k}"
        )
    (m, k), n = left.shape, right.shape[1]

    def array(name: str, value: npt.ArrayLike | None, fmt: Format, shape: tuple[int, int]) -> Codes:
        found = None if value is None else np.asarray(value)
        if found is None or found.shape != shape or found.dtype != fmt.dtype:
            is_ = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise UsageError(f"{model.instruction}: {name} is {is_}, expected {fmt.dtype} {list(shape)}")
        return found

    result = array("A", left, model.a, (m, k)), array("B", right, model.b, (k, n))
    addend = None if c is None else array("C", c, model.result.format, (m, n))
    scale_a, scale_b = scales
    if model.scales is None:
        if scale_a is not None or scale_b is not None:
            raise UsageError(f"{model.instruction} has no block scales")
        return *result, addend, None, None
    fmt, blocks = model.scales.format, k // model.scales.block
    return *result, addend, array("scale_a", scale_a, fmt, (m, blocks)), array("scale_b", scale_b, fmt, (blocks, n))


def _per_term(model: MatrixVariant, codes: Codes | None, axis: int) -> Parts | None:
    """Scales repeated so that each term of the whole K has its own; None without scales."""
    if codes is None or model.scales is None:
        return None
    return split(np.repeat(codes, model.scales.block // model.row.group, axis=axis), model.scales.format)


def fused_dot(
    model: MatrixVariant,
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike | None = None,
    *,
    negate: bool = False,
    scale_a: npt.ArrayLike | None = None,
    scale_b: npt.ArrayLike | None = None,
) -> Codes:
    """D = A times B plus C by a chain of instructions over K, each taking the result of the one before as its C.

    Args:
        model: the instruction.
        a: [M, K] elements of A as they lie in memory, one an array element of `model.a.dtype` (TF32: all 32 bits).
        b: [K, N] elements of B.
        c: [M, N] codes of the accumulator's format; None is zero, as wgmma's scale-d = 0.
        negate: of A and B exactly one is negated (wgmma's imm-scale -1, tcgen05's negate bits).
        scale_a: [M, K / block] codes of the scales, where the instruction has them.
        scale_b: [K / block, N].

    Returns:
        [M, N] codes of D.

    Raises:
        UsageError: shapes or types that do not fit, a K that is not a multiple of the instruction's, scales missing or
            not wanted.
    """
    left, right, addend, sa, sb = checked(model, a, b, c, (scale_a, scale_b))
    (m, depth), n = left.shape, right.shape[1]
    fmt, group = model.result.format, model.row.group
    d = np.zeros((m, n), dtype=fmt.dtype) if addend is None else addend
    x, y = _operand(model, left, model.a), _operand(model, right, model.b)
    if negate:
        x = Parts(-x.significand, x.exponent, -x.infinite, x.nan, x.fraction)
    sx, sy = _per_term(model, sa, 1), _per_term(model, sb, 0)
    for start in range(0, depth, model.k):
        total = np.zeros_like(d) if model.row.unpacked else d
        for block in model.blocks:
            k = start + np.array(block)
            terms = k[::group] // group
            scales = None if sx is None or sy is None else (sx[:, terms], sy[terms])
            total = fused_sum(model, x[:, k], y[k], total, scales)
        d = _add(d, total, fmt) if model.row.unpacked else total
    return d
