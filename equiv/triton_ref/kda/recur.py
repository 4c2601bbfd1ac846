"""Recurrence of the stock KDA chain: one token a request (packed), or several with a state slot a token.

Both keep the state as S[v, k] in FP32 registers and evaluate spec kda 1.4, 1.5 in this order: decay, dot with the key,
correction, rank-one update, dot with the query. Letters: B requests, T tokens, H heads, K = V = 128, D = 128 H.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from equiv.geometry.kda import DIM
from equiv.triton_ref.kda.gates import EPS, decay, divide_by_norm

if TYPE_CHECKING:
    import torch

PACKED_ROWS = 32
PACKED_WARPS = 4
MULTI_WARPS = 1
MULTI_STAGES = 3


def value_rows(heads: int, batch: int) -> int:
    """State rows a program of the kernel for several tokens holds: few while programs are few."""
    pairs = heads * batch
    if pairs <= 48:
        return 4
    return 16 if 96 < pairs <= 192 else 8


@triton.jit
def dot(b_s, b_x, ROUNDED: tl.constexpr):
    """Sum over k of S [V, K] times b_x [K]; with ROUNDED no compiler may contract a product into the sum."""
    if ROUNDED:
        b_p = tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [b_s, b_x[None, :]], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        b_p = b_s * b_x[None, :]
    return tl.sum(b_p, axis=1)


@triton.jit
def step(b_s, b_q, b_k, b_v, b_dec, b_beta, ROUNDED: tl.constexpr):
    """One token on S [V, K]: the new S, the output [V] and the correction [V]."""
    b_s = b_s * b_dec[None, :]
    b_u = (b_v - dot(b_s, b_k, ROUNDED)) * b_beta
    b_s += b_k[None, :] * b_u[:, None]
    return b_s, dot(b_s, b_q, ROUNDED), b_u


@triton.jit
def packed_kernel(
    mixed,
    raw,
    beta,
    a_log,
    dt_bias,
    slots,
    state,
    out,
    beta_pitch,
    slots_stride,
    slot_stride,
    out_pitch,
    lower_bound,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    BV: tl.constexpr,
    EPS: tl.constexpr,
):
    """One program BV state rows of a (request, head): mixed [B, 3D], raw [B, D] -> out [B, D] BF16, state in place.

    A request with slot <= 0 gets zeros in `out` and touches nothing else.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = (i_bh // H).to(tl.int64), i_bh % H
    D: tl.constexpr = H * K
    o_k, o_v = tl.arange(0, K), i_v * BV + tl.arange(0, BV)
    p_out = out + i_b * out_pitch + i_h * K + o_v
    i_slot = tl.load(slots + i_b * slots_stride).to(tl.int64)
    if i_slot <= 0:
        tl.store(p_out, tl.zeros((BV,), dtype=tl.float32).to(out.dtype.element_ty))
        return
    p_state = state + i_slot * slot_stride + i_h * K * K + o_v[:, None] * K + o_k[None, :]
    b_s = tl.load(p_state).to(tl.float32)
    p_row = mixed + i_b * 3 * D + i_h * K
    b_q = divide_by_norm(tl.load(p_row + o_k).to(tl.float32), EPS) * scale
    b_k = divide_by_norm(tl.load(p_row + D + o_k).to(tl.float32), EPS)
    b_v = tl.load(p_row + 2 * D + o_v).to(tl.float32)
    b_raw = tl.load(raw + i_b * D + i_h * K + o_k).to(tl.float32)
    b_dec = decay(b_raw, tl.load(dt_bias + i_h * K + o_k), tl.load(a_log + i_h), lower_bound)
    b_beta = tl.sigmoid(tl.load(beta + i_b * beta_pitch + i_h).to(tl.float32))
    b_s, b_o, _ = step(b_s, b_q, b_k, b_v, b_dec, b_beta, ROUNDED=False)
    tl.store(p_out, b_o.to(out.dtype.element_ty))
    tl.store(p_state, b_s.to(state.dtype.element_ty))


@triton.jit
def multi_kernel(
    mixed,
    raw,
    beta,
    a_log,
    dt_bias,
    slots,
    accepted,
    state,
    out,
    T,
    beta_pitch,
    slots_stride,
    slot_stride,
    out_pitch,
    lower_bound,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    BV: tl.constexpr,
    EPS: tl.constexpr,
    ROUNDED: tl.constexpr,
):
    """One program BV state rows of a (request, head), token after token: the state after token t goes to slots[b, t].

    ROUNDED is for a BF16 state: without it the compiler contracts the dots of some rows of a program and not of others.
    It is read once, from slots[b, accepted - 1]. If that is <= 0 the first token's output becomes zero and nothing else
    is done; a token's slot <= 0 leaves its state unwritten.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = (i_bh // H).to(tl.int64), i_bh % H
    D: tl.constexpr = H * K
    o_k, o_v = tl.arange(0, K), i_v * BV + tl.arange(0, BV)
    i_row = i_b * T
    p_out = out + i_row * out_pitch + i_h * K + o_v
    p_slot = slots + i_b * slots_stride
    i_slot = tl.load(p_slot + tl.load(accepted + i_b) - 1).to(tl.int64)
    if i_slot <= 0:
        tl.store(p_out, tl.zeros((BV,), dtype=tl.float32).to(out.dtype.element_ty))
        return
    p_page = state + i_h * K * K + o_v[:, None] * K + o_k[None, :]
    b_s = tl.load(p_page + i_slot * slot_stride).to(tl.float32)
    p_row = mixed + i_row * 3 * D + i_h * K
    p_raw = raw + i_row * D + i_h * K
    p_beta = beta + i_row * beta_pitch + i_h
    for t in range(T):
        b_q = divide_by_norm(tl.load(p_row + o_k).to(tl.float32), EPS) * scale
        b_k = divide_by_norm(tl.load(p_row + D + o_k).to(tl.float32), EPS)
        b_v = tl.load(p_row + 2 * D + o_v).to(tl.float32)
        b_raw = tl.load(p_raw + o_k).to(tl.float32)
        b_dec = decay(b_raw, tl.load(dt_bias + i_h * K + o_k), tl.load(a_log + i_h), lower_bound)
        b_beta = tl.sigmoid(tl.load(p_beta).to(tl.float32))
        b_s, b_o, _ = step(b_s, b_q, b_k, b_v, b_dec, b_beta, ROUNDED)
        tl.store(p_out, b_o.to(out.dtype.element_ty))
        i_to = tl.load(p_slot + t).to(tl.int64)
        if i_to > 0:
            tl.store(p_page + i_to * slot_stride, b_s.to(state.dtype.element_ty))
        p_row += 3 * D
        p_raw += D
        p_beta += beta_pitch
        p_out += out_pitch


def recur(
    mixed: torch.Tensor,
    raw: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
    *,
    heads: int,
    tokens: int,
    lower_bound: float,
    scale: float,
) -> None:
    """Steps every request's states by its tokens: the packed kernel for one token, else the one with a token loop.

    Args:
        mixed: BF16 [B * T, 3D], dense: q, k, v after the convolution.
        raw: BF16 [B * T, D], dense: raw gates.
        beta: BF16 [B * T, H], rows with a pitch.
        a_log: FP32 [H].
        dt_bias: FP32 [D].
        slots: int32 [B, T], columns dense.
        accepted: int32 [B], 1..T; not read if T = 1.
        state: FP32 or BF16 [slots, H, 128, 128], dense within a slot.
        out: BF16 [B * T, D], rows with a pitch.
        heads: H.
        tokens: T.
        lower_bound: of the log decay.
        scale: of the query, after its norm.
    """
    batch = slots.shape[0]
    strides = (beta.stride(0), slots.stride(0), state.stride(0), out.stride(0), lower_bound, scale)
    if tokens == 1:
        packed_kernel[DIM // PACKED_ROWS, batch * heads](
            mixed, raw, beta, a_log, dt_bias, slots, state, out, *strides,
            H=heads, K=DIM, BV=PACKED_ROWS, EPS=EPS, num_warps=PACKED_WARPS, launch_pdl=True,
        )  # fmt: skip
        return
    rows = value_rows(heads, batch)
    multi_kernel[DIM // rows, batch * heads](
        mixed, raw, beta, a_log, dt_bias, slots, accepted, state, out, tokens, *strides,
        H=heads, K=DIM, BV=rows, EPS=EPS, ROUNDED=state.element_size() == 2,
        num_warps=MULTI_WARPS, num_stages=MULTI_STAGES, launch_pdl=True,
    )  # fmt: skip
