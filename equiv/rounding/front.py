"""The model of `dsa_front`: norm of the latent and projection by the ledger, then the model of `dsa_index`.

Reductions it reads from a declaration: `row.squares` (1536 products; not where the latent comes normalised),
`projection` (1536 products, matrix instructions), `key.sum` and `key.squares`. Formulas: spec dsa 1.1 and 1.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.geometry.dsa import DIM, HEADS
from equiv.geometry.front import RANK
from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, dsa
from equiv.rounding.formats import BF16
from equiv.rounding.front_ledger import LEDGER
from equiv.rounding.projection import Chain, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger
    from equiv.rounding.projection import Part

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]

REDUCTIONS: Final = ("row.squares", "projection", *dsa.REDUCTIONS)
COLUMNS: Final = {"dense": (1536, 1664), "packed": (2112, 2240)}
"""Value of axis `rows` -> first column of the index key and of the head weights in a projected row."""
_LARGEST: Final = float(fp.floats(np.uint32(0x7F7F0000)))
_ROUNDED: Final = 1 + 2.0**-6
"""More than any rounding of latent and projection adds to a magnitude."""


def shape_of(case: Case) -> dsa.Shape:
    """The axes of a case, defaults filled in, as quantisation and key path use them."""
    return dsa.Shape.of(case, COLUMNS, "key_eps")


def model(case: Case, inputs: Mapping[str, Bits], declaration: Declaration, ledger: Ledger = LEDGER) -> dict[str, Bits]:
    """Logical outputs of the pair under one declaration.

    Args:
        case: with all axes filled in.
        inputs: logical bits of `projected`, `q_c` (normalised cases), `w_q`, `w_qa`, `norm_w`, `norm_b`, `cache`,
            `slots`.
        declaration: orders of `REDUCTIONS` and variants of ledger rows.
        ledger: rows to execute; a changed one shows what the change would do.

    Returns:
        As `equiv.rounding.dsa.model`.

    Raises:
        RecordError: a reduction is not declared.
        UsageError: a variant names an unknown row or step, or the projection's order is none of matrix chains.
    """
    run = dsa.runner(declaration, ledger)
    return dsa.results(shape_of(case), {**inputs, "q": query(case, inputs, declaration, run)}, declaration, run)


def query(case: Case, inputs: Mapping[str, Bits], declaration: Declaration, run: dsa.Runner) -> Bits:
    """The projected query, BF16 bits `[B, 32, 128]`."""
    latent = normalised(case, inputs, declaration, run)
    total = project(part_of(declaration.order("projection")), inputs["w_q"], latent, run)
    q: Bits = run("dsa.R10", total).reshape(len(latent), HEADS, DIM)
    return q


def normalised(case: Case, inputs: Mapping[str, Bits], declaration: Declaration, run: dsa.Runner) -> Bits:
    """The latent that is projected, BF16 bits `[B, 1536]`: `q_c` as it comes, or the RMSNorm of the projected row."""
    if case.axes["normalized"]:
        return inputs["q_c"]
    x = run("dsa.R10a", inputs["projected"][:, :RANK])
    total = run("dsa.R1", declaration.order("row.squares"), x)
    shifted = run("dsa.R3", run("dsa.R2", total), total, fp.bits_of(float(case.axes["eps"])))
    scaled = run("dsa.R5", x, run("dsa.R4", shifted))
    latent: Bits = run("dsa.R7", run("dsa.R6", scaled, run("dsa.R10a", inputs["w_qa"])))
    return latent


def project(part: Part, weights: Bits, latent: Bits, run: dsa.Runner) -> U32:
    """Float32 bits `[B, N]` of weights `[N, K]` times latents `[B, K]`, BF16 both, added in one order."""
    if isinstance(part, Chain):
        total: U32 = run("dsa.R8", part.variant, part.of(weights), part.of(latent))
        return total
    left, right = (project(one, weights, latent, run) for one in (part.left, part.right))
    added: U32 = run("dsa.R9", left, right)
    return added


def undefined(case: Case, inputs: Mapping[str, Bits]) -> dict[str, Any]:
    """Elements that the contract leaves open, as `equiv.rounding.dsa.undefined` does; see `may_overflow`."""
    return dsa.open_outputs(shape_of(case), inputs, may_overflow(case, inputs))


def may_overflow(case: Case, inputs: Mapping[str, Bits]) -> npt.NDArray[np.bool_]:
    """Projected values `[B, 32, 128]` that need not be finite.

    A NaN or Inf in the latent opens its row, one in gamma everything, one in the weights its channel. A sum of
    magnitudes within the largest BF16 number cannot overflow in any order; where it is beyond, the value is open. The
    norm itself gives nothing infinite: where its square sum overflows, rr is 0.
    """
    magnitudes, finite = latent_magnitudes(case, inputs)
    weights = inputs["w_q"] & np.uint16(0x7FFF)
    sound = np.asarray(weights.max(axis=1) < 0x7F80)
    weights = np.where(sound[:, None], weights, np.uint16(0))
    open_ = ~finite[:, None] | ~sound
    largest = float(values(weights.max()))
    if largest * float(magnitudes.sum(axis=1).max(initial=0)) * _ROUNDED > _LARGEST:
        open_ |= (magnitudes @ values(weights).T) * _ROUNDED > _LARGEST
    return np.asarray(open_.reshape(-1, HEADS, DIM))


def latent_magnitudes(case: Case, inputs: Mapping[str, Bits]) -> tuple[F64, npt.NDArray[np.bool_]]:
    """(bounds on the magnitudes of the projected latent `[B, 1536]`, 0 in rows that may not be finite; those that are).

    The bound leaves a factor of 1 + 2^-7 for the norm's roundings.
    """
    normed = bool(case.axes["normalized"])
    latent = inputs["q_c"] if normed else inputs["projected"][:, :RANK]
    finite = np.asarray(~dsa.not_finite(latent).any(axis=1))
    size = np.where(finite[:, None], np.abs(values(latent)), 0)
    if not normed:
        gamma = np.abs(values(inputs["w_qa"]))
        root = np.sqrt((size * size).mean(axis=1, keepdims=True) + float(np.float32(float(case.axes["eps"]))))
        with np.errstate(all="ignore"):
            size = size / root * gamma * (1 + 2.0**-7)
        finite &= np.all(size <= _LARGEST, axis=1)
        size = np.where(finite[:, None], size, 0)
    return size, finite


def values(bits: Bits) -> F64:
    """BF16 bits as float64; a NaN stays one."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return fp.floats(conversions.widen(bits, BF16)).astype(np.float64)
