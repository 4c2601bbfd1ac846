"""RMSNorm of the front's sm_100a form: a tile's factors, shared over the cluster, and its rows normalised in place."""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, cute

from equiv.cute.access import load_vector
from equiv.cute.dsa.front_cta import sync_warps
from equiv.cute.dsa.tiling import BLOCK_COLUMNS, WARPS
from equiv.cute.row_norm import CHUNK, row_factors, row_of, scaled_chunk
from equiv.cute.shared import push, shared_vector
from equiv.geometry.front import RANK

CHUNKS = BLOCK_COLUMNS // CHUNK
THREADS = 32 * WARPS
TOGETHER = 4
"""Rows, at most, whose loads a warp has under way at once; of m rows lane l tells row l mod m to CTA l // m."""


@cute.jit
def stage_gamma(cta, mGamma, thread: Int32):
    """Brings the slice's norm weights into shared memory; they are weights, so no earlier kernel is waited for."""
    source = mGamma.iterator + cta.part * (RANK // cta.plan.split)
    for at in cutlass.range(thread, RANK // cta.plan.split // CHUNK, THREADS, unroll=1):
        shared_vector(BFloat16, cta.gamma.toint() + at * 16, CHUNK).store(load_vector(source + at * CHUNK, CHUNK))


@cute.jit
def factors(cta, mRows, eps: Float32, warp: Int32, lane: Int32):
    """The factor of every valid row of the tile into `cta.factors`; the warps meet at the end.

    Small tiles compute all of them in every CTA. Otherwise CTA r of the cluster takes rows (warp + 4 m) * CTAs + r and
    tells all. Rows past the batch are read as its last row and their factors dropped.
    """
    plan = cta.plan
    ctas = plan.cluster if plan.shares_factors else 1
    rank = cta.rank if cutlass.const_expr(plan.shares_factors) else 0
    first = warp * ctas + rank
    if cutlass.const_expr(plan.n <= TOGETHER * WARPS * ctas):
        if first < cta.valid:
            some_factors(cta, mRows, eps, first, lane)
    else:
        for at in cutlass.range(first, cta.valid, TOGETHER * WARPS * ctas, unroll=1):
            some_factors(cta, mRows, eps, at, lane)
    if cutlass.const_expr(plan.shares_factors):
        cute.arch.mbarrier_wait(cta.factors_full, 0)
    sync_warps()


@cute.jit
def some_factors(cta, mRows, eps: Float32, first: Int32, lane: Int32):
    """Factors of row `first` of the tile and of those every 4 * CTAs rows behind it, up to `TOGETHER` of them."""
    plan = cta.plan
    ctas = plan.cluster if plan.shares_factors else 1
    together = min(TOGETHER, -(-plan.n // (WARPS * ctas)))
    places = [first + m * WARPS * ctas for m in range(together)]
    rows = [row_of(mRows, cta.first_row + cutlass.min(place, cta.valid - 1)) for place in places]
    factor = row_factors(rows, eps, lane)
    place = first + lane % together * (WARPS * ctas)
    if place < cta.valid and lane // together < ctas:
        if cutlass.const_expr(plan.shares_factors):
            push(cta.factors + place, factor, cta.factors_full, lane // together)
        else:
            cta.factors[place] = factor


@cute.jit
def normalize(cta, thread: Int32):
    """Normalises the valid rows of every block in place as it arrives, and says so to the multiplying warp."""
    plan = cta.plan
    chunk = thread % CHUNKS
    for block in cutlass.range(plan.blocks, unroll=1):
        stage = block % plan.stages
        cute.arch.mbarrier_wait(cta.rows_full(stage), (block // plan.stages) & 1)
        tile = cta.rows.toint() + stage * plan.row_bytes
        rG = shared_vector(BFloat16, cta.gamma.toint() + (block * CHUNKS + chunk) * 16, CHUNK).load()
        for step in cutlass.range_constexpr(plan.n * CHUNKS // THREADS):
            row = thread // CHUNKS + step * (THREADS // CHUNKS)
            if row < cta.valid:
                # The swizzle: rows of 128 bytes, the 16-byte chunks of each permuted by its number modulo 8.
                sX = shared_vector(BFloat16, tile + row * 128 + ((chunk ^ (row % 8)) * 16), CHUNK)
                sX.store(scaled_chunk(sX.load(), rG, cta.factors[row]))
        cute.arch.fence_view_async_shared()
        cute.arch.mbarrier_arrive(cta.rows_ready(stage))
