"""What a step of `kda` computes before the recurrence: convolution, gates, norms of q and k (spec kda 1.2 to 1.4).

Everything here is element by element in a fixed sequence, but for the gate projection and the two sums of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from equiv.errors import RecordError
from equiv.geometry.kda import DIM, RANK, TAPS
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda_native, kda_steps, matrix, matrix_native
from equiv.rounding.kda_ledger import LEDGER
from equiv.rounding.kda_scan import Operands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger, Step
    from equiv.rounding.orders import Order

U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
Runner = Callable[..., Any]
"""Executes a ledger row by id on bit patterns: `run("kda.8", o)`."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Ledger rows and reductions as one party declares them.

    Raises:
        UsageError: the declaration names an unknown row or variant.
    """

    declaration: Declaration
    ledger: Ledger = LEDGER
    _steps: dict[str, Step] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.ledger.check(self.declaration.variants)
        steps = {row.id: self.ledger.step(row.id, self.declaration.variants) for row in self.ledger}
        object.__setattr__(self, "_steps", steps)

    def __call__(self, row_id: str, *operands: Any) -> Any:  # noqa: ANN401
        """Executes a row on bit patterns."""
        return self._steps[row_id](*operands)

    def step(self, row_id: str) -> Step:
        """The function of a row."""
        return self._steps[row_id]

    def order(self, reduction: str) -> Order:
        """The order of a reduction."""
        return self.declaration.order(reduction)


SCALE: Final = np.uint32(0x3DB504F3)
"""128^-0.5, applied to q."""


class Rows(NamedTuple):
    """The projected rows of one step's real requests, cut into their columns: BF16 codes.

    Attributes:
        qkv: `[R, T, 3D]`. gate: the output gate, `[R, T, D]`. f_a: `[R, T, 128]`. beta: `[R, T, H]`.
    """

    qkv: U16
    gate: U16
    f_a: U16
    beta: U16

    @classmethod
    def cut(cls, rows: Bits, heads: int) -> Rows:
        """Cuts rows `[R, T, 4D + 128 + H]`."""
        dim = heads * DIM
        ends = (3 * dim, 4 * dim, 4 * dim + RANK)
        return cls(*np.split(np.asarray(rows, dtype=np.uint16), ends, axis=-1))


class Prepared(NamedTuple):
    """What the recurrence of one step takes, and what is recorded of it.

    Attributes:
        window: the convolution's window after the step, BF16 codes `[R, 3D, T + 2]`.
        taps: sums of the convolution's taps, `[R, T, 3, H, 128]` float32 bits.
        mixed: q, k, v after SiLU, BF16 values, of the same shape.
        raw: the gate projection, `[R, T, H, 128]` float32 bits.
        operands: of items (request, head), N = R H.
    """

    window: U16
    taps: U32
    mixed: U32
    raw: U32
    operands: Operands


def items(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`[R, T, H, ...]` by items: `[R H, T, ...]`."""
    moved = np.ascontiguousarray(array.swapaxes(1, 2))
    return moved.reshape(-1, *moved.shape[2:])


def convolve(
    window: U16, start: npt.NDArray[np.int64], x: U16, inputs: Mapping[str, Bits], run: Runner
) -> tuple[U16, U32]:
    """Causal convolution, without its SiLU.

    Args:
        window: of each request before the step, BF16 codes `[R, 3D, S]`.
        start: the column its taps begin at, `[R]`.
        x: new columns `[R, T, 3D]`.
        inputs: `conv_w` and, where there is one, `conv_bias`.
        run: executes rows.

    Returns:
        The window after the step, and the sums of taps `[R, T, 3D]` as float32 bits.
    """
    tokens = x.shape[1]
    columns = (start[:, None] + np.arange(TAPS - 1))[:, :, None]
    old = np.take_along_axis(window.swapaxes(1, 2), columns, axis=1)
    seen = run("kda.3", np.concatenate([old, x], axis=1))
    wide = run("kda.1", seen)
    bias = inputs["conv_bias"] if "conv_bias" in inputs else np.uint32(0)
    total: U32 = np.broadcast_to(np.asarray(bias, dtype=np.uint32), x.shape)
    for tap in range(TAPS):
        total = run("kda.4", wide[:, tap : tap + tokens], inputs["conv_w"][:, tap], total)
    after = window.copy()
    after[:, :, : tokens + TAPS - 2] = seen[:, 1:].swapaxes(1, 2)
    return after, total


