"""The model of `dsa_index`: the ledger executed on the case's own bits, under one party's declaration.

Reductions it reads from a declaration: `key.sum` (128 terms) and `key.squares` (128 products). Formulas: spec dsa 1.3
to 1.7. The model states the byte layout of rows and pages itself, independent of the code that lays out the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.geometry.dsa import BLOCK, DIM, HEADS, PAGE
from equiv.rounding import arithmetic as fp
from equiv.rounding.dsa_ledger import LEDGER
from equiv.rounding.intervals import gamma

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger

U32 = npt.NDArray[np.uint32]

REDUCTIONS: Final = ("key.sum", "key.squares")
COLUMNS: Final = {"dense": (0, 128), "packed": (2112, 2240)}
"""Value of axis `rows` -> first column of the index key and of the head weights in a projected row."""
QUERY_FLOOR: Final = fp.bits_of(1e-10)
MX_FLOOR: Final = fp.bits_of(6 * 2.0**-126)


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes of a case as the model uses them."""

    fp4: bool
    mx: bool
    key_at: int
    weight_at: int
    round_key: bool
    key_floor: U32
    eps: U32

    @classmethod
    def of(cls, case: Case, columns: Mapping[str, tuple[int, int]] = COLUMNS, eps: str = "eps") -> Shape:
        """Reads a case whose defaults are filled in.

        Args:
            case: of this pair, or of one with the same quantisation and the same key.
            columns: value of axis `rows` -> first column of key and head weights.
            eps: the axis that is added to the key's variance.
        """
        axes = case.axes
        key_at, weight_at = columns[str(axes["rows"])]
        fp4 = axes["format"] == "fp4"
        return cls(
            fp4=fp4,
            mx=fp4 or axes["scale"] == "mx",
            key_at=key_at,
            weight_at=weight_at,
            round_key=axes["key_round"] == "bf16",
            key_floor=fp.bits_of(float(axes["key_floor"])),
            eps=fp.bits_of(float(axes[eps])),
        )


Runner = Callable[..., Any]
"""Executes a ledger row by id on bit patterns: `run("dsa.R14", x)`."""


def runner(declaration: Declaration, ledger: Ledger = LEDGER) -> Runner:
    """The rows of a ledger under a declaration's variants.

    Raises:
        UsageError: a variant names an unknown row or step.
    """
    ledger.check(declaration.variants)
    steps = {row.id: ledger.step(row.id, declaration.variants) for row in ledger}
    return lambda row_id, *operands: steps[row_id](*operands)


def written(inputs: Mapping[str, Bits]) -> npt.NDArray[np.int64]:
    """Requests whose key is written: slot >= 0, in request order."""
    return np.flatnonzero(np.asarray(inputs["slots"]).view(np.int64) >= 0)


def model(case: Case, inputs: Mapping[str, Bits], declaration: Declaration, ledger: Ledger = LEDGER) -> dict[str, Bits]:
    """Logical outputs of the pair under one declaration.

    Args:
        case: with all axes filled in.
        inputs: logical bits of `q`, `projected`, `norm_w`, `norm_b`, `cache`, `slots`.
        declaration: orders of `REDUCTIONS` and variants of ledger rows.
        ledger: rows to execute; a changed one shows what the change would do.

    Returns:
        `q_codes`, `weights`, `key_codes`, `key_scale`, `cache_rest`, for fp4 also `q_scale`; see the pair's outputs.

    Raises:
        RecordError: a reduction is not declared.
        UsageError: a variant names an unknown row or step.
    """
    return results(Shape.of(case), inputs, declaration, runner(declaration, ledger))


def results(shape: Shape, inputs: Mapping[str, Bits], declaration: Declaration, run: Runner) -> dict[str, Bits]:
    """All that follows once the query `q` is there: the outputs of `model`, of which this is the whole."""
    found = _query(shape, inputs, run)
    x = run("dsa.R10a", inputs["projected"][written(inputs), shape.key_at : shape.key_at + DIM])
    found |= quantise_key(shape, normalise(shape, inputs, x, declaration, run), run)
    found["cache_rest"] = inputs["cache"][~owned_bytes(shape, inputs)]
    return found


