"""Where an element of a `kda` output lies, in words, and which slots, requests and heads differing elements share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.kda import DIM
from equiv.kda import tensors
from equiv.kda.tensors import PAGE, Written, axis, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.kda.tensors import Ints
    from equiv.records import Bits, Case

LISTED = 4
"""Slots, requests and heads that are named one by one."""
REST = ("conv_rest", "state_rest", "record_rest")
PARTS = ("q", "k", "v")


def place(case: Case, inputs: Mapping[str, Bits], output: str, index: tuple[int, ...]) -> str:
    """Where an element of an output lies: `slot 7 (request 2, token 1), head 3, value 5, key 17`."""
    if output in REST:
        return _rest_place(case, inputs, output, index[0])
    spec = next(spec for spec in tensors.output_specs(case) if spec.name == output)
    words = []
    for dim, at in zip(spec.dims, index, strict=True):
        if dim == "written slot":
            words.append(_written_place(case, tensors.written(case, inputs), at))
        elif dim in ("real request", "absent request"):
            words.append(_request_place(inputs, _requests(inputs, dim)[at], output))
        elif dim == "channel" and output in ("conv", "conv_final"):
            words.append(_channel_place(case, at))
        elif dim == "channel" and output == "y_absent":
            words.append(f"head {at // DIM}, channel {at % DIM}")
        else:
            words.append(f"{dim} {at}")
    return ", ".join(words)


def shared(case: Case, inputs: Mapping[str, Bits], output: str, indices: Ints) -> str:
    """What differing elements share: `all in slot 7 (request 2, token 1)`, `all in slot 0, which nothing writes`, "".

    Args:
        case: the case.
        inputs: its inputs, for the slots.
        output: a logical output.
        indices: indices of its differing elements, `[n, dims]`.
    """
    if output in REST:
        return _rest_shared(case, inputs, output, indices[:, 0])
    dims = next(spec for spec in tensors.output_specs(case) if spec.name == output).dims
    if "written slot" in dims:
        found, of = np.unique(indices[:, dims.index("written slot")]), tensors.written(case, inputs)
        if len(found) > LISTED or len(found) == len(of.slot):
            return ""
        return "all in " + ", ".join(_written_place(case, of, at) for at in found.tolist())
    for dim in ("real request", "absent request"):
        if dim in dims:
            requests = _requests(inputs, dim)
            found = requests[np.unique(indices[:, dims.index(dim)])]
            if len(found) <= LISTED and len(found) < len(requests):
                return "all in " + ", ".join(_request_place(inputs, at, output) for at in found.tolist())
    return ""


def _requests(inputs: Mapping[str, Bits], dim: str) -> Ints:
    """Indices in the batch of the requests that a dimension counts."""
    return np.flatnonzero(tensors.present(inputs) == (dim == "real request"))


def _written_place(case: Case, of: Written, at: int) -> str:
    which = f"token {of.which[at]}" if axis(case, "mode") == "step" else ("final", "boundary")[int(of.which[at])]
    return f"slot {of.slot[at]} (request {of.request[at]}, {which})"


def _request_place(inputs: Mapping[str, Bits], request: int, output: str) -> str:
    if output != "conv":
        return f"request {request}"
    return f"slot {inputs['slots'].view(np.int32)[request, 0]} (request {request})"


def _channel_place(case: Case, channel: int) -> str:
    part, inside = divmod(channel, DIM * whole(case, "heads"))
    return f"{PARTS[part]} of head {inside // DIM}, channel {inside % DIM}"


def _free(case: Case, inputs: Mapping[str, Bits], output: str) -> Ints:
    """Slots that an output of the rest of a pool consists of, in order."""
    owned = (tensors.windows if output == "conv_rest" else tensors.pages)(case, inputs)
    return np.flatnonzero(~owned)


def _rest_place(case: Case, inputs: Mapping[str, Bits], output: str, at: int) -> str:
    heads, tokens = whole(case, "heads"), whole(case, "tokens")
    if output == "record_rest":
        requests = _requests(inputs, "absent request")
        size, name = heads * tokens * 2 * DIM, "corrections"
        if at >= len(requests) * size:  # both records have 256 words a token: 128 of 32 bits, or 256 of 16
            at, name = at - len(requests) * size, "key_gate"
        which, inside = divmod(at, size)
        head, word = divmod(inside, tokens * 2 * DIM)
        return f"{name} of absent request {requests[which]}, head {head}, word {word}"
    free = _free(case, inputs, output)
    if output == "conv_rest":
        which, inside = divmod(at, 3 * DIM * heads * (tokens + 2))
        channel, column = divmod(inside, tokens + 2)
        return f"slot {free[which]}, {_channel_place(case, channel)}, column {column}, which nothing writes"
    which, inside = divmod(at, heads * PAGE)
    head, inside = divmod(inside, PAGE)
    return f"slot {free[which]}, head {head}, value {inside // DIM}, key {inside % DIM}, which nothing writes"


def _rest_shared(case: Case, inputs: Mapping[str, Bits], output: str, at: Ints) -> str:
    heads, tokens = whole(case, "heads"), whole(case, "tokens")
    if output == "record_rest":
        requests = _requests(inputs, "absent request")
        which = at // (heads * tokens * 2 * DIM) % max(len(requests), 1)
        return f"all in records of {_listed('absent request', np.unique(requests[which]))}"
    free = _free(case, inputs, output)
    if output == "conv_rest":
        channels = 3 * DIM * heads
        slots, inside = np.divmod(at, channels * (tokens + 2))
        touched = np.unique(inside // (tokens + 2) % (DIM * heads) // DIM)
    else:
        slots, inside = np.divmod(at, heads * PAGE)
        touched = np.unique(inside // PAGE)
    where = _listed("slot", np.unique(free[slots]))
    of = "" if len(touched) == heads else f"{_listed('head', touched)} of "
    return f"all in {of}{where}, which nothing writes"


def _listed(noun: str, numbers: Ints) -> str:
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if len(numbers) > 2 and int(numbers[-1] - numbers[0]) == len(numbers) - 1:
        return f"{noun}s {numbers[0]}..{numbers[-1]}"
    return f"{noun}s {', '.join(map(str, numbers.tolist()))}" if len(numbers) <= LISTED else f"{len(numbers)} {noun}s"
