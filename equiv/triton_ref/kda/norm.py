"""Gated RMSNorm of the stock KDA chain, in place on the recurrence's output (spec kda 1.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from equiv.geometry.kda import DIM

if TYPE_CHECKING:
    import torch

ROWS = 16
WARPS = 8


@triton.jit
def norm_kernel(x, gate, weight, M, x_pitch, gate_pitch, eps, H: tl.constexpr, K: tl.constexpr, BM: tl.constexpr):
    """One program BM of the M * H rows of K channels: x [M, H, K] BF16, gate [M, H, K] BF16 -> x, FP32 inside."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    o_r = tl.program_id(0) * BM + tl.arange(0, BM)
    o_k = tl.arange(0, K)
    i_m, i_h = (o_r // H).to(tl.int64), o_r % H
    m_r = o_r[:, None] < M * H
    o_x = (i_m * x_pitch + i_h * K)[:, None] + o_k[None, :]
    o_g = (i_m * gate_pitch + i_h * K)[:, None] + o_k[None, :]
    b_x = tl.load(x + o_x, mask=m_r, other=0.0).to(tl.float32)
    b_g = tl.load(gate + o_g, mask=m_r, other=0.0).to(tl.float32)
    b_w = tl.load(weight + o_k).to(tl.float32)
    b_var = tl.sum(b_x * b_x, axis=1) / K
    b_rstd = 1 / tl.sqrt(b_var + eps)
    b_y = b_x * b_rstd[:, None] * b_w[None, :] * tl.sigmoid(b_g)
    tl.store(x + o_x, b_y.to(x.dtype.element_ty), mask=m_r)


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, heads: int, eps: float) -> None:
    """Makes x: x / sqrt(mean x^2 + eps) * weight * sigmoid(gate), head by head, for every row, absent or not.

    Args:
        x: BF16 [M, 128 * heads], rows with a pitch.
        gate: BF16 [M, 128 * heads], rows with a pitch.
        weight: BF16 [128].
        heads: heads in a row.
        eps: added to the mean of squares.
    """
    rows = x.shape[0]
    norm_kernel[triton.cdiv(rows * heads, ROWS),](
        x,
        gate,
        weight,
        rows,
        x.stride(0),
        gate.stride(0),
        eps,
        H=heads,
        K=DIM,
        BM=ROWS,
        num_warps=WARPS,
        launch_pdl=True,
    )
