"""Triton kernels with matrix products, for traces."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def dot_kernel(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803, PLR0917
    """c [M, N] = a [M, K] b [K, N] in steps of BLOCK."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BLOCK):
        o = k + tl.arange(0, BLOCK)
        acc = tl.dot(tl.load(a + m[:, None] * K + o[None, :]), tl.load(b + o[:, None] * N + n[None, :]), acc)
    tl.store(c + m[:, None] * N + n[None, :], acc)


@triton.jit  # type: ignore[untyped-decorator]
def split_kernel(a, b, c, S: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803, PLR0917
    """c [M, N] = a [M, S*K] b [S*K, N], each of S slices of K on its own warp, added at the end."""
    s, m, n, k = tl.arange(0, S), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + s[:, None, None] * K + m[None, :, None] * (S * K) + k[None, None, :])
    y = tl.load(b + s[:, None, None] * (K * N) + k[None, :, None] * N + n[None, None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.sum(tl.dot(x, y), axis=0))
