"""Operands that matrix instructions disagree about: for the H200 probe, the second opinion and the C twin alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.rounding.conversions import Mode

if TYPE_CHECKING:
    from equiv.rounding.formats import Format
    from equiv.rounding.matrix_table import MatrixVariant

Codes = npt.NDArray[np.unsignedinteger[Any]]
Ints = npt.NDArray[np.int64]

KINDS = (
    "any", "near", "spread", "wide", "cancel", "subnormal", "sparse", "special", "overflow", "c_large", "c_small",
    "tiny", "edge", "floor",
)  # fmt: skip
"""What a tile is about; see `_tile`, of the last two `_decisive`."""


@dataclass(frozen=True)
class Tile:
    """One product: A [M, K], B [K, N], C [M, N], scales [M, K / block] and [K / block, N] or None."""

    kind: str
    a: Codes
    b: Codes
    c: Codes
    scale_a: Codes | None = None
    scale_b: Codes | None = None


def tiles(model: MatrixVariant, shape: tuple[int, int], count: int, seed: int, steps: int = 1) -> list[Tile]:
    """`count` tiles of D [M, N] = `shape` whose K is that of `steps` instructions; their kinds take turns."""
    m, n = shape
    rng = np.random.default_rng([seed, *model.instruction.encode()])
    return [_tile(model, KINDS[i % len(KINDS)], (m, n, model.k * steps), rng) for i in range(count)]


def finite(rng: np.random.Generator, fmt: Format, shape: tuple[int, ...], low: int, high: int) -> Codes:
    """Random finite codes with exponent fields in [low, high], one in four with a short significand."""
    top = fmt.largest >> fmt.fraction
    field = rng.integers(np.clip(low, 0, top), np.clip(high, 0, top), shape, endpoint=True)
    fraction = rng.integers(0, 1 << fmt.fraction, shape)
    short = rng.integers(0, 4, shape) == 0
    fraction = np.where(short, fraction & ~((1 << max(fmt.fraction - 1, 0)) - 1), fraction)
    magnitude = np.minimum(field << fmt.fraction | fraction, fmt.largest)
    sign = rng.integers(0, 2, shape) * fmt.sign_mask
    codes: Codes = (magnitude | sign).astype(fmt.dtype)
    return codes


def _tile(model: MatrixVariant, kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> Tile:
    if kind in {"edge", "floor"}:
        return _decisive(model, kind, shape, rng)
    m, n, k = shape
    fa, fb, fc = model.a, model.b, model.result.format
    tops = fa.largest >> fa.fraction, fb.largest >> fb.fraction
    spread = {"near": 1, "cancel": 1, "special": 1, "spread": 6, "wide": 20, "any": 300}.get(kind, 3)
    if kind == "any":
        a, b, c = (finite(rng, f, s, 0, 255) for f, s in ((fa, (m, k)), (fb, (k, n)), (fc, (m, n))))
    else:
        center = _centers(kind, model, tops, rng)
        a = finite(rng, fa, (m, k), center[0] - spread, center[0] + spread)
        b = finite(rng, fb, (k, n), center[1] - spread, center[1] + spread)
        c_field = center[0] - fa.bias + center[1] - fb.bias + fc.bias + 2
        away = {"c_large": 12, "c_small": -12, "cancel": -9}.get(kind, 0)
        c = finite(rng, fc, (m, n), c_field + away - spread - 4, c_field + away + spread)
    if kind == "cancel":
        half = k // 2
        a[:, half:] = a[:, :half] ^ fa.sign_mask
        b[half:] = b[:half]
        touched = rng.integers(0, 8, b.shape) == 0
        b = np.where(touched & (b & fb.magnitude_mask < fb.largest), b + 1, b).astype(fb.dtype)
    if kind in {"sparse", "tiny"}:
        a = np.where(rng.integers(0, 5, a.shape) > 0, a & fa.sign_mask, a).astype(fa.dtype)
        c = np.where(rng.integers(0, 3, c.shape) > 0, c & fc.sign_mask, c).astype(fc.dtype)
    if kind == "special":
        a, b, c = (_sprinkled(rng, codes, fmt) for codes, fmt in ((a, fa), (b, fb), (c, fc)))
    if model.row.dropped:  # the bits that the instruction must not read
        a, b = ((x << model.row.dropped | rng.integers(0, 1 << model.row.dropped, x.shape)).astype(x.dtype)
                for x in (a, b))  # fmt: skip
    if model.scales is None:
        return Tile(kind, a, b, c)
    fmt, blocks = model.scales.format, k // model.scales.block
    middle, far = fmt.bias, {"any": 300, "tiny": 60, "wide": 20}.get(kind, 2)
    sa, sb = (finite(rng, fmt, s, middle - far, middle + far) for s in ((m, blocks), (blocks, n)))
    if kind == "tiny":
        sa, sb = (finite(rng, fmt, s, middle - far - 20, middle - far + 20) for s in ((m, blocks), (blocks, n)))
    if kind == "special":
        sa[rng.integers(0, m), 0] = fmt.nan
        sb[0, rng.integers(0, n)] = 0
    return Tile(kind, a, b, c, sa, sb)


def _centers(kind: str, model: MatrixVariant, tops: tuple[int, int], rng: np.random.Generator) -> tuple[int, int]:
    """Exponent fields around which a tile's operands lie."""
    if kind == "subnormal":
        return (0, int(rng.integers(0, tops[1] + 1)))
    if kind == "overflow":
        wanted = model.result.format.bias + 1  # a product beyond the largest exponent of D
        first = int(rng.integers(max(0, tops[0] - 4), tops[0] + 1))
        return first, int(np.clip(wanted - (first - model.a.bias) + model.b.bias, 0, tops[1]))
    if kind == "tiny":
        wanted = int(rng.integers(model.result.zero_exponent - 20, model.result.zero_exponent + 16))
        first = int(rng.integers(0, tops[0] // 2 + 1))
        return first, int(np.clip(wanted - (first - model.a.bias) + model.b.bias, 0, tops[1]))
    low, high = tops[0] // 4, 3 * tops[0] // 4
    first = int(rng.integers(low, high + 1))
    wanted = int(rng.integers(-8, 9))
    return first, int(np.clip(wanted - (first - model.a.bias) + model.b.bias, 0, tops[1]))


def _sprinkled(rng: np.random.Generator, codes: Codes, fmt: Format) -> Codes:
    """One code in twelve replaced by NaN, Inf or zero, as far as the format has them."""
    specials: list[int] = [0, fmt.sign_mask]
    if fmt.infinity is not None:
        specials += [fmt.infinity, fmt.infinity | fmt.sign_mask] * 3
    if fmt.nan_from is not None:
        specials += [fmt.nan_from, fmt.nan_from | fmt.sign_mask, fmt.nan]
    chosen = rng.choice(np.array(specials), codes.shape)
    # Whole tiles without NaN, too: otherwise it would hide everything else.
    chance = int(rng.choice([12, 40, 200]))
    return np.where(rng.integers(0, chance, codes.shape) == 0, chosen, codes).astype(fmt.dtype)


def _reach(fmt: Format) -> tuple[int, int]:
    """Exponents of the least and of the largest power of two."""
    return fmt.emin - (fmt.fraction if fmt.subnormals else 0), (fmt.largest >> fmt.fraction) - fmt.bias


def _power(fmt: Format, exponent: int) -> int:
    """The code of 2^exponent, which is within reach."""
    if exponent < fmt.emin:
        return 1 << (fmt.fraction + exponent - fmt.emin)
    return (exponent + fmt.bias) << fmt.fraction


def _factors(fa: Format, fb: Format, exponent: int, rng: np.random.Generator) -> tuple[int, int]:
    """Codes of two powers of two whose product is 2^exponent, or as near to it as they reach."""
    (least_a, most_a), (least_b, most_b) = _reach(fa), _reach(fb)
    exponent = int(np.clip(exponent, least_a + least_b, most_a + most_b))
    first = int(rng.integers(max(least_a, exponent - most_b), min(most_a, exponent - least_b) + 1))
    return _power(fa, first), _power(fb, exponent - first)


def _decisive(model: MatrixVariant, kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> Tile:
    """A large term, what makes it a tie, and a small term at the last bit that is kept, or just not.

    `edge`: the small term lies at the end of the bits below the large one. `floor`: all terms lie so deep that the
    exponent of zeros decides where the small one is cut.
    """
    m, n, k = shape
    fa, fb, result, align = model.a, model.b, model.result, model.row.align
    fc, near = result.format, int(rng.integers(-2, 3))
    signs_a, signs_b = (rng.integers(0, 2, (s, 3)) for s in (m, n))
    a, b = np.zeros((m, k), dtype=fa.dtype), np.zeros((k, n), dtype=fb.dtype)
    c = np.zeros((m, n), dtype=fc.dtype)
    (least_a, most_a), (least_b, most_b) = _reach(fa), _reach(fb)
    nearest = result.mode is Mode.RN
    if kind == "floor":
        large = fc.emin - result.kept - (1 if nearest else 0)
        small = result.zero_exponent - align + near
    else:
        low, high = max(least_a + least_b + align - 4, fc.emin), min(most_a + most_b, -fc.emin)
        large = int(rng.integers(low, max(low, high) + 1))
        small = large - align + near
    sa = sb = None
    if model.scales is not None:
        scale, blocks = model.scales.format, k // model.scales.block
        sa, sb = (np.full(s, scale.bias << scale.fraction, dtype=scale.dtype) for s in ((m, blocks), (blocks, n)))
        if kind == "floor":
            sa[:, 0], sb[0] = _factors(scale, scale, large, rng)
            small -= large
            large = 0
        if model.row.group > 1:  # a group's exponent is that of its scales: each term has a group of its own
            if kind == "floor":
                sa[:, 1], sb[1] = _factors(scale, scale, small + fc.emin - result.kept, rng)
            else:
                c[:] = _power(fc, large) | rng.integers(0, 2, c.shape) * fc.sign_mask
                sa[:, 1], sb[1] = _factors(scale, scale, small, rng)
            for i, at in enumerate((0, model.scales.block)):
                if i == 1 or kind == "floor":
                    a[:, at] = _power(fa, 0) | signs_a[:, i] * fa.sign_mask
                    b[at] = _power(fb, 0) | signs_b[:, i] * fb.sign_mask
            return Tile(kind, a, b, c, sa, sb)
    where = rng.permutation(model.k)[:3]
    terms = [large, large - result.kept - 1, small]
    for at, (i, exponent) in zip(where, enumerate(terms), strict=True):
        if i == 1 and (kind == "floor" or not nearest):
            continue
        pa, pb = _factors(fa, fb, exponent, rng)
        a[:, at] = pa | signs_a[:, i] * fa.sign_mask
        b[at] = pb | signs_b[:, i] * fb.sign_mask
    if kind == "edge":  # the large term's significand decides to which side a tie goes
        a[:, where[0]] |= rng.integers(0, 1 << fa.fraction, m).astype(fa.dtype) * int(a[0, where[0]] >> fa.fraction > 0)
        if rng.integers(0, 2):
            a[:, where[0]] = 0
            c = (finite(rng, fc, (m, n), large + fc.bias, large + fc.bias)).astype(fc.dtype)
    if model.row.dropped:
        a, b = a << model.row.dropped, b << model.row.dropped
    return Tile(kind, a, b, c, sa, sb)
