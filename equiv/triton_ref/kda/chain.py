"""The stock KDA chain end to end: projection, convolution, recurrence, norm (spec kda 0, 1).

Letters: B requests, T tokens a request, M = B T rows, H heads, D = 128 H, S = T + 2 window columns.
Absent requests behave as in stock: the convolution skips slot 0 alone, the recurrence skips slots <= 0 and zeroes some
or all of their outputs, and the norm runs over all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.errors import UsageError
from equiv.geometry.kda import DIM, RANK
from equiv.triton_ref.kda.convolve import convolve
from equiv.triton_ref.kda.norm import gated_norm
from equiv.triton_ref.kda.project import project
from equiv.triton_ref.kda.recover import compact, fold, verify
from equiv.triton_ref.kda.recur import recur

if TYPE_CHECKING:
    import torch


def kda_step(
    rows: torch.Tensor,
    conv_w: torch.Tensor,
    conv_bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    f_b: torch.Tensor,
    norm_w: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor,
    state: torch.Tensor,
    y: torch.Tensor,
    *,
    heads: int,
    tokens: int,
    gate_mode: int,
    lower_bound: float,
    scale: float,
    eps: float,
) -> None:
    """One step of every request by its tokens, on the active Triton driver: four launches.

    Args:
        rows: BF16 [M, >= 4D + 128 + H], rows with a pitch: q, k, v | output gate | F_A | beta; row b * T + t.
        conv_w: FP32 [3D, 4].
        conv_bias: FP32 [3D], or None.
        conv_state: BF16 [slots, 3D, S], any strides; column offset accepted - 1 of slots[b, 0] is read, columns
            0 .. T+1 of it are written.
        a_log: FP32 [H].
        dt_bias: FP32 [D].
        f_b: BF16 [D, 128].
        norm_w: BF16 [128].
        slots: int32 [B, T]: where the state after token t goes; <= 0 in all of them: an absent request.
        accepted: int32 [B], 1..T: the state is read from slots[b, accepted - 1].
        state: FP32 or BF16 [slots, H, 128, 128], [v, k] dense within a slot; slots a multiple of 16 elements apart: for
            others Triton compiles other orders.
        y: BF16 [M, D], rows with a pitch; the output.
        heads: H.
        tokens: T.
        gate_mode: order of the projection of F_A, see `project`.
        lower_bound: of the log decay.
        scale: of the query, after its norm.
        eps: of the gated norm.

    Raises:
        UsageError: a size or a dtype does not fit the others.
    """
    raw, mixed, gate, beta = _front(
        rows, conv_w, conv_bias, conv_state, f_b, slots, accepted if tokens > 1 else None, heads, tokens, gate_mode
    )
    recur(
        mixed, raw, beta, a_log, dt_bias, slots, accepted, state, y,
        heads=heads, tokens=tokens, lower_bound=lower_bound, scale=scale,
    )  # fmt: skip
    gated_norm(y, gate, norm_w, heads=heads, eps=eps)


def kda_record(
    rows: torch.Tensor,
    conv_w: torch.Tensor,
    conv_bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    f_b: torch.Tensor,
    norm_w: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor,
    state: torch.Tensor,
    y: torch.Tensor,
    corrections: torch.Tensor,
    key_gate: torch.Tensor,
    *,
    heads: int,
    tokens: int,
    gate_mode: int,
    lower_bound: float,
    scale: float,
    eps: float,
) -> None:
    """One step that writes records instead of states (RecoverSSM verification): four launches.

    Arguments are as `kda_step` takes them, but: slots int32 [B, 1], one a request, whose state is not written; accepted
    is not read (the window's offset is 0); corrections FP32 [B, H, T, 128], dense, takes (v - S k) * beta of every
    token; key_gate BF16 [B, H, T, 256], dense, its key before the norm, then its raw gate.

    Raises:
        UsageError: a size or a dtype does not fit the others.
    """
    del accepted
    raw, mixed, gate, beta = _front(rows, conv_w, conv_bias, conv_state, f_b, slots, None, heads, tokens, gate_mode)
    verify(
        mixed, raw, beta, a_log, dt_bias, slots, state, y, corrections, key_gate,
        heads=heads, tokens=tokens, lower_bound=lower_bound, scale=scale,
    )  # fmt: skip
    gated_norm(y, gate, norm_w, heads=heads, eps=eps)


def kda_commit(
    conv_state: torch.Tensor,
    state: torch.Tensor,
    corrections: torch.Tensor,
    key_gate: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    final: torch.Tensor,
    boundary: torch.Tensor,
    boundary_counts: torch.Tensor,
    *,
    heads: int,
    tokens: int,
    lower_bound: float,
) -> None:
    """Makes the accepted tokens of a record part of window and state: two launches.

    Args:
        conv_state: BF16 [slots, 3D, S]: columns n-1 .. n+1 of the source become columns 0..2 of the destinations.
        state: FP32 or BF16 [slots, H, 128, 128].
        corrections: as `kda_record` wrote them.
        key_gate: likewise.
        a_log: FP32 [H].
        dt_bias: FP32 [D].
        slots: int32 [B, 1]: sources; <= 0: an absent request.
        counts: int32 [B], 0..T: tokens that go to `final`; 0: nothing is done.
        final: int32 [B]: destination, may be the source; <= 0: nothing is done.
        boundary: int32 [B]: second destination, or <= 0.
        boundary_counts: int32 [B], 0..counts: tokens that go there; 0: none is written.
        heads: H.
        tokens: T.
        lower_bound: of the log decay.
    """
    compact(conv_state, slots, counts, final, boundary, boundary_counts)
    fold(
        state, corrections, key_gate, a_log, dt_bias, slots, counts, final, boundary, boundary_counts,
        heads=heads, tokens=tokens, lower_bound=lower_bound,
    )  # fmt: skip


def _front(
    rows: torch.Tensor,
    conv_w: torch.Tensor,
    conv_bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    f_b: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
    heads: int,
    tokens: int,
    gate_mode: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Raw gates [M, D], q|k|v after the convolution [M, 3D], and the views of output gate [M, D] and beta [M, H]."""
    width = heads * DIM
    needed = 4 * width + RANK + heads
    if rows.shape[0] != slots.shape[0] * tokens:
        raise UsageError(f"rows must be batch * tokens = {slots.shape[0] * tokens} rows; got rows={rows.shape[0]}")
    if rows.shape[1] < needed:
        raise UsageError(f"rows of {heads} heads are {needed} columns wide; got rows.shape[1]={rows.shape[1]}")
    raw = project(rows[:, 4 * width : 4 * width + RANK], f_b, gate_mode)
    mixed = convolve(rows[:, : 3 * width], conv_w, conv_bias, conv_state, slots, accepted, tokens=tokens)
    return raw, mixed, rows[:, 3 * width : 4 * width], rows[:, 4 * width + RANK : needed]
