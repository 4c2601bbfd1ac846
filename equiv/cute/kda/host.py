"""The fused KDA kernels on torch tensors: the stock chain's arguments turned into the kernels' operands.

Letters: B requests, T tokens, H heads, D = 128 H, M = B T rows. Every function is one launch on the current stream of
the device that CuTe DSL is set to; kernels are compiled once per process, variant and architecture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from cutlass import Float32
from cutlass.cute.runtime import from_dlpack

from equiv.cute.host import compiled, dynamic, stream_of
from equiv.cute.kda.commit import RecoverCommit
from equiv.cute.kda.wide import KdaWide
from equiv.errors import UsageError
from equiv.geometry.kda import DIM, RANK, TAPS

if TYPE_CHECKING:
    from typing import Any

KERNELS = ("ws", "wide")
EMULATED_CTAS = 4
"""CTAs of `KdaWS` on a device without multiprocessors: few, so that each walks several items."""
_FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16"}
ALIGNED = 16
"""Bytes of the widest copies."""


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
    kernel: str = "ws",
    ctas: int = 0,
) -> None:
    """One step of every request by its tokens.

    Args:
        rows: BF16 [M, >= 4D + 128 + H], rows with a pitch: q, k, v | output gate | F_A | beta; row b * T + t.
        conv_w: FP32 [3D, 4], or [3, 4, D] as `convolution_weight` lays it out.
        conv_bias: FP32 [3D], or None.
        conv_state: BF16 [slots, 3D, S], S >= T + 2, dense in channels or in columns.
        a_log: FP32 [H].
        dt_bias: FP32 [D].
        f_b: BF16 [D, 128].
        norm_w: BF16 or FP32 [128].
        slots: int32 [B, T]: where the state after token t goes; <= 0 in all of them: an absent request, whose rows of y
            become +0 and for which nothing else is written.
        accepted: int32 [B], 1..T: the state is read from slots[b, accepted - 1], the window at column accepted - 1.
        state: FP32 or BF16 [slots, H, 128, 128], dense within a slot (BF16: kernel "wide" only).
        y: BF16 [M, D], rows with a pitch; the output.
        heads: H.
        tokens: T, 1 to 8.
        gate_mode: order of the F_B projection: 0 one chain, 1 four chains.
        lower_bound: of the log decay.
        scale: of the query, after its norm.
        eps: of the gated norm.
        kernel: "ws" (`KdaWS`) or "wide" (`KdaWide`).
        ctas: CTAs of `KdaWS`; 0: one a multiprocessor, 4 on an emulated device. `KdaWide` takes 0 only.

    Raises:
        UsageError: an argument has another shape, type or layout, or a value out of range.
    """
    given = (rows, conv_w, conv_bias, conv_state, a_log, dt_bias, f_b, norm_w, slots, accepted, state, y)
    numbers = (lower_bound, scale, eps)
    _launch(given, None, numbers, heads=heads, tokens=tokens, gate_mode=gate_mode, kernel=kernel, ctas=ctas)


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
    kernel: str = "ws",
    ctas: int = 0,
) -> None:
    """One step that writes records instead of states (RecoverSSM verification).

    Arguments are as `kda_step` takes them, but: T > 1; slots int32 [B, 1], whose state is not written; accepted is not
    read (the window's offset is 0); corrections FP32 [B, H, T, 128], dense, takes u = (v - S k) * beta of every token;
    key_gate BF16 [B, H, T, 256], dense, its key before the norm, then its raw gate.

    Raises:
        UsageError: as `kda_step`.
    """
    given = (rows, conv_w, conv_bias, conv_state, a_log, dt_bias, f_b, norm_w, slots, accepted, state, y)
    records, numbers = (corrections, key_gate), (lower_bound, scale, eps)
    _launch(given, records, numbers, heads=heads, tokens=tokens, gate_mode=gate_mode, kernel=kernel, ctas=ctas)


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
    kernel: str = "ws",
    ctas: int = 0,
) -> None:
    """Makes the accepted tokens of a record part of window and state: `RecoverCommit`.

    Args:
        conv_state: as `kda_step` takes it.
        state: the same.
        corrections: FP32 [B, H, T, 128], as `kda_record` left it.
        key_gate: BF16 [B, H, T, 256], the same.
        a_log: FP32 [H].
        dt_bias: FP32 [D].
        slots: int32 [B, 1], the source of each request.
        counts: int32 [B], accepted tokens, 0..T.
        final: int32 [B], the slot that gets them; <= 0: nothing happens for the request.
        boundary: int32 [B], a second slot, or 0.
        boundary_counts: int32 [B], the tokens that it gets, 0..counts.
        heads: H.
        tokens: T, 2 to 8.
        lower_bound: of the log decay.
        kernel: of the step that recorded; the commit is the same.
        ctas: of that step.

    Raises:
        UsageError: an argument has another shape, type or layout, or a value out of range.
    """
    del ctas
    _check_kernel(kernel)
    batch = slots.shape[0]
    dim_first = _check_pools(conv_state, state, heads, tokens)
    _check_records(corrections, key_gate, (batch, heads, tokens))
    _check("a_log", a_log, torch.float32, heads)
    _check("dt_bias", dt_bias, torch.float32, DIM * heads)
    _check("slots", slots, torch.int32, batch, 1)
    plan = {"counts": counts, "final": final, "boundary": boundary, "boundary_counts": boundary_counts}
    for name, tensor in plan.items():
        _check(name, tensor, torch.int32, batch)
    operator = RecoverCommit(heads, tokens, conv_dim_first=dim_first, state=_FORMATS[state.dtype])
    tensors = (state, corrections, key_gate, a_log, dt_bias, slots, *plan.values())
    operands = (_window(conv_state, dim_first), *map(dynamic, tensors), Float32(lower_bound), stream_of(state))
    compiled(operator, operands, on_gpu=state.is_cuda)(*operands)


def convolution_weight(conv_w: torch.Tensor) -> torch.Tensor:
    """FP32 [3D, 4] as the kernels read it: [3, 4, D], part (q, k, v), tap, channel."""
    return conv_w.reshape(3, -1, TAPS).permute(0, 2, 1).contiguous()


def _launch(
    given: tuple[Any, ...],
    records: tuple[torch.Tensor, torch.Tensor] | None,
    numbers: tuple[float, float, float],
    *,
    heads: int,
    tokens: int,
    gate_mode: int,
    kernel: str,
    ctas: int,
) -> None:
    """One step of either kind; `given` are the tensors of `kda_step` in their order, `numbers` bound, scale and eps."""
    rows, conv_w, conv_bias, conv_state, a_log, dt_bias, f_b, norm_w, slots, accepted, state, y = given
    _check_kernel(kernel)
    dim = DIM * heads
    if conv_w.dim() == 2:
        _check("conv_w", conv_w, torch.float32, 3 * dim, TAPS)
        conv_w = convolution_weight(conv_w)
    dim_first = _check_step(
        (rows, conv_w, conv_bias, conv_state, a_log, dt_bias, f_b, norm_w, slots, accepted, state, y), heads, tokens
    )
    batch = slots.shape[0]
    if records is None:
        _check("slots", slots, torch.int32, batch, tokens)
    else:
        _check("slots", slots, torch.int32, batch, 1)
        _check_records(*records, (batch, heads, tokens))
    options = (heads, tokens, records is not None, gate_mode, conv_bias is not None, dim_first, conv_state.shape[2])
    if kernel == "wide":
        operator: Any = KdaWide(*options, ctas, state=_FORMATS[state.dtype])
    elif state.dtype != torch.float32:
        raise UsageError(f"kernel 'ws' needs an FP32 state, 'wide' takes BF16 too; got state {state.dtype}")
    else:
        from equiv.cute.kda.ws import KdaWS

        operator = KdaWS(*options, ctas or multiprocessors(rows))
    x, gate, f_a, beta = rows[:, : 3 * dim], rows[:, 3 * dim : 4 * dim], rows[:, 4 * dim :], rows[:, 4 * dim + RANK :]
    bias = a_log if conv_bias is None else conv_bias
    # A variant that does not record reads neither record; any tensor of four dimensions stands for them.
    corrections, key_gate = (state, state) if records is None else records
    operands = (
        *map(dynamic, (x, conv_w, bias)),
        _window(conv_state, dim_first),
        *map(dynamic, (f_a[:, :RANK], beta[:, :heads], a_log, dt_bias, slots, state, y, gate, norm_w.float())),
        *map(Float32, numbers),
        *map(dynamic, (f_b, accepted, corrections, key_gate)),
        stream_of(rows),
    )
    compiled(operator, operands, on_gpu=rows.is_cuda)(*operands)


def multiprocessors(rows: torch.Tensor) -> int:
    """CTAs that `KdaWS` gets by default on the device of `rows`."""
    if not rows.is_cuda:
        return EMULATED_CTAS
    return int(torch.cuda.get_device_properties(rows.device).multi_processor_count)


def _window(conv_state: torch.Tensor, dim_first: bool) -> Any:
    """The window's operand: its dense dimension is static, everything else dynamic."""
    return from_dlpack(conv_state).mark_layout_dynamic(leading_dim=2 if dim_first else 1)


def _check_kernel(kernel: str) -> None:
    if kernel not in KERNELS:
        raise UsageError(f"kernel must be one of {', '.join(KERNELS)}; got kernel={kernel!r}")


def _check_step(given: tuple[Any, ...], heads: int, tokens: int) -> bool:
    """Raises `UsageError` for a tensor of `kda_step` that does not fit; returns whether the window is dim-first."""
    rows, conv_w, conv_bias, conv_state, a_log, dt_bias, f_b, norm_w, slots, accepted, state, y = given
    dim, batch = DIM * heads, slots.shape[0]
    _check("rows", rows, torch.bfloat16, batch * tokens, None, dense=False)
    _check("y", y, torch.bfloat16, batch * tokens, dim, dense=False)
    width = 4 * dim + RANK + heads
    if rows.shape[1] < width:
        raise UsageError(f"rows must have 4 D + {RANK} + H = {width} columns or more; got {rows.shape[1]}")
    for name, tensor in (("rows", rows), ("y", y)):
        if tensor.stride(1) != 1:
            raise UsageError(f"{name} must be dense in its columns; got strides {tensor.stride()}")
    _check_aligned("rows", rows)
    _check("conv_w", conv_w, torch.float32, 3, TAPS, dim)
    if conv_bias is not None:
        _check("conv_bias", conv_bias, torch.float32, 3 * dim)
    _check("a_log", a_log, torch.float32, heads)
    _check("dt_bias", dt_bias, torch.float32, dim)
    _check("f_b", f_b, torch.bfloat16, dim, RANK)
    _check_aligned("f_b", f_b)
    _check("norm_w", norm_w, torch.float32 if norm_w.dtype == torch.float32 else torch.bfloat16, DIM)
    _check("accepted", accepted, torch.int32, batch)
    return _check_pools(conv_state, state, heads, tokens)


def _check_pools(conv_state: torch.Tensor, state: torch.Tensor, heads: int, tokens: int) -> bool:
    """Raises `UsageError` for pools that do not fit; returns whether the window is dim-first."""
    dim = DIM * heads
    _check("conv_state", conv_state, torch.bfloat16, None, 3 * dim, None, dense=False)
    window = conv_state.shape[2]
    if window < tokens + TAPS - 2:
        raise UsageError(f"conv_state must hold tokens + 2 = {tokens + 2} columns; got {window}")
    dim_first = conv_state.stride()[1:] == (window, 1)
    if not dim_first and conv_state.stride()[1:] != (1, 3 * dim):
        raise UsageError(f"conv_state must be dense within a slot, either way round; got strides {conv_state.stride()}")
    if state.dtype not in _FORMATS:
        raise UsageError(f"state must be FP32 or BF16; got {state.dtype}")
    _check("state", state, state.dtype, conv_state.shape[0], heads, DIM, DIM, dense=False)
    if state.stride()[1:] != (DIM * DIM, DIM, 1):
        raise UsageError(f"state must be dense within a slot; got strides {state.stride()}")
    _check_aligned("state", state)
    return dim_first


def _check_records(corrections: torch.Tensor, key_gate: torch.Tensor, sizes: tuple[int, int, int]) -> None:
    _check("corrections", corrections, torch.float32, *sizes, DIM)
    _check("key_gate", key_gate, torch.bfloat16, *sizes, 2 * DIM)


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, *shape: int | None, dense: bool = True) -> None:
    """Raises `UsageError` if a tensor has another type or shape (None: any size), or is not dense although it must."""
    fits = tensor.dim() == len(shape)
    fits = fits and all(want in (None, size) for want, size in zip(shape, tensor.shape, strict=True))
    if tensor.dtype != dtype or not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise UsageError(f"{name} must be {dtype} [{sizes}]; got {tensor.dtype} {list(tensor.shape)}")
    if dense and not tensor.is_contiguous():
        raise UsageError(f"{name} must be dense; got strides {tensor.stride()} of {list(tensor.shape)}")


def _check_aligned(name: str, tensor: torch.Tensor) -> None:
    """Raises `UsageError` unless the first dimension's slices begin at multiples of 16 bytes."""
    step = tensor.stride(0) * tensor.element_size()
    if tensor.data_ptr() % ALIGNED or step % ALIGNED:
        raise UsageError(
            f"{name} must begin at a multiple of {ALIGNED} bytes in each row or slot; got address "
            f"{tensor.data_ptr():#x} and {step} bytes from one to the next"
        )
