"""Special functions as the hardware gives them: approximate `ex2`, `rcp`, `rsqrt`, `sqrt`, and divisions by `rcp`.

Each instruction is one measured period (`table`) and a rule that carries it to every other input; the forms without
`.ftz` are that raw instruction between exact scalings, as ptxas emits them. All functions map float32 bit patterns to
float32 bit patterns. Sources: spec numerics 0 (measured on one H200, every input) and 3.2 (lowering, read again from
ptxas output for sm_90a and sm_100a). That sm_100a has the same tables is an assumption. C twin: csrc/numerics.h.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from equiv.cache import cache_dir, write_atomic
from equiv.errors import RecordError, UnsupportedError, UsageError
from equiv.rounding import arithmetic as fp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]

ONE: Final = 0x3F800000
_FIELD: Final = 1 << 23
_SMALLEST_NORMAL: Final = np.uint32(0x00800000)
_TWO_126: Final = np.uint32(0x7E800000)
_TWO_24: Final = np.uint32(0x4B800000)
_QUARTER: Final = np.uint32(0x3E800000)


@dataclass(frozen=True, slots=True)
class Table:
    """One measured period: inputs `ONE + i` for i below `entries`.

    Attributes:
        file: residuals beside this module, see tables/README.md.
        base: what the residuals are relative to, evaluated in float64.
        checksum: sum of result_bits[i] * (2 i + 1) modulo 2^64, computed on the GPU from its own results.
    """

    file: str
    entries: int
    base: Callable[[F64], F64]
    checksum: int


TABLES: Final[Mapping[str, Table]] = MappingProxyType(
    {
        "ex2": Table("ex2_1_2.i8.xz", 1 << 23, np.exp2, 0x7514E0E917AB950E),
        "rcp": Table("rcp_1_2.i8.xz", 1 << 23, np.reciprocal, 0x46F42047E2DDDF03),
        "rsqrt": Table("rsqrt_1_4.i8.xz", 1 << 24, lambda x: 1.0 / np.sqrt(x), 0x50624A55CE06D70D),
        "sqrt": Table("sqrt_1_4.i8.xz", 1 << 24, np.sqrt, 0xCC77EA131D601793),
    }
)


def checksum(results: npt.NDArray[Any]) -> int:
    """The checksum of a table's results, as the GPU computed it."""
    total = 0
    for start in range(0, results.size, 1 << 20):  # pieces that stay in the processor's cache
        part = results[start : start + (1 << 20)].astype(np.uint64)
        total += int(
            np.sum(part * np.arange(2 * start + 1, 2 * (start + part.size), 2, dtype=np.uint64), dtype=np.uint64)
        )
    return total % (1 << 64)


def rebuild(name: str) -> U32:
    """The results of one period, from the residuals carried in the package.

    Raises:
        RecordError: the checksum differs: a damaged file, or a float64 library function that is not accurate enough.
    """
    spec = TABLES[name]
    packed = (Path(__file__).parent / "tables" / spec.file).read_bytes()
    residuals = np.frombuffer(lzma.decompress(packed), dtype=np.int8)
    inputs = (np.arange(spec.entries, dtype=np.uint32) + np.uint32(ONE)).view(np.float32).astype(np.float64)
    nearest = spec.base(inputs).astype(np.float32).view(np.uint32)
    results = (nearest.astype(np.int64) + residuals).astype(np.uint32)
    found = checksum(results)
    if found != spec.checksum:
        raise RecordError(f"table {name} ({spec.file}): checksum {found:#018x}, expected {spec.checksum:#018x}")
    return results


@cache
def table(name: str) -> U32:
    """Float32 result bits of one period: `ex2` and `rcp` over [1, 2), `rsqrt` and `sqrt` over [1, 4).

    Rebuilt and verified once, then mapped from the cache directory, whose file name holds the checksum.

    Returns:
        Read-only uint32, 2^23 or 2^24 entries.

    Raises:
        UsageError: no such table.
        RecordError: the table in the package is damaged.
    """
    if name not in TABLES:
        raise UsageError(f"no special-function table named {name!r}; known: {', '.join(sorted(TABLES))}")
    spec = TABLES[name]
    path = cache_dir() / f"table-{name}-{spec.checksum:016x}.npy"
    if not path.exists():
        buffer = BytesIO()
        np.save(buffer, rebuild(name))
        write_atomic(path, buffer.getvalue())
    mapped = np.load(path, mmap_mode="r")
    if mapped.dtype != np.uint32 or mapped.shape != (spec.entries,):
        raise RecordError(f"{path.name}: {mapped.dtype} {mapped.shape}, expected uint32 ({spec.entries},); delete it")
    results: U32 = mapped.view(np.ndarray)
    return results


def _magnitude(bits: npt.ArrayLike) -> tuple[U32, U32]:
    x = np.asarray(bits, dtype=np.uint32)
    return x, x & fp.MAGNITUDE


