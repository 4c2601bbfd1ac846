"""What the recurrent kernels of the stock KDA chain share: decay, write strength, and the two ways to normalise.

All are FP32 in and out. `tl.exp` is a product by log2(e) and `ex2.approx`, `/` is `div.full` (spec kda 1.4, 1.6, 1.9).
"""

from __future__ import annotations

import triton
import triton.language as tl

EPS = 1e-6
"""Added to the sum of squares of a query or a key."""


@triton.jit
def decay(b_raw, b_bias, b_log, lower_bound):
    """exp(lower_bound * sigmoid(exp(A_log) * (raw gate + dt_bias))): what a state column keeps of its value, [K]."""
    b_gate = lower_bound * tl.sigmoid(tl.exp(b_log) * (b_raw + b_bias))
    return tl.exp(b_gate)


@triton.jit
def divide_by_norm(b_x, EPS: tl.constexpr):
    """b_x [K] / sqrt(sum b_x^2 + EPS): the step's form."""
    return b_x / tl.sqrt(tl.sum(b_x * b_x) + EPS)


@triton.jit
def inverse_norm(b_x, EPS: tl.constexpr):
    """rsqrt(sum b_x^2 + EPS) of b_x [K]: the form of verification and commit."""
    return tl.rsqrt(tl.sum(b_x * b_x) + EPS)
