"""The model of `kda`: the ledger executed on the case's own bits, under one party's declaration.

Letters: R real requests, A absent ones, T tokens, H heads, D = 128 H, S = T + 2 columns of a window. Reductions that it
reads from a declaration: `gate.0` or `gate.1`, `q.squares`, `dot`, `out`, `norm.squares`, in mode commit also
`commit.squares`. Formulas: spec kda 1.2 to 1.8; slots: section 3. The model states the layout of rows and pools itself,
independent of the code that lays out the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv.geometry.kda import DIM
from equiv.rounding import arithmetic as fp
from equiv.rounding.kda_commit import commit, plan, recorded
from equiv.rounding.kda_ledger import LEDGER
from equiv.rounding.kda_prepare import Execution, Rows, convolve
from equiv.rounding.kda_walk import Pools, Shape, kept, table, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.kda_commit import Plan, Records
    from equiv.rounding.kda_walk import Ints, Mask
    from equiv.rounding.ledger import Ledger

REDUCTIONS: Final = ("gate.0", "gate.1", "q.squares", "dot", "out", "norm.squares", "commit.squares")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run leaves.

    Attributes:
        y: BF16 codes of the real requests, `[steps, R, T, H, 128]`. pools: as they are then. records: of modes record
            and commit. commit: what was written by one.
    """

    shape: Shape
    y: Bits
    pools: Pools
    records: Records | None
    commit: Plan | None


def owned(shape: Shape, inputs: Mapping[str, Bits], todo: Plan | None) -> tuple[Ints, Mask, Mask]:
    """State slots in the order of the output `state`; masks of the slots whose window, and whose state, may change."""
    _, slots = table(inputs)
    written = todo.target if todo else slots[:0].ravel() if shape.records else kept(inputs).ravel()
    windows, pages = (np.zeros(len(inputs["state"]), dtype=bool) for _ in range(2))
    windows[slots[:, 0]] = True
    if todo:
        windows[todo.target] = True
    pages[written] = True
    return written, windows, pages


def execute(case: Case, inputs: Mapping[str, Bits], declaration: Declaration, ledger: Ledger) -> Run:
    """Runs a case's steps, and its commit; arguments and errors are those of `model`."""
    shape, run, pools = Shape.of(case), Execution(declaration, ledger), Pools.of(inputs)
    ys: list[Bits] = []
    records = todo = None
    for moment in walk(shape, inputs, pools, run):
        ys.append(moment.y)
        if shape.records:
            records = recorded(shape, moment, run)
            if shape.mode == "commit":
                todo = commit(shape, records, inputs, pools, run)
    return Run(shape, np.stack(ys), pools, records, todo)


def model(case: Case, inputs: Mapping[str, Bits], declaration: Declaration, ledger: Ledger = LEDGER) -> dict[str, Bits]:
    """The pair's logical outputs as one party must compute them.

    Args:
        case: with all axes filled in.
        inputs: logical bits of all input and inout tensors.
        declaration: the party's orders and variants.
        ledger: the rows to execute, perhaps with one switched off or forced.

    Returns:
        y `[steps, R, T, H, 128]`, y_absent `[steps, A, T, D]`, conv `[R, 3D, S]`, state `[W, H, 128, 128]`, conv_rest,
        state_rest; with records corrections, key, gate `[R, H, T, 128]` and record_rest; with a commit conv_final.

    Raises:
        RecordError: the declaration lacks an order, or has one that is no sum over 128 channels.
        UsageError: it names an unknown row or variant.
    """
    done = execute(case, inputs, declaration, ledger)
    shape, pools = done.shape, done.pools
    real, slots = table(inputs)
    written, windows, pages = owned(shape, inputs, done.commit)
    found: dict[str, Bits] = {
        "y": done.y,
        "y_absent": np.zeros((shape.steps, int((~real).sum()), shape.tokens, shape.heads * DIM), dtype=np.uint16),
        "conv": pools.conv[slots[:, 0]],
        "state": pools.state[written],
        "conv_rest": pools.conv[~windows].ravel(),
        "state_rest": pools.state[~pages].ravel(),
    }
    if done.records:
        found |= done.records._asdict() | {"record_rest": _record_rest(inputs, real)}
    if done.commit:
        found["conv_final"] = pools.conv[done.commit.target]
    return found


def _record_rest(inputs: Mapping[str, Bits], real: Mask) -> npt.NDArray[np.uint16]:
    """Record elements of absent requests: the halves of their corrections, then their keys and gates."""
    rest = np.ascontiguousarray(inputs["corrections"][~real]).astype("<u4").ravel().view("<u2").astype(np.uint16)
    return np.concatenate([rest, np.asarray(inputs["key_gate"][~real], dtype=np.uint16).ravel()])


LARGE: Final = np.uint32(0x71800000)
"""2^100. Partial sums of what is smaller cannot overflow; a NaN or an Inf meets every order alike."""


def undefined(case: Case, inputs: Mapping[str, Bits]) -> dict[str, Any]:
    """Elements that the contract leaves open, as boolean masks: heads in which a partial sum may overflow.

    These are heads of a request with a finite state or a finite sum of taps of 2^100 or more; whether a sum of such
    numbers is infinite depends on its order.
    """
    shape = Shape.of(case)
    real, slots = table(inputs)
    defaults = {row.id: row.steps[row.names[0]] for row in LEDGER}
    rows = inputs["rows"].reshape(shape.steps, shape.batch, shape.tokens, -1)
    window = inputs["conv_state"][slots[:, 0]]
    open_heads = np.zeros((len(slots), shape.heads), dtype=bool)
    for step in range(shape.steps):
        start, x = shape.start(inputs, step, real), Rows.cut(rows[step, real], shape.heads).qkv
        window, taps = convolve(window, start, x, inputs, lambda row, *operands: defaults[row](*operands))
        open_heads |= _large(taps.reshape(len(slots), 3 * shape.tokens, shape.heads, DIM)).any(axis=(1, 3))
    for column in slots.T:
        pages = np.asarray(inputs["state"])[column]
        wide = pages.astype(np.uint32) << np.uint32(16) if shape.bf16_state else pages
        open_heads |= _large(wide).any(axis=(2, 3))
    if not open_heads.any():
        return {}
    heads = open_heads[:, None, :, None]
    found = {"y": np.broadcast_to(heads, (shape.steps, len(slots), shape.tokens, shape.heads, DIM))}
    if shape.records:
        rows_of = (len(slots), shape.heads, shape.tokens, DIM)
        found["corrections"] = np.broadcast_to(open_heads[:, :, None, None], rows_of)
    if shape.mode != "record":
        once = np.repeat(np.arange(len(slots)), slots.shape[1])
        request = plan(inputs).request if shape.mode == "commit" else once
        found["state"] = np.broadcast_to(open_heads[request, :, None, None], (len(request), shape.heads, DIM, DIM))
    return found


def _large(bits: npt.ArrayLike) -> Mask:
    magnitude = np.asarray(bits) & fp.MAGNITUDE
    return np.asarray((magnitude >= LARGE) & (magnitude < fp.INF))
