"""The smallest CuTe DSL kernel that `equiv doctor` can learn something from."""

from __future__ import annotations

import cutlass
from cuda.bindings import driver  # noqa: TC002  the DSL reads hints
from cutlass import cute

from equiv.cute.host import stream_of

BLOCK = 128


@cute.kernel
def probe_kernel(mX: cute.Tensor, mY: cute.Tensor):
    """One element a thread."""
    thread, _, _ = cute.arch.thread_idx()
    mY[thread] = mX[thread] * cutlass.Float32(3.0) + cutlass.Float32(1.0)


@cute.jit
def probe(mX: cute.Tensor, mY: cute.Tensor, stream: driver.CUstream):
    """One block."""
    probe_kernel(mX, mY).launch(grid=[1, 1, 1], block=[BLOCK, 1, 1], stream=stream)


def run_probe(x, y):
    """Y = fma(x, 3, 1), all `[128]` FP32."""
    probe(cute.runtime.from_dlpack(x), cute.runtime.from_dlpack(y), stream_of(x))
