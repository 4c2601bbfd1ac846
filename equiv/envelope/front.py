"""The envelope of `dsa_front`: what declared orders of norm and projection may lead to, from the case's own data.

Design section 4. The square sum is the exact one, widened by the worst case over the declared orders; the norm maps
ends to ends, so that a latent is two BF16 values only where its interval holds a boundary between them. Accumulators of
the projection: `equiv.envelope.projection`. After its rounding to BF16 everything is exact given the value, so a head's
codes are judged with the scale that explains them: in FP4 the stored one, in FP8 one that explains the folded weight
too, as only there the scale is left. Key and cache: `equiv.envelope.dsa`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.envelope import allowed_steps, depth
from equiv.envelope import dsa as index
from equiv.envelope.projection import accumulators
from equiv.geometry.dsa import BLOCK, DIM, HEADS
from equiv.geometry.front import RANK
from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, dsa, front
from equiv.rounding.formats import BF16, E2M1, E4M3, ordered
from equiv.rounding.front_ledger import LEDGER
from equiv.rounding.intervals import Interval, corners, gamma, hull

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Step

Mask = npt.NDArray[np.bool_]
Exponents = npt.NDArray[np.int64]

CHUNK = 1 << 15
"""Rows times scales that are judged at a time: a few arrays of 16 MiB."""
_LEAST = 2.0**-149
_GUARD = 1 + 2.0**-30


@dataclass(frozen=True, slots=True)
class QueryEnvelope:
    """What the queries of one case may be quantised to.

    Attributes:
        shape: axes of the case.
        declarations: of both parties.
        total: the projection's accumulators before they are rounded to BF16, intervals `[G, groups, width]`, G the
            heads of all requests.
        weights: head weights as float32 bits `[G]`.
        open: groups `[G, groups]` that the contract leaves undefined; everything counts as inside there.
    """

    shape: dsa.Shape
    declarations: tuple[Declaration | None, ...]
    total: Interval
    weights: npt.NDArray[np.uint32]
    open: Mask

    def judge(self, outputs: Mapping[str, Bits]) -> dict[str, tuple[Any, float]]:
        """Which codes, scales and (FP8) weights one allowed computation explains.

        Returns:
            `q_codes` and `q_scale` (FP4) or `weights` (FP8) -> (mask of elements inside, smallest share of the
            intervals about their middle that would still explain all of it; 1 if something is outside).
        """
        groups, width = self.total.low.shape[1:]
        codes = outputs["q_codes"].reshape(-1, groups, width)
        beside_name = "q_scale" if self.shape.fp4 else "weights"
        beside = outputs[beside_name].reshape(-1, groups)
        found = self._inside(codes, beside, 1.0)
        loose = self._undecided()
        few = replace(self, total=_rows(self.total, loose), weights=self.weights[loose], open=self.open[loose])

        def judged(which: int) -> tuple[Any, float]:
            name = ("q_codes", beside_name)[which]
            share = index.share_used(
                found[which],
                lambda part: few._inside(codes[loose], beside[loose], part)[which],  # noqa: SLF001
            )
            return found[which].reshape(outputs[name].shape), share

        return {"q_codes": judged(0), beside_name: judged(1)}

    def _undecided(self) -> npt.NDArray[np.int64]:
        """Heads for which the intervals allow more than one result; the others use no share of them."""
        q = self._rounded(self.total)
        least, most = self._exponents(q)
        low, high = self._ends(q, least)
        return np.flatnonzero((low != high).any(axis=(0, 2, 3)) | (least != most).any(axis=1))

    def _inside(self, codes: Bits, beside: Bits, share: float) -> tuple[Mask, Mask]:
        """Masks of codes `[G, groups, width]` and of scales or weights `[G, groups]` that shrunk intervals explain."""
        q = self._rounded(self.total.shrunk(share))
        least, most = (end.ravel() for end in self._exponents(q))
        width = codes.shape[-1]
        values = Interval(q.low.reshape(-1, width), q.high.reshape(-1, width))
        place = ordered(codes, E2M1 if self.shape.fp4 else E4M3).reshape(-1, width)
        usable = np.asarray(~values.nan.any(axis=-1)) & ~self.open.ravel()
        # A scale that explains everything wins; else the one that is stored or folded, else the most codes. So where a
        # scale explains what is stored or folded, those that do not are not looked at.
        row, exponent = _candidates(least, np.where(usable, most, least))
        fits = self._explains(exponent, beside.ravel()[row], row) & usable[row]
        some = np.zeros(len(least), dtype=bool)
        some[row[fits]] = True
        looked = np.flatnonzero(fits | ~some[row])
        row, exponent, fits = row[looked], exponent[looked], fits[looked]
        these = np.zeros((len(row), width), dtype=bool)
        for start in range(0, len(row), CHUNK):
            part = slice(start, start + CHUNK)
            low, high = self._ends(_rows(values, row[part]), exponent[part])
            these[part] = ((low <= place[row[part]]) & (place[row[part]] <= high)).any(axis=0)
        these &= usable[row][:, None]
        chosen = _first_best(row, these.sum(axis=-1) + np.where(fits, width + 1, 0))
        codes_in = these[chosen].reshape(codes.shape) | self.open[..., None]
        return codes_in, fits[chosen].reshape(beside.shape) | self.open

    def _rounded(self, total: Interval) -> Interval:
        return _to_bf16(total, steps(self.declarations, "dsa.R10"))

    def _exponents(self, q: Interval) -> tuple[Exponents, Exponents]:
        rows = ("dsa.F1",) if self.shape.fp4 else ("dsa.R11", "dsa.R12")
        return index.exponents(self.declarations, rows, q, dsa.MX_FLOOR if self.shape.fp4 else dsa.QUERY_FLOOR)

    def _ends(self, q: Interval, exponent: Exponents) -> tuple[Exponents, Exponents]:
        rows, target = (("dsa.F2a", "dsa.F2b"), E2M1) if self.shape.fp4 else (("dsa.R13", "dsa.R14"), E4M3)
        return index.code_ends(self.declarations, rows, q, exponent, target)

    def _explains(self, exponent: Exponents, beside: Bits, row: npt.NDArray[np.int64]) -> Mask:
        """Whether scales 2^exponent are the stored ones (FP4), or give the folded weights (FP8), of some rows."""
        if self.shape.fp4:
            return np.asarray(beside.astype(np.int64) - 127 == exponent)
        scale = (np.clip(exponent + 127, 1, 253) << 23).astype(np.uint32)
        products = [fold(self.weights[row], scale) for fold in steps(self.declarations, "dsa.R15a")]
        folded = [code(product) for code in steps(self.declarations, "dsa.R15b") for product in products]
        return np.asarray((np.stack(folded) == beside).any(axis=0))


@dataclass(frozen=True, slots=True)
class FrontEnvelope:
    """The envelope of all outputs of `dsa_front` whose contract is one."""

    query: QueryEnvelope
    keys: index.KeyEnvelope
    weights: index.WeightEnvelope | None

    def judge(self, outputs: Mapping[str, Bits]) -> dict[str, tuple[Any, float]]:
        """Each of these outputs -> (mask of elements inside, largest share of the envelope used)."""
        alone = {} if self.weights is None else {"weights": self.weights.judge(outputs["weights"])}
        return self.query.judge(outputs) | alone | self.keys.judge(outputs)


def steps(declarations: Sequence[Declaration | None], row_id: str) -> list[Step]:
    """Functions that the parties use for a row of this operator's ledger."""
    return allowed_steps(LEDGER, declarations, row_id)