def _query(shape: Shape, inputs: Mapping[str, Bits], run: Runner) -> dict[str, Bits]:
    """Query codes (fp4: and scales) and folded weights."""
    x = run("dsa.R10a", inputs["q"])
    w = run("dsa.R10a", inputs["projected"][:, shape.weight_at : shape.weight_at + HEADS])
    if shape.fp4:
        codes, scale = _blocks(x, ("dsa.F1", "dsa.F2a", "dsa.F2b"), run)
        return {"q_codes": codes, "q_scale": scale, "weights": run("dsa.F3b", run("dsa.F3a", w, fp.bits_of(1.0)))}
    scale = run("dsa.R12", run("dsa.R11", np.maximum(run("dsa.R10b", x), QUERY_FLOOR)))
    codes = run("dsa.R14", run("dsa.R13", x, scale[..., None]))
    return {"q_codes": codes, "weights": run("dsa.R15b", run("dsa.R15a", w, scale))}


def normalise(shape: Shape, inputs: Mapping[str, Bits], x: U32, declaration: Declaration, run: Runner) -> U32:
    """The key's LayerNorm as float32 bits `[T, 128]`, rounded to BF16 values where the case says so."""
    total, squares = declaration.order("key.sum"), declaration.order("key.squares")
    mean = run("dsa.K1a", total.seen(total.sum(x)))
    d = run("dsa.K1b", x, mean)
    var = run("dsa.K1c", squares.seen(squares.dot(d, d)))
    rstd = run("dsa.K1e", run("dsa.K1d", var, shape.eps))
    y: U32 = run("dsa.K2b", run("dsa.K2a", d, rstd), inputs["norm_w"], inputs["norm_b"])
    return run("dsa.K2c", y) if shape.round_key else y


def quantise_key(shape: Shape, y: U32, run: Runner) -> dict[str, Bits]:
    """Key codes and stored scales of normalised keys `[T, 128]`."""
    if shape.fp4:
        codes, scale = _blocks(y, ("dsa.K4a", "dsa.K4b", "dsa.K4c"), run)
        return {"key_codes": codes, "key_scale": scale}
    scale = run("dsa.K3b", run("dsa.K3a", np.maximum(run("dsa.R10b", y), shape.key_floor)))
    codes = run("dsa.K3d", run("dsa.K3c", y, scale[..., None]))
    return {"key_codes": codes, "key_scale": stored_scale(shape, scale)}


def stored_scale(shape: Shape, scale: U32) -> Bits:
    """A key's scale as the page holds it: float32 bits `[T]`, or with `mx` its exponent field four times `[T, 4]`."""
    if not shape.mx:
        return scale
    return np.repeat((scale >> np.uint32(23)).astype(np.uint8)[:, None], 4, axis=1)


