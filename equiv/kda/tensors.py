"""Shapes and strides of the pair `kda`: what the parties get, and how logical outputs are cut from it.

Letters: B batch, T tokens a request, H heads, D = 128 H, M = B T rows a step, S = T + 2 columns of a window, R requests
with a slot, A without one, W state slots that are written. Sources: spec/kda.md 1.1 (row), 1.3 (window), 3 (slots).
Knows no values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.kda import DIM, RANK, TAPS
from equiv.pairs import Axis
from equiv.records import OutputSpec, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from equiv.records import AxisValue, Bits, Case

    Ints = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

HEADS = (6, 12, 24, 48, 96)
PAGE = DIM * DIM
"""Elements of one head's state: V rows of K."""
SPARE = 2
"""Slots of a pool that nothing needs, besides the null block."""
SPARSE_FROM = 1 << 28
"""Bytes from which on a strided state pool is sparse; a dense one never is."""

AXES = (
    Axis("batch", "int", 4, "requests in the batch, absent ones included", low=1, high=512),
    Axis("tokens", "int", 1, "tokens a request in one step", low=1, high=8),
    Axis("heads", "int", 12, "heads of this rank", HEADS),
    Axis("mode", "str", "step", "step: states are written; record: records instead; commit: record, then commit",
         ("step", "record", "commit")),
    Axis("kernel", "str", "ws", "the candidate: KdaWS or KdaWide", ("ws", "wide")),
    Axis("gate_mode", "int", 0, "order of the gate projection: one chain of MMAs, or four and their sum", (0, 1)),
    Axis("bias", "bool", default=False, meaning="the convolution has a bias"),
    Axis("window", "str", "dim_last", "layout of a convolution window: [S, 3D] or [3D, S]", ("dim_last", "dim_first")),
    Axis("state", "str", "f32", "format of the state pool; bf16 with the wide kernel only", ("f32", "bf16")),
    Axis("steps", "int", 1, "the same chain run so often on one pool (mode step)", low=1, high=8),
    Axis("ctas", "int", 0, "CTAs of the candidate's grid; 0 means its default", low=0, high=4096),
    Axis("slots", "int", 0, "slots of the pools, the null block included; 0 means what is needed and 2 more",
         low=0, high=4096),
    Axis("slot_stride", "int", 0, "elements of the state pool from slot to slot, a multiple of 16; 0 means dense",
         low=0, high=1 << 32),
    Axis("lower_bound", "float", -5.0, "lower bound of the log decay", low=-5.0, high=-0.0009765625),
    Axis("eps", "float", 1e-5, "added to the mean square of the output norm", low=1e-12, high=1.0),
)  # fmt: skip
_DEFAULTS = {axis.name: axis.default for axis in AXES}


def axis(case: Case, name: str) -> AxisValue:
    """The value of an axis, its default where the case does not name it."""
    return case.axes.get(name, _DEFAULTS[name])


def whole(case: Case, name: str) -> int:
    """An integer axis."""
    return int(axis(case, name))


def records(case: Case) -> bool:
    """Whether the step writes records instead of states (modes record and commit)."""
    return axis(case, "mode") != "step"


def columns(case: Case) -> int:
    """Columns of the slot table: one for each token, or a single one where no state is written by the step."""
    return 1 if records(case) else whole(case, "tokens")


def width(case: Case) -> int:
    """Columns of a projected row: q | k | v | output gate (D each) | F_A (128) | beta (H)."""
    return 4 * DIM * whole(case, "heads") + RANK + whole(case, "heads")


def needed(case: Case) -> int:
    """Slots that the requests of a case may take: those of its table, and two destinations each for a commit."""
    return whole(case, "batch") * (columns(case) + 2 * (axis(case, "mode") == "commit"))


def pool(case: Case) -> int:
    """Slots of both pools, the null block 0 included."""
    return whole(case, "slots") or needed(case) + 1 + SPARE


def slot_stride(case: Case) -> int:
    """Elements of the state pool from slot to slot."""
    return whole(case, "slot_stride") or whole(case, "heads") * PAGE


def seconds(case: Case) -> float:
    """About how long one core takes on an emulated device: models and envelopes go token by token, head by head."""
    heads, steps = whole(case, "heads"), whole(case, "steps")
    rows = whole(case, "batch") * whole(case, "tokens") * steps
    return 0.2 + 0.02 * rows * heads + 0.3 * (steps - 1) + 2e-8 * pool(case) * heads * PAGE