def normalised_latent(case: Case, inputs: Mapping[str, Bits], declarations: Sequence[Declaration | None]) -> Interval:
    """The latent that is projected: BF16 values as float32 bits, intervals `[B, 1536]`.

    Square sum: the exact one (no term is negative) within gamma(d) of itself. Mean, eps: rising; rr: falls, as the
    table is monotone; then two products by their corners and one rounding to BF16.
    """
    if case.axes["normalized"]:
        return Interval.point(conversions.widen(inputs["q_c"], BF16))
    x = conversions.widen(inputs["projected"][:, :RANK], BF16)
    w = conversions.widen(inputs["w_qa"], BF16)
    eps = fp.bits_of(float(case.axes["eps"]))
    total = squares(x, depth(declarations, "row.squares", RANK, products=False))

    def shifted(mean: Step, added: Step) -> Interval:
        return total.rising(lambda t: added(mean(t), t, eps))

    ways = [(mean, add) for mean in steps(declarations, "dsa.R2") for add in steps(declarations, "dsa.R3")]
    moment = hull([shifted(mean, add) for mean, add in ways])
    root = hull([moment.falling(step) for step in steps(declarations, "dsa.R4")])
    root = Interval(root.low[:, None], root.high[:, None])
    scaled = hull([corners(step, Interval.point(x), root) for step in steps(declarations, "dsa.R5")])
    made = hull([corners(step, scaled, Interval.point(w)) for step in steps(declarations, "dsa.R6")])
    return _to_bf16(made, steps(declarations, "dsa.R7"))