def _raw_ex2(bits: npt.ArrayLike) -> U32:
    """MUFU.EX2: depends on x in fixed point with 23 fraction bits only.

    A negative number takes the complement of its truncated magnitude, except where that is an integer.
    """
    x, a = _magnitude(bits)
    exponent = (a >> np.uint32(23)).astype(np.int64) - 127
    significand = ((a & np.uint32(_FIELD - 1)) | np.uint32(_FIELD)).astype(np.int64)
    shift = np.clip(exponent, -32, 8)
    t = np.where(shift >= 0, significand << np.maximum(shift, 0), significand >> np.maximum(-shift, 0))
    negative = (x & fp.SIGN) != 0
    v = np.where(negative, np.where(t % _FIELD != 0, -(t + 1), -t), t)
    result = table("ex2")[v & (_FIELD - 1)].astype(np.int64) + ((v >> 23) - 1) * _FIELD
    result = np.where(result < _FIELD, 0, np.minimum(result, int(fp.INF)))
    result = np.where(a >= np.uint32(0x43800000), np.where(negative, 0, int(fp.INF)), result)
    return np.where(a > fp.INF, fp.NAN, result.astype(np.uint32))


def _raw_rcp(bits: npt.ArrayLike) -> U32:
    """MUFU.RCP: the table scaled by the exponent; subnormal operands and results are zeros."""
    x, a = _magnitude(bits)
    sign = x & fp.SIGN
    scaled = (
        table("rcp")[a & np.uint32(_FIELD - 1)].astype(np.int64)
        - ((a >> np.uint32(23)).astype(np.int64) - 127) * _FIELD
    )
    result = np.where(scaled < _FIELD, 0, scaled).astype(np.uint32)
    result = np.where(a == fp.INF, np.uint32(0), np.where(a < _SMALLEST_NORMAL, fp.INF, result))
    return np.where(a > fp.INF, fp.NAN, sign | result)


def _by_parity(name: str, a: U32, direction: int) -> U32:
    """Entry of a [1, 4) table for a normal magnitude, rescaled by half its even exponent times `direction`."""
    exponent = (a >> np.uint32(23)).astype(np.int64) - 127
    parity = exponent & 1
    index = (parity << 23) | (a & np.uint32(_FIELD - 1)).astype(np.int64)
    entry = table(name)[index].astype(np.int64)
    return np.asarray(entry + direction * ((exponent - parity) >> 1) * _FIELD).astype(np.uint32)


def _raw_rsqrt(bits: npt.ArrayLike) -> U32:
    """MUFU.RSQ: +-0 and subnormals give the infinity of their sign, negative numbers NaN."""
    x, a = _magnitude(bits)
    negative = (x & fp.SIGN) != 0
    result = np.where(negative, fp.NAN, np.where(a == fp.INF, np.uint32(0), _by_parity("rsqrt", a, -1)))
    result = np.where(a < _SMALLEST_NORMAL, (x & fp.SIGN) | fp.INF, result)
    return np.where(a > fp.INF, fp.NAN, result)


def _raw_sqrt(bits: npt.ArrayLike) -> U32:
    """MUFU.SQRT: +-0 and subnormals give the zero of their sign, negative numbers NaN."""
    x, a = _magnitude(bits)
    negative = (x & fp.SIGN) != 0
    result = np.where(negative, fp.NAN, np.where(a == fp.INF, fp.INF, _by_parity("sqrt", a, 1)))
    result = np.where(a < _SMALLEST_NORMAL, x & fp.SIGN, result)
    return np.where(a > fp.INF, fp.NAN, result)


