"""Triton kernels with matrix products, for tests of the emulator; in a file because Triton reads their source."""
# ruff: noqa: ANN001, ANN201, N803, PLR0917
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def dot(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr,
        BT: tl.constexpr, SCALE: tl.constexpr):  # fmt: skip
    """c [M, N] = a [M, K] times b ([K, N], or [N, K] with BT); a is doubled in registers first with SCALE."""
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, STEP)
    total = tl.zeros((M, N), dtype=c_ptr.dtype.element_ty)
    for start in range(0, K, STEP):
        a = tl.load(a_ptr + rows[:, None] * K + (start + depth)[None, :])
        if SCALE:
            a = (a * 2).to(a.dtype)
        if BT:
            b = tl.load(b_ptr + columns[:, None] * K + (start + depth)[None, :]).T
        else:
            b = tl.load(b_ptr + (start + depth)[:, None] * N + columns[None, :])
        total = tl.dot(a, b, total, input_precision="tf32", out_dtype=c_ptr.dtype.element_ty)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total)


@triton.jit
def dot_scaled(a_ptr, sa_ptr, b_ptr, sb_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
               AF: tl.constexpr, BF: tl.constexpr, BLOCK: tl.constexpr,
               APACK: tl.constexpr, BPACK: tl.constexpr):  # fmt: skip
    """c [M, N] = a [M, K] times b [N, K], transposed, with scales [M, K / BLOCK] and [N, K / BLOCK]."""
    rows, columns, groups = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // BLOCK)
    a = tl.load(a_ptr + rows[:, None] * (K // APACK) + tl.arange(0, K // APACK)[None, :])
    b = tl.load(b_ptr + columns[:, None] * (K // BPACK) + tl.arange(0, K // BPACK)[None, :]).T
    sa = tl.load(sa_ptr + rows[:, None] * (K // BLOCK) + groups[None, :])
    sb = tl.load(sb_ptr + columns[:, None] * (K // BLOCK) + groups[None, :])
    total = tl.dot_scaled(a, sa, AF, b, sb, BF)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total)
