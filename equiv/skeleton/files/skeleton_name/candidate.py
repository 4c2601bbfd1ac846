"""The candidate: a CuTe DSL kernel, a warp a row, four channels a lane. The kernel under test goes here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cutlass
import torch
from cuda.bindings import driver
from cutlass import BFloat16, Float32, cute
from cutlass.cute.runtime import from_dlpack

from equiv.cute.host import architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Case

DIM = 128
_compiled: dict[tuple[str, bool], Any] = {}
"""By architecture and whether it runs on a GPU: shapes and strides are run-time values."""


@cute.kernel
def norm_kernel(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, eps: Float32):
    """One row of x * (rstd * w): not quite the oracle's product, which is declared (`numbers.py`)."""
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    rX = cute.make_rmem_tensor(4, Float32)
    total = Float32(0.0)
    for c in cutlass.range_constexpr(4):
        rX[c] = Float32(mX[row, lane * 4 + c])
        total += rX[c] * rX[c]
    total = cute.arch.warp_reduction_sum(total)
    rstd = cute.math.rsqrt(total * Float32(1 / DIM) + eps, approx=True, ftz=True)
    for c in cutlass.range_constexpr(4):
        mY[row, lane * 4 + c] = BFloat16(rX[c] * (rstd * mW[lane * 4 + c]))


@cute.jit
def launch(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, eps: Float32, stream: driver.CUstream):
    """A warp a row."""
    norm_kernel(mX, mW, mY, eps).launch(grid=[mX.shape[0], 1, 1], block=[32, 1, 1], stream=stream)


def run(case: Case, tensors: Mapping[str, Any]) -> None:
    """One launch on torch tensors of the active device; the result goes into `y`."""
    given = [tensors[name] for name in ("x", "w", "y")]
    stream = torch.cuda.current_stream(given[0].device).cuda_stream if given[0].is_cuda else 0
    dynamic = [from_dlpack(tensor).mark_layout_dynamic(leading_dim=tensor.dim() - 1) for tensor in given]
    operands = (*dynamic, Float32(float(case.axes["eps"])), driver.CUstream(stream))
    key = (architecture(), given[0].is_cuda)
    if key not in _compiled:
        _compiled[key] = cute.compile(launch, *operands)
    _compiled[key](*operands)
