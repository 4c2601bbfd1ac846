"""Device helpers of the query latent's RMSNorm, 1536 BF16 columns a row: one warp a row (spec dsa 1.1).

The order of the sum is that of `QueryNorm` and of `IndexFrontMma`, the rounding points are those of every form.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute

from equiv.cute.access import load_vector
from equiv.cute.warp import warp_sum
from equiv.geometry.front import RANK

CHUNK = 8
"""Neighbouring columns that a lane loads at once."""
CHAINS = 4


@cute.jit
def row_factors(rows: list[cute.Pointer], eps: Float32, lane: Int32) -> Float32:
    """1 / sqrt(mean of squares + eps) of row `lane % len(rows)`; the loads of all rows are under way together.

    Lane l holds columns 256 i + 8 l .. + 7 of each row for i = 0 .. 5; its e-th column is added to chain e mod 4.
    """
    totals = sums_of(rows, lane)
    mine = totals[0]
    for m in cutlass.range_constexpr(1, len(totals)):
        if lane % len(totals) == m:
            mine = totals[m]
    return factor_of(mine, eps)


def sums_of(rows: list[cute.Pointer], lane: Int32) -> list[Float32]:
    """Each row's sum of squares, in every lane."""
    return [squares(chunks) for chunks in [load_row(row, lane) for row in rows]]


def load_row(row: cute.Pointer, lane: Int32) -> list[cute.TensorSSA]:
    """This lane's six chunks of a row."""
    return [load_vector(row + (32 * i + lane) * CHUNK, CHUNK) for i in range(RANK // (32 * CHUNK))]


@cute.jit
def squares(chunks: list[cute.TensorSSA]) -> Float32:
    """Sum of the squares of the row of which this lane holds `chunks`, in every lane."""
    rC = cute.make_rmem_tensor(CHAINS, Float32)
    for i in cutlass.range_constexpr(len(chunks)):
        rX = chunks[i].to(Float32)
        for j in cutlass.range_constexpr(CHUNK):
            if cutlass.const_expr(i == 0 and j < CHAINS):
                rC[j] = rX[j] * rX[j]
            else:
                rC[j % CHAINS] = cute.math.fma(rX[j], rX[j], rC[j % CHAINS])
    return warp_sum((rC[0] + rC[1]) + (rC[2] + rC[3]))


@cute.jit
def factor_of(total: Float32, eps: Float32) -> Float32:
    """1 / sqrt(total / 1536 + eps)."""
    return cute.math.rsqrt(total / Float32(RANK) + eps, approx=True)


@cute.jit
def row_of(mX: cute.Tensor, row: Int32) -> cute.Pointer:
    """Where a row of a tensor begins."""
    return mX.iterator + Int64(row) * mX.stride[0]


@cute.jit
def scaled_chunk(rX, rG, factor: Float32):
    """Eight columns normalised: (x * factor) * gamma, both products rounded to float32, the result to BF16."""
    return ((rX.to(Float32) * factor) * rG.to(Float32)).to(BFloat16)
