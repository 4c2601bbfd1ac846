"""The indexer's query as FP8: a power-of-two scale for each token and head, folded into the head's weight.

A block a token and 8 heads, a warp a head, four channels a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cuda.bindings import driver
from cutlass import BFloat16, Float32, Int32, Uint32, cute
from cutlass.cute.runtime import from_dlpack
from cutlass.cutlass_dsl import CuTeDSL

if TYPE_CHECKING:
    import torch

DIM = 128
WARPS = 8
TOP = 448.0
"""Largest E4M3 value."""
LEAST = 1e-10
_compiled = {}


def architecture():
    """What CuTe DSL compiles for now."""
    return str(CuTeDSL._get_dsl().envar.arch)


@cute.kernel
def quantise(mX: cute.Tensor, mW: cute.Tensor, mCodes: cute.Tensor, mFolded: cute.Tensor, factor: Float32):
    """mX [tokens, heads, 128] -> mCodes [tokens, heads * 32] of four codes each, mFolded = mW * scale * factor."""
    thread, _, _ = cute.arch.thread_idx()
    token, group, _ = cute.arch.block_idx()
    lane = thread % 32
    head = group * WARPS + thread // 32
    x = cute.make_rmem_tensor(4, Float32)
    largest = Float32(0.0)
    for c in cutlass.range_constexpr(4):
        x[c] = Float32(mX[token, head, lane * 4 + c])
        largest = cute.arch.fmax(largest, cute.arch.fmax(x[c], -x[c]))
    largest = cute.arch.warp_reduction_max(largest)
    # The exponent of largest / 448, one more unless that is a power of two already.
    ratio = (cute.arch.fmax(largest, Float32(LEAST)) / Float32(TOP)).bitcast(Uint32)
    exponent = Int32(ratio >> 23) + Int32((ratio & 0x7FFFFF) > 0)
    scale = (exponent << 23).bitcast(Float32)
    inverse = ((254 - exponent) << 23).bitcast(Float32)
    low = pair_of_codes(x[0] * inverse, x[1] * inverse)
    high = pair_of_codes(x[2] * inverse, x[3] * inverse)
    mCodes[token, head * 32 + lane] = low | (high << 16)
    if lane == 0:
        mFolded[token, head] = BFloat16(Float32(mW[token, head]) * scale * factor)


@cute.jit
def pair_of_codes(first: Float32, second: Float32) -> Uint32:
    """Two E4M3 codes, `first` in the low byte; nearest even, saturating."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 pair; cvt.rn.satfinite.e4m3x2.f32 pair, {$r0}, {$r1}; cvt.u32.u16 {$w0}, pair; }",
        write_only_types=[Uint32],
        read_only_args=[second, first],
    )


@cute.jit
def launch(
    mX: cute.Tensor,
    mW: cute.Tensor,
    mCodes: cute.Tensor,
    mFolded: cute.Tensor,
    factor: Float32,
    stream: driver.CUstream,
):
    """A launch for all tokens."""
    quantise(mX, mW, mCodes, mFolded, factor).launch(
        grid=[mX.shape[0], mX.shape[1] // WARPS, 1], block=[32 * WARPS, 1, 1], stream=stream
    )


def quantise_query(
    query: torch.Tensor, weights: torch.Tensor, codes: torch.Tensor, folded: torch.Tensor, factor: float
) -> None:
    """The engine's host function.

    Args:
        query: BF16 [tokens, heads, 128]; heads are a multiple of 8.
        weights: BF16 [tokens, heads], rows with a pitch.
        codes: uint8 [tokens, heads * 128], gets E4M3 codes.
        folded: BF16 [tokens, heads], gets weight * scale * factor.
        factor: softmax scale times head scale.
    """
    import torch

    stream = torch.cuda.current_stream(query.device).cuda_stream if query.is_cuda else 0
    tensors = [
        from_dlpack(one).mark_layout_dynamic(leading_dim=one.dim() - 1)
        for one in (query, weights, codes.view(torch.uint32), folded)
    ]
    operands = (*tensors, Float32(factor), driver.CUstream(stream))
    key = (architecture(), query.is_cuda)
    if key not in _compiled:
        _compiled[key] = cute.compile(launch, *operands)
    _compiled[key](*operands)