def layout(case: Case) -> tuple[TensorSpec, ...]:
    """The tensors both parties get; `conv_bias`, the records and the commit's plan only where the case has them."""
    batch, tokens, heads, steps = (whole(case, name) for name in ("batch", "tokens", "heads", "steps"))
    dim, slots, window = DIM * heads, pool(case), tokens + 2
    pitch = -(-width(case) // 16) * 16
    conv_strides = (
        (3 * dim * window, window, 1) if axis(case, "window") == "dim_first" else (3 * dim * window, 1, 3 * dim)
    )
    format_name = str(axis(case, "state"))
    stride = slot_stride(case)
    sparse = stride > heads * PAGE and slots * stride * (4 if format_name == "f32" else 2) > SPARSE_FROM

    def dense(name: str, role: str, format_name: str, *shape: int) -> TensorSpec:
        strides = tuple(int(np.prod(shape[at + 1 :], dtype=np.int64)) for at in range(len(shape)))
        return TensorSpec(name, role, format_name, shape, strides)

    found = [
        TensorSpec("rows", "input", "bf16", (steps * batch * tokens, width(case)), (pitch, 1)),
        dense("conv_w", "input", "f32", 3 * dim, TAPS),
        *([dense("conv_bias", "input", "f32", 3 * dim)] if axis(case, "bias") else []),
        TensorSpec("conv_state", "inout", "bf16", (slots, 3 * dim, window), conv_strides),
        dense("a_log", "input", "f32", heads),
        dense("dt_bias", "input", "f32", dim),
        dense("f_b", "input", "bf16", dim, RANK),
        dense("norm_w", "input", "bf16", DIM),
        dense("slots", "input", "i32", batch, columns(case)),
        dense("accepted", "input", "i32", steps, batch),
        TensorSpec("state", "inout", format_name, (slots, heads, DIM, DIM), (stride, PAGE, DIM, 1), sparse=sparse),
        dense("y", "output", "bf16", steps * batch * tokens, dim),
    ]
    if records(case):
        found.append(dense("corrections", "inout", "f32", batch, heads, tokens, DIM))
        found.append(dense("key_gate", "inout", "bf16", batch, heads, tokens, 2 * DIM))
    if axis(case, "mode") == "commit":
        found += [dense(name, "input", "i32", batch) for name in ("counts", "final", "boundary", "boundary_counts")]
    return tuple(found)


def present(inputs: Mapping[str, Bits]) -> Mask:
    """Which requests have slots, `[B]`: an id <= 0 is absent, and a request is absent as a whole."""
    return np.asarray(inputs["slots"].view(np.int32)[:, 0] > 0)


@dataclass(frozen=True, slots=True)
class Written:
    """The state slots that a run writes, each array `[W]` of int64.

    Attributes:
        request: index in the batch.
        slot: index in the pool.
        which: mode step: the token; commit: 0 for the final slot, 1 for the boundary's.
    """

    request: Ints
    slot: Ints
    which: Ints


def written(case: Case, inputs: Mapping[str, Bits]) -> Written:
    """The written state slots in request order: by token (step); the final one, then the boundary's (commit)."""
    mode = axis(case, "mode")
    if mode == "record":
        return Written(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    if mode == "step":
        table, kept = inputs["slots"].view(np.int32).astype(np.int64), present(inputs)
        kept = np.repeat(kept[:, None], table.shape[1], axis=1)
    else:
        plan = {
            name: inputs[name].view(np.int32).astype(np.int64)
            for name in ("counts", "final", "boundary", "boundary_counts")
        }
        table = np.stack([plan["final"], plan["boundary"]], axis=1)
        valid = present(inputs) & (plan["counts"] > 0) & (plan["final"] > 0)
        kept = np.stack([valid, valid & (plan["boundary_counts"] > 0)], axis=1) & (table > 0)
    request, which = np.nonzero(kept)
    return Written(request, table[kept], which)


def windows(case: Case, inputs: Mapping[str, Bits]) -> Mask:
    """Slots whose convolution window may change, `[slots]`."""
    owned = np.zeros(pool(case), dtype=np.bool_)
    owned[inputs["slots"].view(np.int32)[present(inputs), 0]] = True
    if axis(case, "mode") == "commit":
        owned[written(case, inputs).slot] = True
    return owned


def pages(case: Case, inputs: Mapping[str, Bits]) -> Mask:
    """Slots whose state may change, `[slots]`."""
    owned = np.zeros(pool(case), dtype=np.bool_)
    owned[written(case, inputs).slot] = True
    return owned


def outputs(case: Case, inputs: Mapping[str, Bits], tensors: Mapping[str, Bits]) -> dict[str, Bits]:
    """Logical outputs cut from the tensors after the run; `inputs` gives the slots.

    Shapes: y [steps, R, T, H, 128], y_absent [steps, A, T, D], conv [R, 3D, S], state [W, H, 128, 128], conv_rest and
    state_rest [n]: all elements of the pools in slots that nothing writes. With records: corrections, key, gate
    [R, H, T, 128] and record_rest [n] of uint16: the absent requests' corrections, then their key_gate. With a commit:
    conv_final [W, 3D, S].
    """
    steps, batch, tokens, heads = (whole(case, name) for name in ("steps", "batch", "tokens", "heads"))
    real = present(inputs)
    y = tensors["y"].reshape(steps, batch, tokens, heads, DIM)
    conv, state = tensors["conv_state"], tensors["state"]
    slots = inputs["slots"].view(np.int32)[real, 0]
    found: dict[str, Bits] = {
        "y": y[:, real],
        "y_absent": y[:, ~real].reshape(steps, -1, tokens, heads * DIM),
        "conv": conv[slots],
        "state": state[written(case, inputs).slot],
        "conv_rest": conv[~windows(case, inputs)].ravel(),
        "state_rest": state[~pages(case, inputs)].ravel(),
    }
    if records(case):
        corrections, key_gate = tensors["corrections"], tensors["key_gate"]
        found["corrections"] = corrections[real]
        found["key"], found["gate"] = key_gate[real][..., :DIM].copy(), key_gate[real][..., DIM:].copy()
        rest = np.ascontiguousarray(corrections[~real]).ravel().view("<u2").astype(np.uint16)
        found["record_rest"] = np.concatenate([rest, key_gate[~real].ravel()])
    if axis(case, "mode") == "commit":
        found["conv_final"] = conv[written(case, inputs).slot]
    return found


def output_specs(case: Case) -> tuple[OutputSpec, ...]:
    """The logical outputs and what is promised of each (spec/kda.md 2.2, 3)."""
    state = str(axis(case, "state"))
    specs = [
        OutputSpec("y", "bf16", ("step", "real request", "token", "head", "channel"), "envelope", _SUMS),
        OutputSpec(
            "y_absent", "bf16", ("step", "absent request", "token", "channel"), "candidate", _ZEROS, copied=True
        ),
        OutputSpec("conv", "bf16", ("real request", "channel", "column"), "bitwise", _COPIES, copied=True),
        OutputSpec("state", state, ("written slot", "head", "value", "key"), "envelope", _SUMS),
        OutputSpec("conv_rest", "u16", ("element",), "bitwise", _KEPT, copied=True),
        OutputSpec("state_rest", "u32" if state == "f32" else "u16", ("element",), "bitwise", _KEPT, copied=True),
    ]
    if records(case):
        record = ("real request", "head", "token", "channel")
        specs += [
            OutputSpec("corrections", "f32", (*record[:3], "value"), "envelope", _SUMS),
            OutputSpec("key", "bf16", record, "bitwise", "one chain of taps, SiLU and one rounding, all fixed"),
            OutputSpec("gate", "bf16", record, "bitwise", "the gate projection's order is part of the contract"),
            OutputSpec(
                "record_rest", "u16", ("element",), "bitwise", "an absent request writes no record", copied=True
            ),
        ]
    if axis(case, "mode") == "commit":
        window = ("written slot", "channel", "column")
        specs.append(OutputSpec("conv_final", "bf16", window, "bitwise", _COPIES, copied=True))
    return tuple(specs)


_SUMS = "sums over 128 channels may be taken in another declared order, nothing else"
_ZEROS = "a request without a slot gets +0 in all its rows"
_COPIES = "windows hold copies of inputs"
_KEPT = "slots that nothing writes stay as they were"


FORMS = {
    "oracle": ("packed", "packed-bf16", "multi", "multi-bf16", "verify", "verify-bf16"),
    "candidate": ("wide", "ws", "wide-commit", "ws-commit"),
}
"""Party -> what it declares separately."""


def form(party: str, case: Case, _arch: str) -> str:
    """The form of a party that serves a case on every architecture: its own kernels, hence its own orders."""
    mode = axis(case, "mode")
    if party == "candidate":
        return f"{axis(case, 'kernel')}-commit" if mode == "commit" else str(axis(case, "kernel"))
    name = "verify" if mode != "step" else "multi" if whole(case, "tokens") > 1 else "packed"
    return name if axis(case, "state") == "f32" else f"{name}-bf16"