def project(f_a: U16, f_b: Bits, order: Order) -> U32:
    """F_A F_B^T in a declared order.

    Args:
        f_a: BF16 codes `[M, 128]`.
        f_b: BF16 codes `[D, 128]`.
        order: over the 128 products of an element; matrix instructions take whole tiles.

    Returns:
        Float32 bits `[M, D]`.

    Raises:
        RecordError: the order has sums whose arithmetic is not known.
    """
    left, right = np.asarray(f_a, dtype=np.uint16), np.ascontiguousarray(np.asarray(f_b, dtype=np.uint16).T)
    wide = [np.asarray(codes, dtype=np.uint32) << np.uint32(16) for codes in (left, right)]
    found: list[U32] = []
    for node in order.nodes:
        kind = node[0]
        if kind == "mma":
            model, at = matrix.variant(*str(node[1]).split()), list(node[2])
            found.append(matrix_native.fused_dot(model, left[:, at], right[at], found[node[3]]).astype(np.uint32))
        elif kind == "const":
            found.append(np.full((len(left), right.shape[1]), node[1], dtype=np.uint32))
        elif kind == "add":
            found.append(fp.add(found[node[1]], found[node[2]]))
        elif kind in {"leaf", "fma"}:
            a, b = wide[0][:, node[1], None], wide[1][node[1]]
            found.append(fp.mul(a, b) if kind == "leaf" else fp.fma(a, b, found[node[2]]))
        else:
            raise RecordError("a gate order with sums of several terms at once, whose arithmetic is not known")
    return found[order.roots[0]]


def squares(x: U32, order: Order) -> U32:
    """Sum of squares along the last axis as its consumers see it, `[..., 1]` or `[..., 128]`."""
    return order.seen(order.dot(x, x) if order.through else kda_native.dot(x, x, order))


def decays(raw: U32, inputs: Mapping[str, Bits], lower_bound: U32, run: Runner) -> U32:
    """Decays of raw gates `[..., H, 128]`, of the same shape."""
    rate = run("kda.13d", inputs["a_log"])[:, None]
    z = run("kda.13e", raw, inputs["dt_bias"].reshape(-1, DIM))
    gate = run("kda.13h", run("kda.13g", run("kda.13f", rate, z)), lower_bound)
    decay: U32 = run("kda.13i", gate)
    return decay


def prepare(
    rows: Rows,
    window: U16,
    start: npt.NDArray[np.int64],
    inputs: Mapping[str, Bits],
    run: Execution,
    *,
    gate: tuple[int, U32],
) -> Prepared:
    """Everything before the recurrence, for the real requests of one step.

    Args:
        rows: their rows.
        window: of each before the step, `[R, 3D, S]`.
        start: the column its taps begin at, `[R]`.
        inputs: the parameters.
        run: executes rows and names orders.
        gate: the mode of the gate projection, and the lower bound of the log decay.
    """
    requests, tokens, heads = rows.beta.shape
    after, taps = convolve(window, start, rows.qkv, inputs, run)
    taps = taps.reshape(requests, tokens, 3, heads, DIM)
    mixed = run("kda.5", run("kda.5a", taps))
    mode, lower_bound = gate
    gates = project(rows.f_a.reshape(-1, RANK), inputs["f_b"], run.order(f"gate.{mode}"))
    raw = run("kda.2", gates).reshape(requests, tokens, heads, DIM)
    order = run.order("q.squares")
    q, k, v = (mixed[:, :, part] for part in range(3))
    norms = [run("kda.13a", squares(part, order), kda_steps.TINY) for part in (q, k)]
    found = Operands(
        q=items(run("kda.13c", q, norms[0], SCALE)),
        k=items(run("kda.13b", k, norms[1])),
        decay=items(decays(raw, inputs, lower_bound, run)),
        v=items(v),
        beta=items(run("kda.13j", run("kda.1", rows.beta))),
    )
    return Prepared(after, taps, mixed, raw, found)
