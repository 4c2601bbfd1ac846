"""What a `kda` kernel may have read, or where it may have written, instead: hypotheses that explain mismatches.

A hypothesis is a set of changed inputs, in words that end a sentence beginning with "as if". Besides tensors of the
pair it may have `present` (which requests count as real) and `kept` (where states are left): see `kda_walk`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.geometry.kda import DIM
from equiv.kda import tensors
from equiv.kda.tensors import axis, present, records, whole
from equiv.rounding.kda import execute, owned
from equiv.rounding.kda_walk import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from equiv.kda.tensors import Ints, Mask
    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger

    Changed = Mapping[str, Any]


def misreadings(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Changed]]:
    """Every hypothesis that is another computation for this case, in words and as changed inputs."""
    real = present(inputs)
    for words, changed in _all(case, inputs):
        if any(name not in inputs or not np.array_equal(bits, inputs[name]) for name, bits in changed.items()):
            if "present" in changed and not changed["present"].any():
                continue
            if real.any() or "present" in changed:
                yield words, changed


def _all(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Changed]]:
    yield from _operands(case, inputs)
    yield from _pools(case, inputs)
    yield from _slots(case, inputs)
    if whole(case, "tokens") > 1 and not records(case):
        yield from _accepted(case, inputs)
    if axis(case, "mode") == "commit":
        yield from _commits(case, inputs)


def _operands(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Changed]]:
    if "conv_bias" in inputs:
        yield "the convolution's bias were not added", {"conv_bias": np.zeros_like(inputs["conv_bias"])}
    yield "dt_bias were not added", {"dt_bias": np.zeros_like(inputs["dt_bias"])}
    taps, zero = inputs["conv_w"], np.zeros_like(inputs["conv_w"][:, :1])
    yield "the taps were in reverse order", {"conv_w": taps[:, ::-1]}
    yield "the taps came one column late, the last one not at all", {"conv_w": np.concatenate([zero, taps[:, :3]], 1)}
    yield "the taps came one column early, the first one not at all", {"conv_w": np.concatenate([taps[:, 1:], zero], 1)}
    dim, rows = DIM * whole(case, "heads"), inputs["rows"]
    parts = {"q": 0, "k": 1, "v": 2}
    for one, other in (("q", "k"), ("k", "v")):
        order = [other if part == one else one if part == other else part for part in parts]
        columns = [rows[:, parts[part] * dim : (parts[part] + 1) * dim] for part in order]
        yield f"the rows' {one} and {other} were exchanged", {"rows": np.concatenate([*columns, rows[:, 3 * dim :]], 1)}


def _pools(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Changed]]:
    """Windows and states of real requests, read otherwise."""
    real, slots = table(inputs)
    if not real.any():
        return
    conv = inputs["conv_state"]
    lies = (0, 2, 1) if axis(case, "window") == "dim_last" else (0, 1, 2)
    for words, by in (("late", -1), ("early", 1)):
        line = conv.transpose(lies)  # what follows a window's last column in memory is read in its place
        columns = DIM * 3 * whole(case, "heads") if lies[1] == 2 else 1
        moved = np.roll(line.ravel(), by * columns).reshape(line.shape).transpose(lies)
        yield f"the windows were read one column {words}", {"conv_state": _in(conv, slots[:, 0], moved)}
    if whole(case, "steps") == 1 and (inputs["accepted"] > 1).any():
        start = inputs["accepted"].view(np.int32)[0] - 1
        first = conv.copy()
        for request, slot in zip(np.flatnonzero(real), slots[:, 0], strict=True):
            first[slot] = np.roll(conv[slot], start[request], axis=1)
        yield "the windows were read from their first column, whatever was accepted", {"conv_state": first}
    state = inputs["state"]
    yield "the states were not read, but zero", {"state": _in(state, slots.ravel(), np.zeros_like(state))}
    yield "the states were read transposed", {"state": _in(state, slots.ravel(), np.swapaxes(state, -1, -2))}


def _in(pool: Bits, slots: Ints, other: Bits) -> Bits:
    """The pool with what `other` has in some slots."""
    mixed = pool.copy()
    mixed[slots] = other[slots]
    return mixed


def _slots(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Changed]]:
    """Slots that are ignored, ids that wrap, states left in slots of other tokens."""
    table_of, real = inputs["slots"].view(np.int32).astype(np.int64), present(inputs)
    batch, columns = table_of.shape
    count = len(inputs["state"])
    for words, first in (("its number in the batch", 0), ("its number in the batch + 1", 1)):
        own = first + np.arange(batch * columns).reshape(batch, columns)
        if own.max() < count:
            chosen = np.where(real[:, None], own, table_of)
            yield f"each request's slot were {words}", _taken(chosen, real)
    everyone, negative = np.ones_like(real), table_of[:, 0] < 0
    if negative.any():
        yield "a negative slot were counted from the last one", _taken(table_of % count, real | negative)
        yield "a negative slot were slot 0", _taken(np.maximum(table_of, 0), real | negative)
    if not real.all():
        yield "every slot <= 0 were slot 0", _taken(np.maximum(table_of, 0), everyone)
    if columns > 1 and not records(case):
        yield (
            "every token's state were left in the first token's slot",
            {"kept": np.repeat(table_of[:, :1], columns, 1)},
        )
        for words, by in (("next", -1), ("previous", 1)):
            yield f"each token's state were left in the {words} token's slot", {"kept": np.roll(table_of, by, axis=1)}


def _taken(slots: Ints, who: Mask) -> Changed:
    return {"slots": _ids(slots), "present": np.asarray(who)}


def _accepted(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Changed]]:
    accepted, most = inputs["accepted"], np.uint32(whole(case, "tokens"))
    yield "accepted counts were not read, but 1", {"accepted": np.ones_like(accepted)}
    yield "accepted counts were not read, but all", {"accepted": np.full_like(accepted, most)}
    yield "accepted counts were one more", {"accepted": np.minimum(accepted + np.uint32(1), most)}
    yield "accepted counts were one less", {"accepted": np.maximum(accepted, np.uint32(2)) - np.uint32(1)}


def _commits(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Changed]]:
    plan = {name: inputs[name].view(np.int32) for name in ("counts", "final", "boundary", "boundary_counts")}
    some, most = plan["counts"] > 0, whole(case, "tokens")
    more = np.where(some, np.minimum(plan["counts"] + 1, most), plan["counts"])
    yield "a token more than was accepted were committed", {"counts": _ids(more)}
    yield "a token fewer than was accepted were committed", {"counts": _ids(np.maximum(plan["counts"] - 1, 0))}
    yield "all tokens were committed", {"counts": _ids(np.where(some, most, 0))}
    to_boundary = np.where(plan["boundary"] > 0, plan["counts"], plan["boundary_counts"])
    yield "the boundary's slot got all accepted tokens", {"boundary_counts": _ids(to_boundary)}
    yield "the boundary's slot got nothing", {"boundary": _ids(np.zeros_like(plan["boundary"]))}
    in_place = np.where(plan["final"] > 0, inputs["slots"].view(np.int32)[:, 0], plan["final"])
    yield "every commit were in place", {"final": _ids(in_place)}


def _ids(numbers: npt.NDArray[Any]) -> Bits:
    return numbers.astype(np.int32).view(np.uint32)


def misread(
    case: Case, inputs: Mapping[str, Bits], changed: Changed, declaration: Declaration, ledger: Ledger
) -> dict[str, Bits]:
    """The outputs of a kernel that reads something else, cut where the case's own inputs say that they are.

    Args:
        case: the case.
        inputs: its inputs.
        changed: what the kernel has in place of some.
        declaration: its orders and variants.
        ledger: the rows it executes.
    """
    read = {**inputs, **changed}
    done = execute(case, read, declaration, ledger)
    real, _ = table(read)
    _, windows, pages = owned(done.shape, read, done.commit)
    y = np.zeros((done.shape.steps, len(real), *done.y.shape[2:]), dtype=np.uint16)
    y[:, real] = done.y
    # What was read otherwise was not written so.
    conv, state = done.pools.conv, done.pools.state
    conv[~windows], state[~pages] = inputs["conv_state"][~windows], inputs["state"][~pages]
    left: dict[str, Bits] = {"y": y, "conv_state": conv, "state": state}
    if done.records:
        left["corrections"], left["key_gate"] = inputs["corrections"].copy(), inputs["key_gate"].copy()
        left["corrections"][real] = done.records.corrections
        left["key_gate"][real] = np.concatenate([done.records.key, done.records.gate], axis=-1)
    return tensors.outputs(case, inputs, left)
