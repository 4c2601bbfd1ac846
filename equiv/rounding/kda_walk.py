"""The steps of a `kda` case one after another: pools, slots, recurrence and gated norm (spec kda 1.4, 1.5, 1.8, 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equiv.geometry.kda import DIM
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda_scan
from equiv.rounding.kda_prepare import Prepared, Rows, prepare, squares

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.records import Bits, Case
    from equiv.rounding.kda_prepare import Execution
    from equiv.rounding.kda_scan import Scanned

U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes of a case as the model uses them."""

    steps: int
    batch: int
    tokens: int
    heads: int
    gate_mode: int
    mode: str
    bf16_state: bool
    lower_bound: U32
    eps: U32

    @classmethod
    def of(cls, case: Case) -> Shape:
        """Reads a case whose defaults are filled in."""
        axes = case.axes
        return cls(
            steps=int(axes["steps"]),
            batch=int(axes["batch"]),
            tokens=int(axes["tokens"]),
            heads=int(axes["heads"]),
            gate_mode=int(axes["gate_mode"]),
            mode=str(axes["mode"]),
            bf16_state=axes["state"] == "bf16",
            lower_bound=fp.bits_of(float(axes["lower_bound"])),
            eps=fp.bits_of(float(axes["eps"])),
        )

    @property
    def records(self) -> bool:
        """Whether the step writes records and no state."""
        return self.mode != "step"

    def start(self, inputs: Mapping[str, Bits], step: int, real: Mask) -> Ints:
        """Column of the window at which a real request's taps begin, and of its slots: accepted - 1, `[R]`."""
        accepted = np.asarray(inputs["accepted"]).view(np.int32)[step, real].astype(np.int64)
        return accepted - 1 if not self.records else np.zeros_like(accepted)


def table(inputs: Mapping[str, Bits]) -> tuple[Mask, Ints]:
    """Which requests are real `[B]`, and the slots of those `[R, T or 1]`: an id <= 0 is no slot.

    A kernel that takes such an id for a slot has, in place of what is real, `present` `[B]` among its inputs.
    """
    slots = np.asarray(inputs["slots"]).view(np.int32).astype(np.int64)
    real = np.asarray(inputs["present"], dtype=np.bool_) if "present" in inputs else slots[:, 0] > 0
    return real, slots[real]


def kept(inputs: Mapping[str, Bits]) -> Ints:
    """Slots of the real requests' states after each token; a kernel with others of its own has them as `kept`."""
    real, slots = table(inputs)
    return np.asarray(inputs["kept"], dtype=np.int64)[real] if "kept" in inputs else slots


@dataclass(frozen=True, slots=True)
class Pools:
    """Both pools as they change: `conv` `[slots, 3D, S]`, `state` `[slots, H, 128, 128]`."""

    conv: Bits
    state: Bits

    @classmethod
    def of(cls, inputs: Mapping[str, Bits]) -> Pools:
        """Copies of what they are before the run."""
        return cls(inputs["conv_state"].copy(), inputs["state"].copy())


class Moment(NamedTuple):
    """One step of the real requests.

    Attributes:
        step: its number. slots: of the requests, `[R, T or 1]`. source: those that states are read from, `[R]`.
        before: these states as float32 bits, by items `[R H, 128, 128]`.
        rows: what the step was given. prepared: operands of the recurrence. scanned: its results.
        y: BF16 codes `[R, T, H, 128]`.
    """

    step: int
    slots: Ints
    source: Ints
    before: U32
    rows: Rows
    prepared: Prepared
    scanned: Scanned
    y: U16


def codes(bits: U32) -> U16:
    """BF16 codes of BF16 values that travelled as float32."""
    return (np.asarray(bits) >> np.uint32(16)).astype(np.uint16)


def loaded(shape: Shape, pages: Bits, run: Execution) -> U32:
    """States of a pool as the recurrence carries them, `[items, 128, 128]` float32 bits."""
    wide = run("kda.6", pages) if shape.bf16_state else pages
    return np.asarray(wide, dtype=np.uint32).reshape(-1, DIM, DIM)


def stored(shape: Shape, states: U32, run: Execution) -> Bits:
    """What the pool keeps of carried states."""
    return codes(run("kda.7", states)) if shape.bf16_state else np.asarray(run("kda.7a", states))


def normed(shape: Shape, o: U32, gate: U16, norm_w: Bits, run: Execution) -> U16:
    """Gated norm of o `[..., 128]` (BF16 values as float32 bits) with gates of the same shape: BF16 codes."""
    mean = run("kda.13q", squares(o, run.order("norm.squares")), shape.eps)
    weighted = run("kda.13t", run("kda.13s", o, run("kda.13r", mean)), run("kda.12", norm_w))
    return codes(run("kda.9", run("kda.13v", weighted, run("kda.13u", run("kda.1", gate)))))


def by_token(items: npt.NDArray[Any], shape: Shape) -> npt.NDArray[Any]:
    """`[R H, T, 128]` as `[R, T, H, 128]`."""
    return np.ascontiguousarray(items.reshape(-1, shape.heads, shape.tokens, DIM).swapaxes(1, 2))


def walk(shape: Shape, inputs: Mapping[str, Bits], pools: Pools, run: Execution) -> Iterator[Moment]:
    """Runs the steps of a case one after another; the pools hold a step's results when it is handed out."""
    real, slots = table(inputs)
    rows = inputs["rows"].reshape(shape.steps, shape.batch, shape.tokens, -1)
    orders = (run.order("dot"), run.order("out"))
    steps = tuple(run.step(row) for row in kda_scan.ROWS)
    for step in range(shape.steps):
        start = shape.start(inputs, step, real)
        source = slots[np.arange(len(slots)), start]
        given = Rows.cut(rows[step, real], shape.heads)
        gate = (shape.gate_mode, shape.lower_bound)
        prepared = prepare(given, pools.conv[slots[:, 0]], start, inputs, run, gate=gate)
        before = loaded(shape, pools.state[source], run)
        scanned = kda_scan.scan(before, prepared.operands, orders, steps, keep=not shape.records)
        o = by_token(run("kda.8", scanned.o), shape)
        y = normed(shape, o, given.gate.reshape(o.shape), inputs["norm_w"], run)
        pools.conv[slots[:, 0]] = prepared.window
        if not shape.records:
            states = scanned.states.reshape(len(slots), shape.heads, shape.tokens, DIM, DIM)
            for token in range(shape.tokens):
                pools.state[kept(inputs)[:, token]] = stored(shape, states[:, :, token], run)
        yield Moment(step, slots, source, before, given, prepared, scanned, y)
