"""The smallest Triton kernel that `equiv doctor` can learn something from."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 128


@triton.jit
def probe_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i_x = tl.arange(0, BLOCK)
    tl.store(y_ptr + i_x, tl.load(x_ptr + i_x) * 3.0 + 1.0)


def run_probe(x, y):
    """Y = fma(x, 3, 1), all `[128]` FP32, in one block."""
    probe_kernel[(1,)](x, y, BLOCK=BLOCK)