def _to_bf16(interval: Interval, rounded: Sequence[Step]) -> Interval:
    """BF16 values as float32 bits, by any of some roundings to BF16 codes."""
    ends = [(code(interval.low), code(interval.high)) for code in rounded]
    return hull([Interval(conversions.widen(low, BF16), conversions.widen(high, BF16)) for low, high in ends])


def squares(x: npt.NDArray[np.uint32], roundings: int) -> Interval:
    """What the sum of squares along the last axis may be in any order of at most that many additions a term.

    Squares of BF16 values are exact, unless one underflows: then it is off by at most half the least float32 number.
    """
    with np.errstate(all="ignore"):
        values = fp.floats(x).astype(np.float64)
        total = (values * values).sum(axis=-1)
        half = (gamma(roundings) + 2.0**-41) * total * _GUARD + x.shape[-1] * _LEAST * (total > 0)
        return Interval.around(np.maximum(total - half, 0.0), total + half)


def front_envelope(
    case: Case, inputs: Mapping[str, Bits], declarations: tuple[Declaration | None, ...]
) -> FrontEnvelope:
    """The envelope of `dsa_front`: all its outputs but `cache_rest`.

    Args:
        case: with all axes filled in.
        inputs: logical bits, as for the model.
        declarations: of both parties; None stands for one that nobody has read.
    """
    shape = front.shape_of(case)
    width = BLOCK if shape.fp4 else DIM
    grouped = (-1, DIM // width, width)
    undefined = front.undefined(case, inputs)
    latent = normalised_latent(case, inputs, declarations)
    sound = ~front.may_overflow(case, inputs).reshape(len(latent.low), -1)
    weights = np.where(dsa.not_finite(inputs["w_q"]), np.uint16(0), inputs["w_q"])
    total = accumulators(_finite(latent), weights, declarations)
    total = Interval(np.where(sound, total.low, fp.NAN), np.where(sound, total.high, fp.NAN))
    head_weights = inputs["projected"][:, shape.weight_at : shape.weight_at + HEADS]
    query = QueryEnvelope(
        shape,
        declarations,
        Interval(total.low.reshape(grouped), total.high.reshape(grouped)),
        conversions.widen(head_weights, BF16).ravel(),
        np.asarray(undefined["q_scale" if shape.fp4 else "weights"]).reshape(-1, DIM // width),
    )
    keys = index.KeyEnvelope(
        shape,
        declarations,
        index.normalised_keys(shape, inputs, declarations),
        np.asarray(undefined["key_codes"])[:, 0],
    )
    alone = index.folded_weights(shape, inputs, declarations) if shape.fp4 else None
    return FrontEnvelope(query, keys, alone)


def _finite(latent: Interval) -> Interval:
    """The latent with rows that hold a NaN or Inf, which are undefined as a whole, at zero."""
    bad = ((latent.low & fp.MAGNITUDE) >= fp.INF) | ((latent.high & fp.MAGNITUDE) >= fp.INF)
    keep = ~bad.any(axis=1, keepdims=True)
    return Interval(np.where(keep, latent.low, np.uint32(0)), np.where(keep, latent.high, np.uint32(0)))


def _candidates(least: Exponents, most: Exponents) -> tuple[npt.NDArray[np.int64], Exponents]:
    """(row, exponent) of all exponents from `least` to `most` of each row, ascending; one at least."""
    count = np.maximum(most - least, 0) + 1
    row = np.repeat(np.arange(len(least)), count)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, np.minimum(least[row] + offset, most[row])


def _first_best(row: npt.NDArray[np.int64], rank: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of each row's candidates, which are side by side, the first of the highest rank."""
    start = np.flatnonzero(np.diff(row, prepend=-1))
    best = np.flatnonzero(rank == np.maximum.reduceat(rank, start)[row])
    return best[np.unique(row[best], return_index=True)[1]]


def _rows(interval: Interval, chosen: npt.NDArray[np.int64]) -> Interval:
    return Interval(interval.low[chosen], interval.high[chosen])
