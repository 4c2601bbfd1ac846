"""The stock DSA indexer front as plain Triton kernels: the oracle of `dsa_front`.

RMSNorm of the query latent in the production form (spec dsa 1.1: one block of 2048 on eight warps, `div.full.f32`,
`rsqrt.approx.ftz.f32`, two multiplications, one rounding), the projection wq_b as an ordinary matrix product that
streams the weights, then the quantisation chain of `equiv.triton_ref.dsa`.
Letters: B requests, K = 1536 columns of the latent, N = 4096 outputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from equiv.geometry.dsa import DIM, HEADS
from equiv.geometry.front import OUTPUTS, RANK
from equiv.triton_ref.dsa import dsa_index

NORM_BLOCK = 2048
NORM_WARPS = 8
TILE_OUTPUTS = 128
TILE_ROWS = 16
TILE_COLUMNS = 64
TILE_WARPS = 4
STAGES = 3


@triton.jit
def normalise_rows_kernel(rows, gamma, normed, row_pitch, eps, K: tl.constexpr, BLOCK: tl.constexpr):
    """One program a request: RMSNorm of the first K columns of a row -> normed [B, K] BF16."""
    i_b = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BLOCK)
    m_k = o_k < K
    b_x = tl.load(rows + i_b * row_pitch + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_rr = tl.rsqrt(tl.sum(b_x * b_x) / K + eps)
    b_w = tl.load(gamma + o_k, mask=m_k, other=0.0).to(tl.float32)
    tl.store(normed + i_b * K + o_k, ((b_x * b_rr) * b_w).to(tl.bfloat16), mask=m_k)


@triton.jit
def project_kernel(
    latent,
    weights,
    projected,
    batch,
    latent_pitch,
    N: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
    BK: tl.constexpr,
):
    """One program BN outputs of BB requests: weights [N, K] times latent [B, K], transposed -> projected [B, N] BF16.

    The weights are the left operand, so that a small batch is the tensor core's N and not a padded M.
    """
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    o_b = tl.program_id(1).to(tl.int64) * BB + tl.arange(0, BB)
    m_b = o_b < batch
    b_acc = tl.zeros((BN, BB), dtype=tl.float32)
    for i_k in range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)
        b_w = tl.load(weights + o_n[:, None] * K + o_k[None, :])
        b_x = tl.load(latent + o_b[None, :] * latent_pitch + o_k[:, None], mask=m_b[None, :], other=0.0)
        b_acc = tl.dot(b_w, b_x, b_acc)
    tl.store(projected + o_b[None, :] * N + o_n[:, None], b_acc.to(tl.bfloat16), mask=m_b[None, :])


def normalise_rows(projected: torch.Tensor, w_qa: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of the latent, one launch: BF16 [B, 1536] from columns 0..1535 of BF16 [B, width] with dense rows."""
    latent = torch.empty((projected.shape[0], RANK), dtype=torch.bfloat16, device=projected.device)
    normalise_rows_kernel[(projected.shape[0],)](
        projected, w_qa, latent, projected.stride(0), eps, K=RANK, BLOCK=NORM_BLOCK, num_warps=NORM_WARPS
    )
    return latent


def dsa_front(
    projected: torch.Tensor,
    q_c: torch.Tensor | None,
    w_q: torch.Tensor,
    w_qa: torch.Tensor,
    norm_w: torch.Tensor,
    norm_b: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    q_out: torch.Tensor,
    w_out: torch.Tensor,
    *,
    key_at: int,
    weight_at: int,
    fp4: bool = False,
    mx: bool = False,
    key_round: str = "bf16",
    key_floor: float = 1e-4,
    eps: float = 1e-6,
    key_eps: float = 1e-6,
) -> None:
    """Runs the chain on the active Triton driver: six launches (five where the latent comes normalised).

    The normalised latent, the projected query and what `dsa_index` keeps are scratch tensors.

    Args:
        projected: BF16 [B, width], rows dense; columns 0..1535 are the query latent, unless `q_c` is given.
        q_c: BF16 [B, 1536], the latent already normalised, rows dense; None: it is computed from `projected`.
        w_q: BF16 [4096, 1536], contiguous; row 128 h + c makes channel c of head h.
        w_qa: BF16 [1536], weight of the latent's RMSNorm; not read with `q_c`.
        norm_w: FP32 [128], weight of the key's LayerNorm.
        norm_b: FP32 [128], its bias.
        cache: as `dsa_index` takes it.
        slots: int64 [B], likewise.
        q_out: uint8 [B, 4096] (FP8) or [B, 2176] (FP4), likewise.
        w_out: BF16 [B, 32].
        key_at: column of `projected` where the index key begins.
        weight_at: column of `projected` where the head weights begin.
        fp4: quantise to MXFP4 instead of FP8.
        mx: store a key's FP8 scale as its UE8M0 byte four times.
        key_round: "bf16" stores the normalised key as BF16 before it is quantised, "f32" as float32.
        key_floor: smallest magnitude that the key's FP8 scale is made for.
        eps: added to the latent's mean square.
        key_eps: added to the key's variance.

    Raises:
        UsageError: `key_round` is unknown.
    """
    batch = projected.shape[0]
    latent = normalise_rows(projected, w_qa, eps) if q_c is None else q_c
    q = torch.empty((batch, HEADS, DIM), dtype=torch.bfloat16, device=projected.device)
    project_kernel[(OUTPUTS // TILE_OUTPUTS, triton.cdiv(batch, TILE_ROWS))](
        latent,
        w_q,
        q,
        batch,
        latent.stride(0),
        N=OUTPUTS,
        K=RANK,
        BN=TILE_OUTPUTS,
        BB=TILE_ROWS,
        BK=TILE_COLUMNS,
        num_warps=TILE_WARPS,
        num_stages=STAGES,
    )
    dsa_index(
        q,
        projected,
        norm_w,
        norm_b,
        cache,
        slots,
        q_out,
        w_out,
        key_at=key_at,
        weight_at=weight_at,
        fp4=fp4,
        mx=mx,
        key_round=key_round,
        key_floor=key_floor,
        eps=key_eps,
    )
