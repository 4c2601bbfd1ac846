"""Quantised outputs judged as pairs: codes given their scale, the scale, what both together stand for.

A group of values shares one scale, taken from its largest magnitude (amax) by some convention. Where codes or scales
differ from the model, the conventions that people use are tried on the values themselves, and the one under which the
found bits come out is named. Sources: spec dsa 1.4 to 1.6, OCP MX 1.0 6.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from equiv.rounding import arithmetic as fp
from equiv.rounding.conversions import named, widen
from equiv.rounding.formats import BF16, Format, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from equiv.records import Bits

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

NEAR: Final = 24
"""Powers of two on either side of the model's scale that are tried where a scale is only folded into something."""
TIED: Final = 4
"""Other conventions that are named where they fit as well."""
DIVISORS: Final[Mapping[str, tuple[int, ...]]] = {"e4m3": (240, 256, 127, 224), "e2m1": (4, 8, 7, 3)}
"""What amax is divided by elsewhere: the largest code of other formats, a power of two, a range halved."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """An output of codes and the one that holds, or tells, their scales.

    Attributes:
        codes: name of the output of codes.
        scales: name of the output of scales.
        group: what shares a scale, `head`.
        values: what is quantised, float32 bits `[G, n]`.
        target: format of the codes, E4M3 or E2M1.
        floor: float32 bits of the least amax.
        open: groups `[G]` that the contract leaves undefined.
        keep: float32 bits of scales `[G]` -> what `scales` holds for them, `[G, copies]`.
        direct: `scales` holds the float32 bits themselves; else a scale is told by the power of two that is kept so.
    """

    codes: str
    scales: str
    group: str
    values: U32
    target: Format
    floor: np.uint32
    open: Mask
    keep: Callable[[U32], Bits]
    direct: bool = False

    @property
    def amax(self) -> U32:
        """Largest magnitudes `[G]`, at least the floor."""
        largest: U32 = np.maximum((self.values & fp.MAGNITUDE).max(axis=1, initial=0), self.floor).astype(np.uint32)
        return largest

    def found(self, outputs: Mapping[str, Bits]) -> tuple[Bits, Bits]:
        """Codes `[G, n]` and what is kept of the scales `[G, copies]`."""
        groups = len(self.values)
        codes, kept = np.asarray(outputs[self.codes]), np.asarray(outputs[self.scales])
        return codes.reshape(self.values.shape), kept.reshape(groups, kept.size // max(groups, 1))

    def coded(self, scale: U32) -> tuple[Bits, Bits]:
        """Codes of the values divided by scales `[G]`; of the values times their reciprocals."""
        convert, column = named(f"{self.target.name}.f32.rn.satfinite"), scale[:, None]
        with np.errstate(all="ignore"):
            return convert(fp.div(self.values, column)), convert(fp.mul(self.values, fp.div(fp.bits_of(1.0), column)))

    def right(self, codes: Bits, scale: U32) -> Mask:
        """Groups `[G]` whose codes are those of the values under a scale."""
        divided, multiplied = self.coded(scale)
        return np.asarray((codes == divided).all(axis=1) | (codes == multiplied).all(axis=1))

    def told(self, codes: Bits, kept: Bits, near: U32) -> tuple[U32, Mask]:
        """The scale `[G]` that the kept bits tell, of several the one that explains more codes; where any does."""
        if self.direct:
            own = kept[:, 0].astype(np.uint32)
            return own, np.asarray((own > 0) & (own < fp.INF))
        scale, known, best = near.copy(), np.zeros(len(near), dtype=bool), np.full(len(near), -1)
        for step in sorted(range(-NEAR, NEAR + 1), key=abs):
            exponent = (near >> np.uint32(23)).astype(np.int64) + step
            tried = (np.clip(exponent, 1, 254) << 23).astype(np.uint32)
            fits = (self.keep(tried) == kept).all(axis=1) & (exponent > 0) & (exponent < 255)
            equal = (codes == self.coded(tried)[0]).sum(axis=1)
            better = fits & (equal > best)
            scale, best, known = np.where(better, tried, scale), np.where(better, equal, best), known | fits
        return scale.astype(np.uint32), known


@dataclass(frozen=True, slots=True)
class Convention:
    """A way to a scale.

    Attributes:
        name: one or two words.
        formula: with `amax`.
        applied: (amax, format) -> float32 bits of the scale that values are divided by.
        kept: the scale that is stored or folded, where that is another one.
    """

    name: str
    formula: str
    applied: Callable[[U32, Format], U32]
    kept: Callable[[U32, Format], U32] | None = None

    def fits(self, pair: Quantised, codes: Bits, kept: Bits) -> tuple[Mask, Mask]:
        """Groups `[G]` whose kept scale is this convention's; those whose codes are its too."""
        applied = self.applied(pair.amax, pair.target)
        scale = applied if self.kept is None else self.kept(pair.amax, pair.target)
        stored = np.asarray((pair.keep(scale) == kept).all(axis=1))
        return stored, stored & pair.right(codes, applied)