def _blocks(x: U32, rows: tuple[str, str, str], run: Runner) -> tuple[Bits, Bits]:
    """MXFP4 of `[..., 128]`: E2M1 codes of the same shape and UE8M0 bytes `[..., 4]`.

    `rows` are the ledger rows of the exponent, of the scaled value and of the code.
    """
    exponent, scaled, code = rows
    blocks = x.reshape(*x.shape[:-1], DIM // BLOCK, BLOCK)
    e = run(exponent, np.maximum(run("dsa.R10b", blocks), MX_FLOOR))
    power = ((e + 127) << 23).astype(np.uint32)
    codes: Bits = run(code, run(scaled, blocks, power[..., None]))
    return codes.reshape(x.shape), (e + 127).astype(np.uint8)


def owned_bytes(shape: Shape, inputs: Mapping[str, Bits]) -> npt.NDArray[np.bool_]:
    """Mask over `cache` of the bytes that belong to a written token: its values and its four scale bytes."""
    slots = np.asarray(inputs["slots"]).view(np.int64)
    slots = slots[slots >= 0]
    page, token = slots[:, None] // PAGE, slots[:, None] % PAGE
    values = DIM // 2 if shape.fp4 else DIM
    mask = np.zeros(inputs["cache"].shape, dtype=bool)
    mask[page, token * values + np.arange(values)] = True
    mask[page, PAGE * values + token * 4 + np.arange(4)] = True
    return mask


def undefined(case: Case, inputs: Mapping[str, Bits]) -> dict[str, Any]:
    """Elements that the contract leaves open, as boolean masks of the outputs' shapes.

    A head (fp4: block of 32 channels) of q that holds a NaN or an Inf, with the weight that folds its scale; a key
    whose projected row does, or whose LayerNorm may overflow (`may_overflow`). Outputs that cannot have such elements
    are not named.
    """
    return open_outputs(Shape.of(case), inputs, not_finite(inputs["q"]))


def open_outputs(shape: Shape, inputs: Mapping[str, Bits], q: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """`undefined` for a query of which the elements `q` `[B, 32, 128]` are, or may be, NaN or Inf."""
    row = inputs["projected"][written(inputs), shape.key_at : shape.key_at + DIM]
    open_keys = not_finite(row).any(axis=-1) | may_overflow(row, inputs["norm_w"], inputs["norm_b"])
    key_codes = np.broadcast_to(open_keys[:, None], row.shape)
    if shape.fp4:
        blocks = q.reshape(*q.shape[:-1], DIM // BLOCK, BLOCK).any(axis=-1)
        return {
            "q_codes": np.repeat(blocks, BLOCK, axis=-1),
            "q_scale": blocks,
            "key_codes": key_codes,
            "key_scale": key_codes[:, : DIM // BLOCK],
        }
    heads = np.asarray(q.any(axis=-1))
    return {
        "q_codes": np.broadcast_to(heads[..., None], q.shape),
        "weights": heads,
        "key_codes": key_codes,
        "key_scale": key_codes[:, :4] if shape.mx else key_codes[:, 0],
    }


def may_overflow(row: Bits, norm_w: Bits, norm_b: Bits) -> npt.NDArray[np.bool_]:
    """Keys `[T]` whose LayerNorm need not be finite, though their projected row is.

    A partial sum that overflows makes the mean infinite and all of y NaN, and whether one does is a matter of order: no
    partial sum of any order exceeds the larger of the sums of all positive and of all negative terms. A square that
    overflows does no harm: rstd is 0 then, and y the bias. As |d * rstd| < 12 (sqrt(128) before rounding), y is finite
    in BF16 too where 12 |w| + |b| is below the largest BF16 value.
    """
    x, w, b = (np.asarray(bits).astype(np.uint32) for bits in (row, norm_w, norm_b))
    with np.errstate(all="ignore"):  # a signalling NaN complains when it is widened
        terms = fp.floats(x << np.uint32(16)).astype(np.float64)
        most = np.maximum(terms.clip(min=0).sum(axis=-1), -terms.clip(max=0).sum(axis=-1))
        sums = ~(most * (1 + gamma(DIM)) <= _LARGEST_F32)
        reach = 12 * np.abs(fp.floats(w).astype(np.float64)) + np.abs(fp.floats(b).astype(np.float64))
    return np.asarray(sums | ~np.all(reach <= _LARGEST_BF16))


_LARGEST_F32: Final = float(np.finfo(np.float32).max)
_LARGEST_BF16: Final = float(fp.floats(np.uint32(0x7F7F0000)))


def not_finite(bits: Bits) -> npt.NDArray[np.bool_]:
    """Where BF16 bits are NaN or Inf."""
    return np.asarray((np.asarray(bits, dtype=np.uint16) & np.uint16(0x7F80)) == 0x7F80)
