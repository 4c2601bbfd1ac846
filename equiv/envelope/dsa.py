"""The envelope: which outputs the declared differences of two parties may lead to, from the case's own data.

Design section 4. The key path of `dsa_index` runs in intervals: each sum is the exact one, widened by the worst case
over the declared orders; every later operation maps ends to ends; a scale is a set of allowed powers of two, and codes
are judged under the scale that is stored. A folded head weight is one of the values that the declared products give.
Nothing is tuned. Where a party declares nothing, every order of its reductions and every variant that the ledger knows
is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.envelope import allowed_steps, depth
from equiv.geometry.dsa import BLOCK, DIM, HEADS
from equiv.rounding import arithmetic as fp
from equiv.rounding import dsa
from equiv.rounding.dsa_ledger import LEDGER
from equiv.rounding.formats import E2M1, E4M3, ordered
from equiv.rounding.intervals import Interval, corners, hull, squares_about_mean, sum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.formats import Format

Mask = npt.NDArray[np.bool_]

SHARES: Final = 16
"""The share of an envelope that was used is found in steps of one sixteenth, rounded up."""


steps = partial(allowed_steps, LEDGER)
"""Functions that the parties use for a row of this operator's ledger."""


@dataclass(frozen=True, slots=True)
class KeyEnvelope:
    """What the keys of one case may be quantised to.

    Attributes:
        y: the normalised key before it is rounded or quantised, intervals `[T, 128]`.
        open: tokens `[T]` that the contract leaves undefined; everything counts as inside there.
    """

    shape: dsa.Shape
    declarations: tuple[Declaration | None, ...]
    y: Interval
    open: Mask

    def judge(self, outputs: Mapping[str, Bits]) -> dict[str, tuple[Any, float]]:
        """Which key codes and scales one allowed computation explains.

        A code counts as inside if it lies between the codes of the interval's ends under the *stored* scale, and that
        scale is allowed; where it is not, under the allowed scale that explains most of the group.

        Returns:
            `key_codes` and `key_scale` -> (mask of elements inside, smallest share of the intervals about their middle
            that would still explain all of it; 1 if something is outside).
        """
        codes_in, scale_in = self._inside(outputs, 1.0)
        return {
            "key_codes": (codes_in, share_used(codes_in, lambda share: self._inside(outputs, share)[0])),
            "key_scale": (scale_in, share_used(scale_in, lambda share: self._inside(outputs, share)[1])),
        }

    def _inside(self, outputs: Mapping[str, Bits], share: float) -> tuple[Mask, Mask]:
        """Masks of codes and of scales that the intervals, shrunk to a share, explain."""
        y = self.y.shrunk(share)
        if self.shape.round_key:
            y = hull([y.rising(step) for step in steps(self.declarations, "dsa.K2c")])
        tokens, width = len(self.open), BLOCK if self.shape.fp4 else DIM
        grouped = (tokens, DIM // width, width)
        groups = Interval(y.low.reshape(grouped), y.high.reshape(grouped))
        codes = outputs["key_codes"].reshape(grouped)
        least, most = self._exponents(groups)
        stored, whole = self._stored(outputs["key_scale"])
        usable = ~groups.nan.any(axis=-1)
        scale_in = usable & whole & (stored >= least) & (stored <= most)
        codes_in = self._codes_inside(groups, codes, stored) & scale_in[..., None]
        unexplained = usable & ~scale_in & ~self.open[:, None]
        for offset in range(int((most - least).max(where=unexplained, initial=-1)) + 1):
            other = self._codes_inside(groups, codes, np.minimum(least + offset, most))
            better = unexplained & (other.sum(axis=-1) > codes_in.sum(axis=-1))
            codes_in = np.where(better[..., None], other, codes_in)
        codes_in |= self.open[:, None, None]
        scale_in |= self.open[:, None]
        copies = np.asarray(outputs["key_scale"]).size // max(scale_in.size, 1)
        scale_mask = np.repeat(scale_in, copies, axis=-1).reshape(outputs["key_scale"].shape)
        return codes_in.reshape(tokens, DIM), scale_mask

    def _exponents(self, groups: Interval) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        floor = dsa.MX_FLOOR if self.shape.fp4 else self.shape.key_floor
        rows = ("dsa.K4a",) if self.shape.fp4 else ("dsa.K3a", "dsa.K3b")
        return exponents(self.declarations, rows, groups, floor)

    def _stored(self, scale: Bits) -> tuple[npt.NDArray[np.int64], Mask]:
        """Unbiased exponents of stored scales `[T, groups]`, and whether each is one: copies equal, a power of two."""
        if self.shape.fp4:
            return scale.astype(np.int64) - 127, np.ones(scale.shape, dtype=bool)
        if self.shape.mx:
            same = np.asarray((scale == scale[:, :1]).all(axis=1))
            return scale[:, :1].astype(np.int64) - 127, same[:, None]
        bits = scale[:, None]
        return exponent_of(bits), np.asarray((bits & np.uint32(0x807FFFFF)) == 0)

    def _codes_inside(self, groups: Interval, codes: Bits, exponent: npt.NDArray[np.int64]) -> Mask:
        rows, target = (("dsa.K4b", "dsa.K4c"), E2M1) if self.shape.fp4 else (("dsa.K3c", "dsa.K3d"), E4M3)
        low, high = code_ends(self.declarations, rows, groups, exponent, target)
        place = ordered(codes, target)
        return np.asarray(((low <= place) & (place <= high)).any(axis=0))


def share_used(inside: Mask, judged: Callable[[float], Mask]) -> float:
    """Smallest share of the intervals about their middle, in sixteenths, that explains all; 1 if something is outside.

    Args:
        inside: what the whole intervals explain.
        judged: share -> what intervals shrunk to it explain; more with every larger share.
    """
    if not inside.all():
        return 1.0
    least, most = 0, SHARES  # most always explains everything
    if judged(0.0).all():
        return 0.0
    while most - least > 1:
        middle = (least + most) // 2
        if judged(middle / SHARES).all():
            most = middle
        else:
            least = middle
    return most / SHARES


def exponents(
    declarations: Sequence[Declaration | None], rows: tuple[str, ...], groups: Interval, floor: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Least and largest allowed unbiased exponent of each group's scale, `[..., groups]`.

    Both ends of amax go through every variant; each variant rises with amax, so what lies between is allowed.

    Args:
        declarations: of both parties.
        rows: of ratio and power of two (FP8), or of the exponent alone (FP4).
        groups: values `[..., groups, width]`.
        floor: float32 bits of the least amax.
    """
    size = groups.magnitude()
    ends = [np.maximum(np.max(end, axis=-1), floor) for end in (size.low, size.high)]
    if len(rows) == 1:
        found = [[exponent(end) for exponent in steps(declarations, rows[0])] for end in ends]
    else:
        ways = [(ratio, power) for ratio in steps(declarations, rows[0]) for power in steps(declarations, rows[1])]
        found = [[exponent_of(power(ratio(end))) for ratio, power in ways] for end in ends]
    return np.min(found[0], axis=0), np.max(found[1], axis=0)


def code_ends(
    declarations: Sequence[Declaration | None],
    rows: tuple[str, str],
    groups: Interval,
    exponent: npt.NDArray[np.int64],
    target: Format,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places (`formats.ordered`) of the codes of an interval's ends under scales 2^exponent, `[ways, ..., width]`.

    Args:
        declarations: of both parties.
        rows: of the scaled value and of its code.
        groups: values `[..., groups, width]`.
        exponent: unbiased, `[..., groups]`.
        target: format of the codes.
    """
    scale = (np.clip(exponent + 127, 1, 253) << 23).astype(np.uint32)[..., None]
    ways = [(scaled, coded) for scaled in steps(declarations, rows[0]) for coded in steps(declarations, rows[1])]
    low, high = (
        np.stack([ordered(coded(scaled(end, scale)), target) for scaled, coded in ways])
        for end in (groups.low, groups.high)
    )
    return low, high


@dataclass(frozen=True, slots=True)
class WeightEnvelope:
    """The folded head weights that the declared products give.

    Attributes:
        allowed: BF16 bits `[n, B, 32]`, one result of each way to compute them.
    """

    allowed: npt.NDArray[np.uint16]

    def judge(self, weights: Bits) -> tuple[Mask, float]:
        """Which weights are one of the allowed values; share 0 if there is but one for each, else 1."""
        inside = (self.allowed == weights).any(axis=0)
        return inside, float(not inside.all() or bool((self.allowed != self.allowed[0]).any()))


def folded_weights(
    shape: dsa.Shape, inputs: Mapping[str, Bits], declarations: Sequence[Declaration | None]
) -> WeightEnvelope:
    """The fold under every combination of the declared steps that lead to it: scale (FP8 only), product, rounding."""
    widen = LEDGER["dsa.R10a"].steps["shift"]
    w = widen(inputs["projected"][:, shape.weight_at : shape.weight_at + HEADS])
    if shape.fp4:
        scales, product, rounded = [fp.bits_of(1.0)], "dsa.F3a", "dsa.F3b"
    else:
        x, product, rounded = widen(inputs["q"]), "dsa.R15a", "dsa.R15b"
        amaxes = [np.maximum(amax(x), dsa.QUERY_FLOOR) for amax in steps(declarations, "dsa.R10b")]
        ratios = [ratio(amax) for ratio in steps(declarations, "dsa.R11") for amax in amaxes]
        scales = [power(ratio) for power in steps(declarations, "dsa.R12") for ratio in ratios]
    products = [fold(w, scale) for fold in steps(declarations, product) for scale in scales]
    return WeightEnvelope(np.stack([code(value) for code in steps(declarations, rounded) for value in products]))


@dataclass(frozen=True, slots=True)
class DsaEnvelope:
    """The envelope of all outputs of `dsa_index` whose contract is one."""

    keys: KeyEnvelope
    weights: WeightEnvelope

    def judge(self, outputs: Mapping[str, Bits]) -> dict[str, tuple[Any, float]]:
        """`weights`, `key_codes` and `key_scale` -> (mask of elements inside, largest share of the envelope used)."""
        return {"weights": self.weights.judge(outputs["weights"])} | self.keys.judge(outputs)


def exponent_of(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Unbiased exponents of positive float32 bits."""
    return (bits >> np.uint32(23)).astype(np.int64) - 127


def normalised_keys(
    shape: dsa.Shape, inputs: Mapping[str, Bits], declarations: Sequence[Declaration | None]
) -> Interval:
    """The key's LayerNorm before any rounding to BF16, intervals `[T, 128]`.

    mean: the exact sum widened by gamma(d) sum |x|, over 128 (exact, or rounded
    where it underflows). d = x - mean: falls with the mean. var: `squares_about_mean`, which keeps the differences'
    common error in the mean together. rstd: falls with var + eps, as the table is monotone. y: corners of d and rstd,
    then monotone in the product.
    """
    x = LEDGER["dsa.R10a"].steps["shift"](inputs["projected"][dsa.written(inputs), shape.key_at : shape.key_at + DIM])
    scaled = {
        row: steps(declarations, row) for row in ("dsa.K1a", "dsa.K1b", "dsa.K1c", "dsa.K1d", "dsa.K1e", "dsa.K2a")
    }
    total, half = sum_of(x, depth(declarations, "key.sum", DIM, products=False))
    mean = hull([total.rising(step) for step in scaled["dsa.K1a"]])
    wide = Interval(mean.low[:, None], mean.high[:, None])
    d = hull([wide.falling(partial(step, x)) for step in scaled["dsa.K1b"]])
    squares = squares_about_mean(x, half / DIM, depth(declarations, "key.squares", DIM, products=True))
    var = hull([squares.rising(step) for step in scaled["dsa.K1c"]])
    shifted = hull([var.rising(partial(step, shape.eps)) for step in scaled["dsa.K1d"]])
    rstd = hull([shifted.falling(step) for step in scaled["dsa.K1e"]])
    rstd = Interval(rstd.low[:, None], rstd.high[:, None])
    product = hull([corners(step, d, rstd) for step in scaled["dsa.K2a"]])
    w, b = inputs["norm_w"], inputs["norm_b"]
    ends = [
        Interval.point(step(t, w, b)) for step in steps(declarations, "dsa.K2b") for t in (product.low, product.high)
    ]
    return hull(ends)


def dsa_envelope(case: Case, inputs: Mapping[str, Bits], declarations: tuple[Declaration | None, ...]) -> DsaEnvelope:
    """The envelope of `dsa_index`: its outputs `weights`, `key_codes` and `key_scale`; all others are bitwise.

    Args:
        case: with all axes filled in.
        inputs: logical bits, as for the model.
        declarations: of both parties; None stands for one that nobody has read.
    """
    shape = dsa.Shape.of(case)
    open_tokens = dsa.undefined(case, inputs)["key_codes"][:, 0]
    keys = KeyEnvelope(shape, declarations, normalised_keys(shape, inputs, declarations), open_tokens)
    return DsaEnvelope(keys, folded_weights(shape, inputs, declarations))
