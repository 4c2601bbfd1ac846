"""The recurrence of `kda` on states of 128 values by 128 keys, and the commit's fold, under declared orders.

Here in NumPy, which is the truth; `kda_native` gives the same bits for the steps that it knows and is used for them.
Formulas: spec kda 1.4 (3 to 6) and 1.7 c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from equiv.errors import RecordError
from equiv.rounding import kda_native, kda_steps
from equiv.rounding.kda_faults import BF16, FAULTS

if TYPE_CHECKING:
    from equiv.rounding.ledger import Step
    from equiv.rounding.orders import Order

    Orders = tuple[Order, Order]
    Steps = tuple[Step, ...]

U32 = npt.NDArray[np.uint32]


class Operands(NamedTuple):
    """What the tokens of N items (request, head) do to their states, as float32 bits.

    Attributes:
        q: normalised and scaled, `[N, T, 128]`. k: normalised. decay: of each key. v: `[N, T, 128]`.
        beta: `[N, T]`.
    """

    q: U32
    k: U32
    decay: U32
    v: U32
    beta: U32


class Scanned(NamedTuple):
    """The state after each token, `[N, T, 128, 128]` or `[0]`; o and u `[N, T, 128]`, all float32 bits."""

    states: U32
    o: U32
    u: U32


ROWS: Final = ("kda.13k", "kda.13l", "kda.13m", "kda.13n")
"""Ledger rows of the scan, in the order of the steps that `scan` takes."""

_NATIVE: Final = (
    {FAULTS["kda.13k"]["left out"]: 0, kda_steps.MUL["rn"]: 1, FAULTS["kda.13k"]["done twice"]: 2},
    {kda_steps.SUB["rn"]: 0, FAULTS["kda.13l"][BF16]: 1},
    {kda_steps.MUL["rn"]: 0, FAULTS["kda.13m"][BF16]: 1},
    {kda_steps.FMA["fma"]: 0, kda_steps.FMA["mul_add"]: 1},
)
"""Per row the functions that the C twin knows and what it calls them."""


def scan(state: U32, operands: Operands, orders: Orders, steps: Steps, *, keep: bool = True) -> Scanned:
    """Runs the tokens of each item over its state.

    Args:
        state: `[N, 128, 128]` float32 bits, values by keys.
        operands: q, k, decays, v and beta.
        orders: of the sums over keys for the dot and for o.
        steps: functions of the rows `ROWS`.
        keep: whether the states after each token are wanted.

    Raises:
        RecordError: an order has other nodes than additions and fused ones, or results that depend on who looks.
    """
    if any(order.owner for order in orders):
        raise RecordError("orders dot and out: every value has one sum, and these have several roots")
    known = [table.get(step) for table, step in zip(_NATIVE, steps, strict=True)]
    if None in known or any(order.through for order in orders):
        return scan_numpy(state, operands, orders, steps, keep=keep)
    decays, difference, correction, update = (int(x) for x in known if x is not None)
    return Scanned(*kda_native.scan(state, operands, orders, (decays, update, difference, correction), keep=keep))


def scan_numpy(state: U32, operands: Operands, orders: Orders, steps: Steps, *, keep: bool = True) -> Scanned:
    """`scan` in NumPy, whatever the steps are."""
    decayed, difference, correction, update = steps
    states, outs, corrections = [], [], []
    for t in range(operands.beta.shape[1]):
        q, k, dec, v, beta = (array[:, t] for array in operands)
        state = decayed(state, dec[:, None, :])
        dot = orders[0].dot(state, np.broadcast_to(k[:, None, :], state.shape))[..., 0]
        u = correction(difference(v, dot), beta[:, None])
        state = update(k[:, None, :], u[:, :, None], state)
        outs.append(orders[1].dot(state, np.broadcast_to(q[:, None, :], state.shape))[..., 0])
        corrections.append(u)
        if keep:
            states.append(state)
    found = np.stack(states, axis=1) if keep else np.zeros(0, dtype=np.uint32)
    return Scanned(found, np.stack(outs, axis=1), np.stack(corrections, axis=1))


_FOLDS: Final = {kda_steps.FOLD["forward"]: True, kda_steps.FOLD["backward"]: False}


class Tokens(NamedTuple):
    """Recorded tokens of N items: decays, normalised keys and corrections u, float32 bits `[N, T, 128]` each."""

    decays: U32
    keys: U32
    values: U32


def fold(state: U32, counts: npt.NDArray[np.int64], tokens: Tokens, step: Step) -> U32:
    """The commit: the first `counts` (at least one) tokens of each item folded into its state.

    Args:
        state: `[N, 128, 128]` float32 bits.
        counts: `[N]`.
        tokens: what was recorded.
        step: function of ledger row kda.13p.
    """
    if step in _FOLDS:
        return kda_native.fold(state, counts, tokens, forward=_FOLDS[step])
    return fold_numpy(state, counts, tokens, step)


def fold_numpy(state: U32, counts: npt.NDArray[np.int64], tokens: Tokens, step: Step) -> U32:
    """`fold` in NumPy, whatever the step is."""
    result = np.array(state, dtype=np.uint32)
    for n in np.unique(counts):
        chosen = np.flatnonzero(counts == n)
        given = (np.moveaxis(array[chosen, :n], 1, 0) for array in tokens)
        result[chosen] = step(result[chosen], *given, whole=n == tokens.keys.shape[1])
    return result
