"""Small Triton kernels for tests of the devices; in a file because Triton reads their source."""
# ruff: noqa: ANN001, ANN002, ANN201, N803, PLR0917
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


def block_sizes(*sizes):
    """A configuration a size, of one warp."""
    return [triton.Config({"BLOCK": size}, num_warps=1) for size in sizes]


@triton.autotune(configs=block_sizes(32, 128, 64), key=["n"], restore_value=["x_ptr"], reset_to_zero=["runs_ptr"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def tuned(x_ptr, runs_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """x = x + 1 in place, runs = runs + 1, with a choice of block sizes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = None if EVEN else at < n
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=mask) + 1, mask=mask)
    if tl.program_id(0) == 0:
        tl.store(runs_ptr, tl.load(runs_ptr) + 1)


def by_the_clock(call, quantiles):
    """A benchmark of a kernel's own."""
    raise AssertionError


@triton.autotune(configs=block_sizes(64, 128), key=[], do_bench=by_the_clock)
@triton.jit
def tuned_by_time(x_ptr, BLOCK: tl.constexpr):
    """x = x + 1 in place, whose tuner has a benchmark of its own."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)


@triton.jit
def move_tile(source, target, row, M: tl.constexpr, N: tl.constexpr):
    """Copies a tile through host tensor descriptors."""
    target.store([row, 0], source.load([row, N]))


@triton.jit
def move_tile_described(source_ptr, target_ptr, rows, columns, row, M: tl.constexpr, N: tl.constexpr):
    """The same through descriptors that the kernel makes in global scratch memory."""
    source = tl.make_tensor_descriptor(source_ptr, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(target_ptr, [rows, columns], [columns, 1], [M, N])
    target.store([row, 0], source.load([row, N]))


@triton.jit
def ratio(x_ptr, y_ptr, divisor, BLOCK: tl.constexpr):
    """y = x / divisor + y: a division and a sum in PTX, of which the assembler makes one fused operation."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) / divisor + tl.load(y_ptr + at))