def _top(target: Format) -> float:
    return float(decode(np.array(target.largest, dtype=target.dtype), target))


def _ratio(amax: U32, target: Format, divisor: float = 0.0) -> U32:
    return fp.div(amax, fp.bits_of(divisor or _top(target)))


def _power(exponent: npt.NDArray[np.int64]) -> U32:
    return (np.clip(exponent + 127, 1, 254) << 23).astype(np.uint32)


def _exponent(bits: U32, *, up: bool = False) -> npt.NDArray[np.int64]:
    """floor(log2) of positive normal numbers, or ceil."""
    above = np.asarray(up & ((bits & np.uint32(0x7FFFFF)) != 0)).astype(np.int64)
    return np.asarray((bits >> np.uint32(23)).astype(np.int64) - 127 + above)


def _ceil(amax: U32, target: Format, divisor: float = 0.0) -> U32:
    return _power(_exponent(_ratio(amax, target, divisor), up=True))


def _floor(amax: U32, target: Format) -> U32:
    return _power(_exponent(_ratio(amax, target)))


def _above(amax: U32, target: Format) -> U32:
    return _power(_exponent(_ratio(amax, target)) + 1)


def _nearest(amax: U32, target: Format) -> U32:
    with np.errstate(all="ignore"):
        exponent = np.rint(np.log2(fp.floats(_ratio(amax, target)).astype(np.float64)))
    return _power(np.nan_to_num(exponent, posinf=128, neginf=-127).astype(np.int64))


def _largest_exponent(target: Format) -> int:
    return int(np.floor(np.log2(_top(target))))


def _of_amax(amax: U32, target: Format, *, up: bool = False, less: bool = True) -> U32:
    """2^(exponent of amax), less the largest code's exponent where the format asks for it."""
    return _power(_exponent(amax, up=up) - less * _largest_exponent(target))


def _even(amax: U32, target: Format) -> U32:
    """Amax rounded to the codes' fraction first: what would round up to the next power of two takes its exponent."""
    rounded = amax + np.uint32(1 << (22 - target.fraction))
    return _of_amax(rounded, target)


def _through_bf16(amax: U32, target: Format) -> U32:
    return _ceil(widen(named("bf16.f32.rn")(amax), BF16), target)


def _one(amax: U32, _target: Format) -> U32:
    return np.full_like(amax, fp.bits_of(1.0))


def conventions(target: Format) -> tuple[Convention, ...]:
    """What scales of codes of a format are made by, the model's first."""
    top, exponent = f"{_top(target):g}", _largest_exponent(target)
    others = [
        Convention(f"ceil with {divisor}", f"2^ceil(log2(amax / {divisor}))", partial(_ceil, divisor=float(divisor)))
        for divisor in DIVISORS[target.name]
        if divisor != 1 << exponent  # that is the ceil of amax
    ]
    exact = [
        Convention(f"exact with {divisor}", f"amax / {divisor}", partial(_ratio, divisor=float(divisor)))
        for divisor in DIVISORS[target.name]
    ]
    return (
        Convention("ceil", f"2^ceil(log2(amax / {top}))", _ceil),
        Convention("floor", f"2^floor(log2(amax / {top}))", _floor),
        Convention("floor of amax", f"2^(floor(log2(amax)) - {exponent})", _of_amax),
        Convention("ceil of amax", f"2^(ceil(log2(amax)) - {exponent})", partial(_of_amax, up=True)),
        Convention("even", f"2^(floor(log2(amax rounded to {target.fraction} bits)) - {exponent})", _even),
        Convention("nearest", f"2^round(log2(amax / {top}))", _nearest),
        Convention("the next", f"the power of two above amax / {top}, also where that is one", _above),
        Convention("undivided floor", "2^floor(log2(amax))", partial(_of_amax, less=False)),
        Convention("undivided ceil", "2^ceil(log2(amax))", partial(_of_amax, up=True, less=False)),
        Convention("exact", f"amax / {top}, no power of two", _ratio),
        Convention("exact, ceil kept", f"codes by amax / {top}, its next power of two kept", _ratio, _ceil),
        Convention("exact, floor kept", f"codes by amax / {top}, the power of two below kept", _ratio, _floor),
        Convention("ceil, floor kept", "codes by the ceil convention, the power of two below kept", _ceil, _floor),
        Convention("amax in BF16", f"2^ceil(log2(BF16(amax) / {top}))", _through_bf16),
        *others,
        *exact,
        Convention("no scale", "the scale is 1", _one),
        Convention("ceil kept, not applied", "codes of the values themselves, the ceil convention kept", _one, _ceil),
        Convention("ceil applied, not kept", "codes by the ceil convention, a scale of 1 kept", _ceil, _one),
    )


