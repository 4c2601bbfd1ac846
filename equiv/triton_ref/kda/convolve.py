"""Causal convolution update with SiLU of the stock KDA chain (spec kda 1.3), but for its taps, which are spelt as fma.

With a bias and T > 1 the compiler for sm_100a rounds the products of some tokens' taps in stock.

Letters: B requests, T tokens a request, C = 384 H channels (q, k, v), S = columns of a window, 4 taps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from equiv.geometry.kda import TAPS

CHANNELS = 256
WARPS = 4


@triton.jit
def convolve_kernel(
    rows,
    weight,
    bias,
    window,
    slots,
    accepted,
    mixed,
    row_pitch,
    slots_stride,
    slot_stride,
    channel_stride,
    column_stride,
    T: tl.constexpr,
    C: tl.constexpr,
    BC: tl.constexpr,
    TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
):
    """One program a request and BC channels: rows [B*T, C], window [slots, C, S] -> mixed [B*T, C] BF16, window moved.

    The newest three columns before the first token begin at `accepted - 1`. A request with slot 0 does nothing.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    tl.static_assert(TAPS == 4)
    i_b = tl.program_id(0)
    o_c = tl.program_id(1) * BC + tl.arange(0, BC)
    m_c = o_c < C
    i_slot = tl.load(slots + i_b * slots_stride).to(tl.int64)
    if i_slot == 0:
        return
    p_window = window + i_slot * slot_stride + o_c * channel_stride
    p_old = p_window
    if HAS_ACCEPTED:
        p_old += (tl.load(accepted + i_b) - 1) * column_stride
    b_c0 = tl.load(p_old, mask=m_c, other=0.0)
    b_c1 = tl.load(p_old + column_stride, mask=m_c, other=0.0)
    b_c2 = tl.load(p_old + 2 * column_stride, mask=m_c, other=0.0)
    tl.store(p_window, b_c1, mask=m_c)
    tl.store(p_window + column_stride, b_c2, mask=m_c)

    b_w0 = tl.load(weight + o_c * TAPS, mask=m_c, other=0.0)
    b_w1 = tl.load(weight + o_c * TAPS + 1, mask=m_c, other=0.0)
    b_w2 = tl.load(weight + o_c * TAPS + 2, mask=m_c, other=0.0)
    b_w3 = tl.load(weight + o_c * TAPS + 3, mask=m_c, other=0.0)
    b_start = tl.load(bias + o_c, mask=m_c, other=0.0) if HAS_BIAS else tl.zeros((BC,), dtype=tl.float32)
    i_row = i_b.to(tl.int64) * T
    for t in tl.static_range(T):
        b_x = tl.load(rows + (i_row + t) * row_pitch + o_c, mask=m_c, other=0.0)
        tl.store(p_window + (2 + t) * column_stride, b_x.to(window.dtype.element_ty), mask=m_c)
        # Spelt out: with a bias and several tokens, the compiler for sm_100a packs the products of a tap of some tokens
        # into mul.f32x2 and so rounds them, and fuses all others.
        b_acc = tl.fma(b_c0.to(tl.float32), b_w0, b_start)
        b_acc = tl.fma(b_c1.to(tl.float32), b_w1, b_acc)
        b_acc = tl.fma(b_c2.to(tl.float32), b_w2, b_acc)
        b_acc = tl.fma(b_x.to(tl.float32), b_w3, b_acc)
        b_y = b_acc / (1 + tl.exp(-b_acc))
        tl.store(mixed + (i_row + t) * C + o_c, b_y.to(mixed.dtype.element_ty), mask=m_c)
        b_c0, b_c1, b_c2 = b_c1, b_c2, b_x


def convolve(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
    *,
    tokens: int,
) -> torch.Tensor:
    """Convolves every request's tokens after its window, applies SiLU, and moves the window on.

    Args:
        rows: BF16 [B * T, C], rows with a pitch; row b * T + t is token t of request b.
        weight: FP32 [C, 4], dense; tap 3 meets the token itself.
        bias: FP32 [C], or None.
        window: BF16 [slots, C, S], any strides; columns 0..T+1 become the two newest old ones and the tokens.
        slots: int32 [B, ...]; column 0 is the request's slot. 0: absent. A negative slot is dereferenced, as in stock.
        accepted: int32 [B], 1..T: the old columns are accepted-1 .. accepted+1; None: 0..2.
        tokens: T.

    Returns:
        BF16 [B * T, C], dense; rows of absent requests are not written.
    """
    batch, channels = slots.shape[0], weight.shape[0]
    mixed = torch.empty((batch * tokens, channels), dtype=torch.bfloat16, device=rows.device)
    convolve_kernel[batch, triton.cdiv(channels, CHANNELS)](
        rows,
        weight,
        weight if bias is None else bias,
        window,
        slots,
        slots if accepted is None else accepted,
        mixed,
        rows.stride(0),
        slots.stride(0),
        *window.stride(),
        T=tokens,
        C=channels,
        BC=CHANNELS,
        TAPS=TAPS,
        HAS_BIAS=bias is not None,
        HAS_ACCEPTED=accepted is not None,
        num_warps=WARPS,
        launch_pdl=True,
    )
    return mixed
