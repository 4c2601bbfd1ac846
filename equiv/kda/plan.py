"""Which slots the requests of a `kda` case own, who is absent, how many tokens were accepted, where a commit goes.

Sources: spec/kda.md 3 (slots and padding), 1.7 (commit).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.inputs import Draws
from equiv.kda import tensors
from equiv.kda.tensors import axis, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.inputs import Ints
    from equiv.kda.tensors import Mask
    from equiv.records import Bits, Case

FAR_SLOTS = 10
FAR_STRIDE = 1 << 29
"""Elements a slot, 2**31 bytes in FP32: slot 2 is at byte 2**32, slot 4 at element 2**31, slot 8 at element 2**32."""
_FAR = (9, 1, 5, 8, 2, 4, 3, 7, 6)
"""Slots and their images under 32-bit products come together: 9 and 1 in elements, 9, 1, 5 and 7 in bytes."""
NEGATIVE = (-1, -2, -(1 << 31), -64, -(1 << 16))
"""Every one means "absent", as 0 does; some become a slot when wrapped, cut to 16 bits or multiplied in 32."""


def _edges(slots: int) -> Ints:
    """The last slot, the first one, the last but one, ..."""
    ids = np.arange(1, slots)
    return np.stack([ids[::-1], ids], axis=1).ravel()[: slots - 1]


SLOTS: Mapping[str, Callable[[Draws, int], Ints]] = {
    "permuted": lambda draws, slots: 1 + draws.order("slots", slots - 2),
    "in_order": lambda _d, slots: np.arange(1, slots),
    "reversed": lambda _d, slots: np.arange(slots - 1, 0, -1),
    "edges": lambda _d, slots: _edges(slots),
    "far": lambda _d, _s: np.array(_FAR),
}
"""Real slots in the order in which they are given away; `permuted` spares the last one, where a -1 would wrap to."""

ABSENT: Mapping[str, Callable[[Ints], Mask]] = {
    "none": lambda index: index < 0,
    "first": lambda index: index == 0,
    "last": lambda index: index == len(index) - 1,
    "middle": lambda index: index == len(index) // 2,
    "even": lambda index: index % 2 == 0,
    "odd": lambda index: index % 2 == 1,
    "front": lambda index: index < len(index) // 2,
    "tail": lambda index: index >= (len(index) + 1) // 2,
    "all_but_one": lambda index: index != len(index) // 2,
    "all": lambda index: index >= 0,
}
NULL: Mapping[str, Callable[[Ints], Ints]] = {
    "zero": np.zeros_like,
    "negative": lambda count: np.array(NEGATIVE)[count % len(NEGATIVE)],
    "both": lambda count: np.where(count % 2 == 0, 0, np.array(NEGATIVE)[count // 2 % len(NEGATIVE)]),
}
"""The ids of absent requests, by their number."""

ACCEPTED: Mapping[str, Callable[[Draws, tuple[int, int], int], Ints]] = {
    "random": lambda draws, shape, most: 1 + draws.below("accepted", most, shape),
    "one": lambda _d, shape, _m: np.ones(shape, dtype=np.int64),
    "all": lambda _d, shape, most: np.full(shape, most),
    "changing": lambda _d, shape, most: 1 + (np.arange(shape[1]) - np.arange(shape[0])[:, None]) % most,
}
"""Accepted counts [steps, B] in 1..most; `changing`: every request has another one in each step."""

COUNTS: Mapping[str, Callable[[Draws, int, int], Ints]] = {
    "random": lambda draws, batch, tokens: draws.below("counts", tokens + 1, (batch,)),
    "each": lambda _d, batch, tokens: np.arange(batch) % (tokens + 1),
    "all": lambda _d, batch, tokens: np.full(batch, tokens),
    "one": lambda _d, batch, _t: np.ones(batch, dtype=np.int64),
    "none": lambda _d, batch, _t: np.zeros(batch, dtype=np.int64),
}
FINAL = ("source", "other", "mixed", "none")
BOUNDARY = ("none", "other", "source", "mixed")
"""A destination: the slot that was read, another one, nothing, or one of these by request."""

REGIMES: Mapping[str, tuple[str, ...]] = {
    "slots": tuple(SLOTS),
    "absent": tuple(ABSENT),
    "null": tuple(NULL),
    "accepted": tuple(ACCEPTED),
    "counts": tuple(COUNTS),
    "final": FINAL,
    "boundary": BOUNDARY,
}
_OF_COMMITS = ("counts", "final", "boundary")


def decide(case: Case, regimes: Mapping[str, str]) -> dict[str, Bits]:
    """`slots`, `accepted` and the commit's plan, as bits of int32.

    Args:
        case: the case.
        regimes: the regime of every piece of `REGIMES`.
    """
    batch, columns = whole(case, "batch"), tensors.columns(case)
    order = SLOTS[regimes["slots"]](Draws(case.seed, "slots"), tensors.pool(case))
    table, others = order[: batch * columns].reshape(batch, columns), order[batch * columns :]
    absent = ABSENT[regimes["absent"]](np.arange(batch))
    table = np.where(absent[:, None], NULL[regimes["null"]](np.arange(batch * columns).reshape(batch, columns)), table)
    shape = (whole(case, "steps"), batch)
    accepted = ACCEPTED[regimes["accepted"]](Draws(case.seed, "accepted"), shape, columns)
    found = {"slots": table, "accepted": accepted}
    if axis(case, "mode") == "commit":
        found |= _commit(case, regimes, np.where(absent, 0, table[:, 0]), others)
    return {name: values.astype(np.int32).view(np.uint32) for name, values in found.items()}


def _commit(case: Case, regimes: Mapping[str, str], source: Ints, others: Ints) -> dict[str, Ints]:
    """Counts and destinations of each request; an absent one has none (spec/kda.md 1.7 a).

    A boundary has a slot only where it has tokens, and never the final one's.
    """
    batch, draws = whole(case, "batch"), Draws(case.seed, "commit")
    counts = COUNTS[regimes["counts"]](draws, batch, whole(case, "tokens"))
    counts = np.where(source > 0, counts, 0)
    first, second = others[:batch], others[batch : 2 * batch]
    final = _destination(regimes["final"], draws.below("final", 3, (batch,)), source, first)
    final = np.where(source > 0, final, 0)
    boundary = _destination(regimes["boundary"], draws.below("boundary", 3, (batch,)), source, second)
    boundary = np.where((counts > 0) & (final > 0), boundary, 0)
    boundary = np.where(boundary == final, 0, boundary)
    reached = 1 + draws.words("reached", (batch,)).astype(np.int64) % np.maximum(counts, 1)
    return {
        "counts": counts,
        "final": final,
        "boundary": boundary,
        "boundary_counts": np.where(boundary > 0, reached, 0),
    }


def _destination(name: str, dealt: Ints, source: Ints, other: Ints) -> Ints:
    kinds = {"source": source, "other": other, "none": np.zeros_like(source)}
    return kinds[name] if name in kinds else np.choose(dealt, [kinds["source"], kinds["other"], kinds["none"]])


def check(case: Case, regimes: Mapping[str, str]) -> list[tuple[str, str]]:
    """What is wrong with the regimes of slots and commits, as (path below the case, problem) pairs."""
    found = []
    if axis(case, "mode") != "commit":
        for piece in _OF_COMMITS:
            if regimes[piece] != REGIMES[piece][0]:
                problem = f'"{regimes[piece]}" is for mode "commit", got mode="{axis(case, "mode")}"'
                found.append((f"regimes.{piece}", problem))
    if regimes["final"] == regimes["boundary"] == "source":
        found.append(("regimes.boundary", 'one slot cannot take both states, got "source" for final and boundary'))
    if regimes["absent"] == "none" and regimes["null"] != "zero":
        found.append(("regimes.null", f'no request is absent, got "{regimes["null"]}"'))
    if regimes["slots"] == "far":
        if tensors.pool(case) != FAR_SLOTS:
            found.append(("axes.slots", f'slots "far" are for a pool of {FAR_SLOTS}, got slots={tensors.pool(case)}'))
        if tensors.slot_stride(case) < FAR_STRIDE:
            problem = f'slots "far" need slot_stride >= {FAR_STRIDE}, got {tensors.slot_stride(case)}'
            found.append(("axes.slot_stride", problem))
    return found
