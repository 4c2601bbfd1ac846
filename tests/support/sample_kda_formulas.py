"""A CuTe DSL kernel that gives the results of the KDA formulas; in a file because the DSL reads its source."""
# ruff: noqa: ANN201, N803, N806
# mypy: ignore-errors

import cutlass
from cuda.bindings import driver
from cutlass import Float32, Uint32, cute

from equiv.cute.kda import formulas

COLUMNS = ("silu", "sigmoid", "exp", "decay", "norm", "rms", "gated", "fma low", "fma high", "mul low", "mul high",
           "add low", "add high", "sum", "rows", "block")  # fmt: skip
WARP = 32
THREADS = 256


@cute.kernel
def formulas_kernel(mX: cute.Tensor, mY: cute.Tensor):
    """Y[t] = every formula of x, a, b = X[0, t], X[1, t], X[2, t]."""
    memory = cutlass.memory.SmemAllocator()
    sPart = memory.allocate_tensor(Float32, cute.make_layout((8, 4), stride=(4, 1)), 16)
    t, _, _ = cute.arch.thread_idx()
    x, a, b = mX[0, t], mX[1, t], mX[2, t]
    if t < WARP:
        sPart[t // 4, t % 4] = x
    cute.arch.barrier()
    mY[t, 0] = formulas.silu(x)
    mY[t, 1] = formulas.sigmoid(x)
    mY[t, 2] = formulas.triton_exp(x)
    mY[t, 3] = formulas.decay(x, a, formulas.triton_exp(b), -5.0)
    mY[t, 4] = formulas.inverse_norm(a)
    mY[t, 5] = formulas.inverse_rms(a, 1e-5)
    mY[t, 6] = formulas.gated(x, a, b, x)
    mY[t, 7], mY[t, 8] = formulas.fma2((x, a), (a, b), (b, x))
    mY[t, 9], mY[t, 10] = formulas.mul2((x, a), (a, b))
    mY[t, 11], mY[t, 12] = formulas.add2((x, a), (a, b))
    mY[t, 13] = formulas.warp_sum(x)
    mY[t, 14] = formulas.row_sum(x, a, b, x, t % 8)
    mY[t, 15] = formulas.block_sum(sPart, t % 8)


@cute.jit
def run_formulas(mX: cute.Tensor, mY: cute.Tensor, stream: driver.CUstream):
    """One block, a thread a column of X [3, 256]."""
    formulas_kernel(mX, mY).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream)


@cute.kernel
def product_kernel(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
    """C += A B of one warp: words and floats as its lanes hold them, [32, 4], [32, 2], [32, 4]."""
    t, _, _ = cute.arch.thread_idx()
    a, b = tuple(Uint32(mA[t, i]) for i in range(4)), tuple(Uint32(mB[t, i]) for i in range(2))
    d = formulas.mma_m16n8k16(a, b, tuple(mC[t, i] for i in range(4)))
    for i in cutlass.range_constexpr(4):
        mC[t, i] = d[i]


@cute.jit
def run_product(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, stream: driver.CUstream):
    """One warp."""
    product_kernel(mA, mB, mC).launch(grid=[1, 1, 1], block=[WARP, 1, 1], stream=stream)
