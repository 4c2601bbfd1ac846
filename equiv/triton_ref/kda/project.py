"""F_B gate projection of the stock KDA chain: a plain GEMM whose order over k is fixed, in two forms (spec kda 1.2).

Tiles are 16 tokens high, too low for `wgmma` and `tcgen05`: both architectures get `mma.sync.m16n8k16`, whose chains go
up through k in steps of 16 from zero. Letters: M rows, N = 128 H gate channels, K = 128 columns of F_A.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from equiv.errors import UsageError
from equiv.geometry.kda import RANK

CHAINS = {0: 1, 1: 4}
"""gate_mode -> chains of matrix instructions over k: one of all eight steps, or one a contiguous quarter of k."""
BLOCK_M = 16
BLOCK_N = 32
WARPS = 4


@triton.jit
def apart(b_x):
    """b_x, unchanged, as a value of its own: without this Triton makes `dot + sum` a chain that starts at `sum`."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [b_x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def project_kernel(
    f_a,
    f_b,
    raw,
    M,
    row_pitch,
    N: tl.constexpr,
    K: tl.constexpr,
    CHAINS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """One program a [BM, BN] tile: f_a [M, K] BF16 with pitch, f_b [N, K] -> raw [M, N] BF16, FP32 inside."""
    o_m = tl.program_id(0) * BM + tl.arange(0, BM)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    DEPTH: tl.constexpr = K // CHAINS
    m_m = o_m[:, None] < M
    b_sum = tl.zeros((BM, BN), dtype=tl.float32)
    for i in tl.static_range(CHAINS):
        o_k = i * DEPTH + tl.arange(0, DEPTH)
        b_a = tl.load(f_a + o_m[:, None].to(tl.int64) * row_pitch + o_k[None, :], mask=m_m, other=0.0)
        b_b = tl.load(f_b + o_n[None, :] * K + o_k[:, None])
        b_part = apart(tl.dot(b_a, b_b))
        b_sum = b_part if i == 0 else b_sum + b_part
    tl.store(raw + o_m[:, None].to(tl.int64) * N + o_n[None, :], b_sum.to(tl.bfloat16), mask=m_m)


def project(f_a: torch.Tensor, f_b: torch.Tensor, gate_mode: int) -> torch.Tensor:
    """Raw gates bf16(f_a @ f_b^T).

    Args:
        f_a: BF16 [M, 128], rows with a pitch.
        f_b: BF16 [N, 128], dense, N a multiple of 32.
        gate_mode: 0 adds k in one chain; 1 in four chains of 32, ((c0 + c1) + c2) + c3.

    Returns:
        BF16 [M, N], dense.

    Raises:
        UsageError: `gate_mode` is unknown.
    """
    if gate_mode not in CHAINS:
        raise UsageError(f"gate_mode must be 0 or 1; got gate_mode={gate_mode!r}")
    rows, channels = f_a.shape[0], f_b.shape[0]
    raw = torch.empty((rows, channels), dtype=torch.bfloat16, device=f_a.device)
    project_kernel[triton.cdiv(rows, BLOCK_M), channels // BLOCK_N](
        f_a,
        f_b,
        raw,
        rows,
        f_a.stride(0),
        N=channels,
        K=RANK,
        CHAINS=CHAINS[gate_mode],
        BM=BLOCK_M,
        BN=BLOCK_N,
        num_warps=WARPS,
    )
    return raw