def ex2(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`ex2.approx[.ftz].f32`: without ftz, x below -126 is halved and the result squared."""
    if ftz:
        return _raw_ex2(bits)
    x, a = _magnitude(bits)
    small = ((x & fp.SIGN) != 0) & (a > np.uint32(0x42FC0000)) & (a <= fp.INF)
    y = _raw_ex2(np.where(small, fp.mul(x, np.uint32(0x3F000000)), x))
    return np.where(small, fp.mul(y, y), y)


def rcp(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`rcp.approx[.ftz].f32`: without ftz, very small and very large operands are scaled before and after."""
    if ftz:
        return _raw_rcp(bits)
    x, a = _magnitude(bits)
    scale = np.where(a > _TWO_126, _QUARTER, np.where(a < _SMALLEST_NORMAL, _TWO_24, np.uint32(ONE)))
    return fp.mul(_raw_rcp(fp.mul(x, scale)), scale)


def rsqrt(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`rsqrt.approx[.ftz].f32`: without ftz, subnormals are scaled by 2^24 before and 2^12 after."""
    return _scaled_root(bits, _raw_rsqrt, 0x45800000, ftz=ftz)


def sqrt(bits: npt.ArrayLike, *, ftz: bool) -> U32:
    """`sqrt.approx[.ftz].f32`: without ftz, subnormals are scaled by 2^24 before and 2^-12 after."""
    return _scaled_root(bits, _raw_sqrt, 0x39800000, ftz=ftz)


def _scaled_root(bits: npt.ArrayLike, raw: Callable[[npt.ArrayLike], U32], after: int, *, ftz: bool) -> U32:
    if ftz:
        return raw(bits)
    x, a = _magnitude(bits)
    small = a < _SMALLEST_NORMAL
    y = raw(np.where(small, fp.mul(x, _TWO_24), x))
    return np.where(small, fp.mul(y, np.uint32(after)), y)


def div_full(a: npt.ArrayLike, b: npt.ArrayLike, *, ftz: bool) -> U32:
    """`div.full[.ftz].f32`: both operands scaled where b is extreme, then a * MUFU.RCP(b) with one rounding."""
    x, y = np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32)
    magnitude = y & fp.MAGNITUDE
    tiny = np.uint32(ONE) if ftz else _TWO_24
    scale = np.where(magnitude > _TWO_126, _QUARTER, np.where(magnitude < _SMALLEST_NORMAL, tiny, np.uint32(ONE)))
    return fp.mul(fp.mul(x, scale, ftz=ftz), _raw_rcp(fp.mul(y, scale, ftz=ftz)), ftz=ftz)


def div_approx(a: npt.ArrayLike, b: npt.ArrayLike, *, ftz: bool) -> U32:
    """`div.approx[.ftz].f32`: a * MUFU.RCP(b); without ftz both are scaled by 2^24 where b is subnormal."""
    x, y = np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32)
    if ftz:
        return fp.mul(x, _raw_rcp(y), ftz=True)
    scale = np.where((y & fp.MAGNITUDE) < _SMALLEST_NORMAL, _TWO_24, np.uint32(ONE))
    return fp.mul(fp.mul(x, scale), _raw_rcp(fp.mul(y, scale)))


_LOG2_COEFFICIENTS: Final = (
    0x3DC6B27F,
    0xBE2C7F30,
    0x3E2FCF2A,
    0xBE374E43,
    0x3E520BF4,
    0xBE763C8B,
    0x3E93BF99,
    0xBEB8AA49,
    0x3EF6384A,
    0xBF38AA3B,
)


def log2_libdevice(bits: npt.ArrayLike) -> U32:
    """Libdevice's log2f, as Triton 3.8.0 emits it for `tl.log2` on sm_90a and sm_100a alike.

    A polynomial in ftz fmas about a mantissa in about [2/3, 4/3), not `lg2.approx`; every step is transcribed from our
    own compiler output, in its order. Zero gives -Inf, negative numbers and NaN give NaN, Inf gives Inf.
    """
    x = np.atleast_1d(np.asarray(bits, dtype=np.uint32))
    with np.errstate(all="ignore"):
        small = fp.floats(x) < fp.floats(np.uint32(_SMALLEST_NORMAL))
    scaled = np.where(small, fp.mul(x, np.uint32(0x4B000000)), x)
    bias = np.where(small, np.uint32(0xC1B80000), np.uint32(0))
    exponent = (scaled - np.uint32(1060439283)) & np.uint32(0xFF800000)
    mantissa = scaled - exponent
    base = fp.fma(fp.bits_of(exponent.view(np.int32)), np.uint32(0x34000000), bias, ftz=True)
    d = fp.add(mantissa, np.uint32(0xBF800000))
    poly: U32 = np.full(x.shape, _LOG2_COEFFICIENTS[0], dtype=np.uint32)
    for coefficient in _LOG2_COEFFICIENTS[1:]:
        poly = fp.fma(poly, d, np.uint32(coefficient), ftz=True)
    tail = fp.mul(d, fp.mul(d, poly))
    result = fp.add(base, fp.fma(d, np.uint32(0x3FB8AA3B), tail, ftz=True))
    result = np.where(scaled >= fp.INF, fp.fma(scaled, fp.INF, fp.INF, ftz=True), result)
    result = np.where((scaled & fp.MAGNITUDE) == 0, np.uint32(0xFF800000), result)
    return result.reshape(np.shape(bits))


def lg2(bits: npt.ArrayLike, *, ftz: bool) -> NoReturn:
    """`lg2.approx`: refused, because the rule that carries its table to exponents below 0 is not known.

    Raises:
        UnsupportedError: always.
    """
    del bits
    raise UnsupportedError(f"instruction:lg2.approx{'.ftz' if ftz else ''}.f32", "its values below 0.5 are not known")


def tanh(bits: npt.ArrayLike) -> NoReturn:
    """`tanh.approx`: refused, because it has not been measured.

    Raises:
        UnsupportedError: always.
    """
    del bits
    raise UnsupportedError("instruction:tanh.approx.f32", "it has not been measured")
