"""A small CuTe DSL kernel for tests of the devices; in a file because the DSL reads its source."""
# ruff: noqa: ANN201, N803, N806
# mypy: ignore-errors

import cutlass
from cuda.bindings import driver
from cutlass import cute

BLOCK = 128
BLOCKS = 2


@cute.kernel
def turn_kernel(mX: cute.Tensor, mY: cute.Tensor, scale: cutlass.Float32):
    """Within each block of 128: y = reverse(x * scale + 1), through shared memory."""
    memory = cutlass.memory.SmemAllocator()
    sT = memory.allocate_tensor(cutlass.Float32, cute.make_layout(BLOCK), 16)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    sT[thread] = mX[block * BLOCK + thread] * scale + 1.0
    cute.arch.barrier()
    mY[block * BLOCK + thread] = sT[BLOCK - 1 - thread]


@cute.jit
def turn(mX: cute.Tensor, mY: cute.Tensor, scale: cutlass.Float32, stream: driver.CUstream):
    """Two blocks in one cluster."""
    turn_kernel(mX, mY, scale).launch(
        grid=[BLOCKS, 1, 1], block=[BLOCK, 1, 1], cluster=[BLOCKS, 1, 1], stream=stream, use_pdl=True
    )


@cute.jit
def turn_twice(mX: cute.Tensor, mY: cute.Tensor, scale: cutlass.Float32, stream: driver.CUstream):
    """The same kernel twice in one host function."""
    turn_kernel(mX, mY, scale).launch(grid=[BLOCKS, 1, 1], block=[BLOCK, 1, 1], stream=stream)
    turn_kernel(mX, mY, scale).launch(grid=[1, 1, 1], block=[BLOCK, 1, 1], stream=stream)


@cute.jit
def turn_dense(mX: cute.Tensor, mY: cute.Tensor, scale: cutlass.Float32, stream: driver.CUstream):
    """Asks for two blocks a multiprocessor, which makes the DSL ask for the size of its shared memory."""
    turn_kernel(mX, mY, scale).launch(grid=[BLOCKS, 1, 1], block=[BLOCK, 1, 1], stream=stream, min_blocks_per_mp=2)