def remarks(pairs: Sequence[Quantised], outputs: Mapping[str, Bits], model: Mapping[str, Bits]) -> Iterator[str]:
    """Two lines on each pair in which outputs differ from a model: the convention that fits best, and the triple.

    Args:
        pairs: what is quantised, from the same inputs.
        outputs: what a party left.
        model: the outputs under the party's declaration.
    """
    for pair in pairs:
        defined = ~pair.open
        (codes, kept), (right_codes, right_kept) = pair.found(outputs), pair.found(model)
        same = np.asarray((codes == right_codes).all(axis=1) & (kept == right_kept).all(axis=1))
        if not (~same & defined).any():
            continue
        what, total = f"{pair.codes} with {pair.scales}", int(defined.sum())
        yield f"{what}: {_fit(pair, codes, kept, defined)}"
        yield f"{what}: of {total} {pair.group}s, {_triple(pair, (codes, kept), (right_codes, right_kept), defined)}"


def _fit(pair: Quantised, codes: Bits, kept: Bits, defined: Mask) -> str:
    known = conventions(pair.target)
    found = [tuple(int((mask & defined).sum()) for mask in one.fits(pair, codes, kept)) for one in known]
    total = int(defined.sum())
    best = max(range(len(known)), key=lambda at: (found[at][1], found[at][0], -at))
    scales, both = found[best]
    usual, usual_scales = f"{known[0].name}, {known[0].formula}", found[0][0]
    if both < total and usual_scales == total:
        return f"scale convention: the model's, {usual}, of all {total} {pair.group}s; the codes are another matter"
    if both <= total // 2 and scales <= total // 2:
        most = f"{known[best].name} not more than {both} of {total} {pair.group}s"
        return f"scale convention: none that is known fits, {most}"
    tied = [one.name for at, one in enumerate(known) if found[at] == found[best] and at != best][:TIED]
    also = f" (and {', '.join(tied)})" if tied else ""
    part = "" if both == scales else f" with {scales} scales"
    fit = f"{both} of {total} {pair.group}s fit{part} {known[best].name}, {known[best].formula}{also}"
    return f"scale convention: {fit}; the model's is {usual}, which {found[0][1]} fit"


def _triple(pair: Quantised, found: tuple[Bits, Bits], right: tuple[Bits, Bits], defined: Mask) -> str:
    near, _ = pair.told(*right, _ceil(pair.amax, pair.target))
    scale, known = pair.told(*found, near)
    codes, kept = found
    own = int((pair.right(codes, scale) & known & defined).sum())
    same = int(((kept == right[1]).all(axis=1) & defined).sum())
    silent = int((~known & defined).sum())
    lost = f" ({silent} keep none that can be told)" if silent else ""
    error, usual = (
        _error(pair, one, at, of & defined) for one, at, of in ((codes, scale, known), (right[0], near, defined))
    )
    off = f"; dequantised values are off by up to {error:.3g} of amax, the model's by {usual:.3g}"
    return (
        f"{own} have the codes of the scale they keep{lost}, {same} keep the model's scale"
        f"{off if (known & defined).any() else ''}"
    )


def _error(pair: Quantised, codes: Bits, scale: U32, groups: Mask) -> float:
    """Largest error of a dequantised value over its group's amax, of some groups; 0 if there are none."""
    with np.errstate(all="ignore"):
        made = decode(codes, pair.target) * fp.floats(scale).astype(np.float64)[:, None]
        off = np.abs(made - fp.floats(pair.values).astype(np.float64)).max(axis=1, initial=0)
        share = off / fp.floats(pair.amax).astype(np.float64)
    return float(np.nan_to_num(share, nan=np.inf).max(where=groups, initial=0.0))
