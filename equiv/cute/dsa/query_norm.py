"""`QueryNorm`: the RMSNorm of the query latent alone, with the device code and the bits of `IndexFrontMma`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import Float32, cute

from equiv.cute.access import load_vector, store_vector
from equiv.cute.fixed import Fixed
from equiv.cute.host import compiled, dynamic, stream_of
from equiv.cute.row_norm import CHUNK, factor_of, load_row, row_of, scaled_chunk, squares
from equiv.errors import UsageError
from equiv.geometry.front import RANK

if TYPE_CHECKING:
    import torch

WARPS = 4


class QueryNorm(Fixed):
    """RMSNorm over 1536 columns, one warp a row, four rows a CTA.

    Operands of the call, in order (rows are dense; the first stride is free, a multiple of 8 elements):
        rows_in: BF16 [B, >= 1536], columns 0 .. 1535 are read. w_qa: BF16 [1536]. q_c: BF16 [B, 1536], written.
        eps: float32 added to a row's mean square. stream: CUDA stream.
    """

    variant = ()

    @cute.jit
    def __call__(self, mRows: cute.Tensor, mGamma: cute.Tensor, mOut: cute.Tensor, eps: Float32, stream):
        """One launch; being a programmatic dependent one it may start before its predecessor ends."""
        self.kernel(mRows, mGamma, mOut, eps).launch(
            grid=(cute.ceil_div(mOut.shape[0], WARPS), 1, 1), block=(32 * WARPS, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(self, mRows: cute.Tensor, mGamma: cute.Tensor, mOut: cute.Tensor, eps: Float32):
        """Warp w of CTA c takes row 4 c + w."""
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        row = cta * WARPS + thread // 32
        lane = thread % 32
        cute.arch.griddepcontrol_wait()
        if row < mOut.shape[0]:
            chunks = load_row(row_of(mRows, row), lane)
            factor = factor_of(squares(chunks), eps)
            for i in cutlass.range_constexpr(len(chunks)):
                at = (32 * i + lane) * CHUNK
                store_vector(
                    row_of(mOut, row) + at, scaled_chunk(chunks[i], load_vector(mGamma.iterator + at, CHUNK), factor)
                )
        cute.arch.griddepcontrol_launch_dependents()


def query_norm(rows: torch.Tensor, w_qa: torch.Tensor, q_c: torch.Tensor, *, eps: float = 1e-6) -> None:
    """Runs `QueryNorm` on torch tensors, on the device that CuTe DSL is set to: one launch on the current stream.

    Raises:
        UsageError: rows of fewer than 1536 columns.
    """
    if rows.shape[1] < RANK:
        raise UsageError(f"rows must have at least {RANK} columns; got {rows.shape[1]}")
    operands = (*map(dynamic, (rows, w_qa, q_c)), Float32(eps), stream_of(rows))
    compiled(QueryNorm(), operands, on_gpu=rows.is_cuda)(*operands)
