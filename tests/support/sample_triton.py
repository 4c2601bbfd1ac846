"""Small Triton kernels for tests of the devices; in a file because Triton reads their source."""
# ruff: noqa: ANN001, ANN201, N803, PLR0917
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def axpy(x_ptr, y_ptr, out_ptr, n, scale, one, flag, nothing, pair, BLOCK: tl.constexpr):
    """out = x * scale + y + one (+ pair[1] if flag): every way that an argument can and cannot become a parameter."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x_ptr + at, mask=mask) * scale + tl.load(y_ptr + at, mask=mask) + one
    if flag:
        value += pair[1]
    tl.store(out_ptr + at, value, mask=mask)


@triton.jit
def halve(x_ptr, scale, BLOCK: tl.constexpr):
    """x = x * scale in place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) * scale)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=[])
@triton.jit
def tuned(x_ptr, BLOCK: tl.constexpr):
    """x = x + 1 in place, with a choice of block sizes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)


@triton.jit
def ratio(x_ptr, y_ptr, divisor, BLOCK: tl.constexpr):
    """y = x / divisor + y: a division and a sum in PTX, of which the assembler makes one fused operation."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) / divisor + tl.load(y_ptr + at))
