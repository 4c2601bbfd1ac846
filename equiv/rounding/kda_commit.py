"""Records of a `kda` step and their commit: window compaction and state fold (spec kda 1.6, 1.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from equiv.geometry.kda import DIM, TAPS
from equiv.rounding import kda_scan, kda_steps
from equiv.rounding.kda_prepare import decays, squares
from equiv.rounding.kda_scan import Tokens
from equiv.rounding.kda_walk import codes, loaded, stored, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits
    from equiv.rounding.kda_prepare import Execution
    from equiv.rounding.kda_walk import Moment, Pools, Shape

U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int64]


class Records(NamedTuple):
    """What a step in mode record or commit leaves of its real requests.

    Attributes:
        corrections: u, float32 bits `[R, H, T, 128]`. key, gate: BF16 codes of the same shape.
    """

    corrections: U32
    key: U16
    gate: U16


class Plan(NamedTuple):
    """What a commit writes, in request order and for each request the final slot before the boundary's.

    Attributes:
        request: index among the real requests, `[W]`. source: its slot. target: the slot written.
        folded: number of tokens.
    """

    request: Ints
    source: Ints
    target: Ints
    folded: Ints


def recorded(shape: Shape, moment: Moment, run: Execution) -> Records:
    """Records of a step."""
    u = run("kda.10", moment.scanned.u).reshape(-1, shape.heads, shape.tokens, DIM)
    pair = (moment.prepared.mixed[:, :, 1], moment.prepared.raw)
    return Records(u, *(np.ascontiguousarray(run("kda.11", codes(x)).swapaxes(1, 2)) for x in pair))


def plan(inputs: Mapping[str, Bits]) -> Plan:
    """The commit's destinations: none for a request that accepted nothing or has no final slot."""
    real, slots = table(inputs)
    count, final, boundary, boundary_count = (
        np.asarray(inputs[name]).view(np.int32)[real].astype(np.int64)
        for name in ("counts", "final", "boundary", "boundary_counts")
    )
    target = np.stack([final, boundary], axis=1)
    counts = np.stack([count, boundary_count], axis=1)
    kept = ((count > 0) & (final > 0))[:, None] & (target > 0) & (counts > 0)
    request = np.nonzero(kept)[0]
    return Plan(request, slots[request, 0], target[kept], counts[kept])


def tokens_of(shape: Shape, records: Records, inputs: Mapping[str, Bits], run: Execution) -> Tokens:
    """Decays, normalised keys and corrections as a commit takes them from the records, `[R, H, T, 128]`."""
    key, raw = (np.asarray(x, dtype=np.uint32) << np.uint32(16) for x in (records.key, records.gate))
    n = run("kda.13a", squares(key, run.order("commit.squares")), kda_steps.TINY)
    found = decays(raw.swapaxes(1, 2), inputs, shape.lower_bound, run)
    return Tokens(np.ascontiguousarray(found.swapaxes(1, 2)), run("kda.13o", key, n), records.corrections)


def fold(shape: Shape, records: Records, inputs: Mapping[str, Bits], pools: Pools, run: Execution) -> tuple[Plan, U32]:
    """What a commit writes, and the states that it folds, as they are carried: float32 bits `[W, H, 128, 128]`."""
    todo = plan(inputs)
    given = tokens_of(shape, records, inputs, run)
    chosen = Tokens(*(x[todo.request].reshape(-1, shape.tokens, DIM) for x in given))
    before = loaded(shape, pools.state[todo.source], run)
    states = kda_scan.fold(before, np.repeat(todo.folded, shape.heads), chosen, run.step("kda.13p"))
    return todo, states.reshape(-1, shape.heads, DIM, DIM)


def commit(shape: Shape, records: Records, inputs: Mapping[str, Bits], pools: Pools, run: Execution) -> Plan:
    """Compacts windows and folds accepted tokens into states; all reads precede the writes."""
    todo, states = fold(shape, records, inputs, pools, run)
    columns = (todo.folded[:, None] - 1 + np.arange(TAPS - 1))[:, None]
    pools.conv[todo.target, :, : TAPS - 1] = np.take_along_axis(pools.conv[todo.source], columns, axis=2)
    pools.state[todo.target] = stored(shape, states, run)
    return todo
