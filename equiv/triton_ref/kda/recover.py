"""RecoverSSM of the stock KDA chain: verify tokens without writing states, later fold what was accepted into them.

Spec kda 1.6, 1.7. Both normalise with `rsqrt`, unlike the step. Letters: B requests, T tokens, H heads, K = V = 128.
A record's row is the request's index in the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from equiv.geometry.kda import DIM
from equiv.triton_ref.kda.gates import EPS, decay, inverse_norm
from equiv.triton_ref.kda.recur import step

if TYPE_CHECKING:
    import torch

VALUE_ROWS = 32
WARPS = 4
CHANNELS = 256


@triton.jit
def verify_kernel(
    mixed,
    raw,
    beta,
    a_log,
    dt_bias,
    slots,
    state,
    out,
    corrections,
    key_gate,
    beta_pitch,
    slots_stride,
    slot_stride,
    out_pitch,
    lower_bound,
    scale,
    T: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    BV: tl.constexpr,
    EPS: tl.constexpr,
):
    """One program BV state rows of a (request, head): out [B*T, D] and the records of all tokens; the state stays.

    A request with slot <= 0 gets zeros for all its tokens and writes no record.
    """
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = (i_bh // H).to(tl.int64), i_bh % H
    D: tl.constexpr = H * K
    o_k, o_v = tl.arange(0, K), i_v * BV + tl.arange(0, BV)
    p_out = out + i_b * T * out_pitch + i_h * K + o_v
    i_slot = tl.load(slots + i_b * slots_stride).to(tl.int64)
    if i_slot <= 0:
        for t in tl.static_range(T):
            tl.store(p_out + t * out_pitch, tl.zeros((BV,), dtype=tl.float32).to(out.dtype.element_ty))
        return
    b_s = tl.load(state + i_slot * slot_stride + i_h * K * K + o_v[:, None] * K + o_k[None, :]).to(tl.float32)
    b_bias, b_log = tl.load(dt_bias + i_h * K + o_k), tl.load(a_log + i_h)
    for t in tl.static_range(T):
        i_row = i_b * T + t
        p_row = mixed + i_row * 3 * D + i_h * K
        b_q = tl.load(p_row + o_k).to(tl.float32)
        b_key = tl.load(p_row + D + o_k)
        b_k = b_key.to(tl.float32)
        b_v = tl.load(p_row + 2 * D + o_v).to(tl.float32)
        b_raw = tl.load(raw + i_row * D + i_h * K + o_k)
        b_q = b_q * (inverse_norm(b_q, EPS) * scale)
        b_k = b_k * inverse_norm(b_k, EPS)
        b_dec = decay(b_raw.to(tl.float32), b_bias, b_log, lower_bound)
        b_beta = tl.sigmoid(tl.load(beta + i_row * beta_pitch + i_h).to(tl.float32))
        b_s, b_o, b_u = step(b_s, b_q, b_k, b_v, b_dec, b_beta, ROUNDED=False)
        tl.store(p_out + t * out_pitch, b_o.to(out.dtype.element_ty))
        i_record = (i_b * H + i_h) * T + t
        tl.store(corrections + i_record * K + o_v, b_u)
        if i_v == 0:
            tl.store(key_gate + i_record * 2 * K + o_k, b_key)
            tl.store(key_gate + i_record * 2 * K + K + o_k, b_raw)


@triton.jit
def fold_kernel(
    state,
    corrections,
    key_gate,
    a_log,
    dt_bias,
    slots,
    counts,
    final,
    boundary,
    boundary_counts,
    slots_stride,
    slot_stride,
    lower_bound,
    T: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    BV: tl.constexpr,
    EPS: tl.constexpr,
):
    """One program BV state rows of a (request, head): S0 * prod decay + sum u k, from the last token back to the first.

    The first counts[b] tokens go to slot final[b], the first boundary_counts[b] <= counts[b] to slot boundary[b].
    """
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = (i_bh // H).to(tl.int64), i_bh % H
    o_k, o_v = tl.arange(0, K), i_v * BV + tl.arange(0, BV)
    i_from = tl.load(slots + i_b * slots_stride).to(tl.int64)
    i_final, i_n = tl.load(final + i_b).to(tl.int64), tl.load(counts + i_b)
    i_boundary, i_m = tl.load(boundary + i_b).to(tl.int64), tl.load(boundary_counts + i_b)
    if (i_from <= 0) | (i_n <= 0) | (i_final <= 0):
        return
    p_page = state + i_h * K * K + o_v[:, None] * K + o_k[None, :]
    b_s = tl.load(p_page + i_from * slot_stride).to(tl.float32)
    b_bias, b_log = tl.load(dt_bias + i_h * K + o_k), tl.load(a_log + i_h)
    b_dec = tl.full((K,), 1.0, dtype=tl.float32)
    b_sum = tl.zeros((BV, K), dtype=tl.float32)
    b_dec_boundary = tl.full((K,), 1.0, dtype=tl.float32)
    b_sum_boundary = tl.zeros((BV, K), dtype=tl.float32)
    for i in tl.static_range(T):
        t = T - 1 - i
        if t < i_n:
            i_record = (i_b * H + i_h) * T + t
            b_u = tl.load(corrections + i_record * K + o_v)
            b_k = tl.load(key_gate + i_record * 2 * K + o_k).to(tl.float32)
            b_raw = tl.load(key_gate + i_record * 2 * K + K + o_k).to(tl.float32)
            b_k = b_k * inverse_norm(b_k, EPS)
            b_one = decay(b_raw, b_bias, b_log, lower_bound)
            b_outer = b_u[:, None] * b_k[None, :]
            b_sum += b_outer * b_dec[None, :]
            b_dec = b_dec * b_one
            if t < i_m:
                b_sum_boundary += b_outer * b_dec_boundary[None, :]
                b_dec_boundary = b_dec_boundary * b_one
    tl.store(p_page + i_final * slot_stride, (b_s * b_dec[None, :] + b_sum).to(state.dtype.element_ty))
    if (i_boundary > 0) & (i_m > 0):
        b_new = b_s * b_dec_boundary[None, :] + b_sum_boundary
        tl.store(p_page + i_boundary * slot_stride, b_new.to(state.dtype.element_ty))


@triton.jit
def compact_kernel(
    window,
    slots,
    counts,
    final,
    boundary,
    boundary_counts,
    slots_stride,
    slot_stride,
    channel_stride,
    column_stride,
    C: tl.constexpr,
    BC: tl.constexpr,
):
    """One program a request and BC channels: window columns n-1 .. n+1 of its slot -> columns 0..2 of its new slots."""
    i_b = tl.program_id(0)
    o_c = tl.program_id(1) * BC + tl.arange(0, BC)
    m_c = o_c < C
    i_from = tl.load(slots + i_b * slots_stride).to(tl.int64)
    i_final, i_n = tl.load(final + i_b).to(tl.int64), tl.load(counts + i_b)
    i_boundary, i_m = tl.load(boundary + i_b).to(tl.int64), tl.load(boundary_counts + i_b)
    if (i_from <= 0) | (i_n <= 0) | (i_final <= 0):
        return
    has_boundary = (i_boundary > 0) & (i_m > 0)
    m_b = m_c & has_boundary
    p_from = window + i_from * slot_stride + o_c * channel_stride
    p_n = p_from + (i_n - 1) * column_stride
    p_m = p_from + (i_m - 1) * column_stride
    b_n0 = tl.load(p_n, mask=m_c)
    b_n1 = tl.load(p_n + column_stride, mask=m_c)
    b_n2 = tl.load(p_n + 2 * column_stride, mask=m_c)
    b_m0 = tl.load(p_m, mask=m_b)
    b_m1 = tl.load(p_m + column_stride, mask=m_b)
    b_m2 = tl.load(p_m + 2 * column_stride, mask=m_b)
    p_final = window + i_final * slot_stride + o_c * channel_stride
    tl.store(p_final, b_n0, mask=m_c)
    tl.store(p_final + column_stride, b_n1, mask=m_c)
    tl.store(p_final + 2 * column_stride, b_n2, mask=m_c)
    p_boundary = window + i_boundary * slot_stride + o_c * channel_stride
    tl.store(p_boundary, b_m0, mask=m_b)
    tl.store(p_boundary + column_stride, b_m1, mask=m_b)
    tl.store(p_boundary + 2 * column_stride, b_m2, mask=m_b)


def verify(
    mixed: torch.Tensor,
    raw: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    slots: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
    corrections: torch.Tensor,
    key_gate: torch.Tensor,
    *,
    heads: int,
    tokens: int,
    lower_bound: float,
    scale: float,
) -> None:
    """Outputs and records of every request's tokens from its checkpoint, which stays as it is.

    Args:
        mixed: BF16 [B * T, 3D], dense: q, k, v after the convolution.
        raw: BF16 [B * T, D], dense: raw gates.
        beta: BF16 [B * T, H], rows with a pitch.
        a_log: FP32 [H].
        dt_bias: FP32 [D].
        slots: int32 [B, 1].
        state: FP32 or BF16 [slots, H, 128, 128], dense within a slot.
        out: BF16 [B * T, D], rows with a pitch.
        corrections: FP32 [B, H, T, 128], dense: (v - S k) * beta.
        key_gate: BF16 [B, H, T, 256], dense: the key before its norm, then the raw gate.
        heads: H.
        tokens: T.
        lower_bound: of the log decay.
        scale: of the query, after its norm.
    """
    verify_kernel[DIM // VALUE_ROWS, slots.shape[0] * heads](
        mixed, raw, beta, a_log, dt_bias, slots, state, out, corrections, key_gate,
        beta.stride(0), slots.stride(0), state.stride(0), out.stride(0), lower_bound, scale,
        T=tokens, H=heads, K=DIM, BV=VALUE_ROWS, EPS=EPS, num_warps=WARPS,
    )  # fmt: skip


def compact(
    window: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    final: torch.Tensor,
    boundary: torch.Tensor,
    boundary_counts: torch.Tensor,
) -> None:
    """Moves each request's three newest accepted window columns to columns 0..2 of its new slots.

    The window is BF16 [slots, C, S] with any strides; the other arguments are as `kda_commit` takes them.
    """
    channels = window.shape[1]
    compact_kernel[slots.shape[0], triton.cdiv(channels, CHANNELS)](
        window, slots, counts, final, boundary, boundary_counts, slots.stride(0), *window.stride(),
        C=channels, BC=CHANNELS, num_warps=WARPS,
    )  # fmt: skip


def fold(
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
    """Folds the records of accepted tokens into the states; arguments as `kda_commit` takes them."""
    fold_kernel[DIM // VALUE_ROWS, slots.shape[0] * heads](
        state, corrections, key_gate, a_log, dt_bias, slots, counts, final, boundary, boundary_counts,
        slots.stride(0), state.stride(0), lower_bound,
        T=tokens, H=heads, K=DIM, BV=VALUE_ROWS, EPS=EPS, num_warps=WARPS,
    )  # fmt: skip
