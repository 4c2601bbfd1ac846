"""CuTe DSL kernels that use what its host code can set up; in a file because the DSL reads its source."""
# ruff: noqa: ANN001, ANN201, N803, N806, PLR0917
# mypy: ignore-errors

import cutlass
from cuda.bindings import driver
from cutlass import cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync

THREADS = 128
M, N = 16, 32
STAGES = 3
CLUSTER = 4
BIG = 100 * 1024


@cute.kernel
def tiles_kernel(load: cute.CopyAtom, mX: cute.Tensor, store: cute.CopyAtom, mY: cute.Tensor, layout: cute.Layout):
    """Y = 2 X, a tile a block, with tensor copies both ways."""
    memory = cutlass.memory.SmemAllocator()
    sT = memory.allocate_tensor(cutlass.Float32, layout, 128)
    full = memory.allocate_array(cutlass.Int64, 1)
    thread, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 0:
        cpasync.prefetch_descriptor(load)
    if thread == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    gX, gY = cute.local_tile(mX, (M, N), (row, column)), cute.local_tile(mY, (M, N), (row, column))
    alone, flat = cute.make_layout(1), cute.group_modes(sT, 0, 2)
    sX, gX = cpasync.tma_partition(load, 0, alone, flat, cute.group_modes(gX, 0, 2))
    sY, gY = cpasync.tma_partition(store, 0, alone, flat, cute.group_modes(gY, 0, 2))
    if warp == 0:
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, M * N * 4)
        cute.copy(load, gX, sX, tma_bar_ptr=full)
    cute.arch.mbarrier_wait(full, 0)
    for index in cutlass.range_constexpr(M * N // THREADS):
        at = thread + THREADS * index
        sT[at // N, at % N] = sT[at // N, at % N] * 2.0
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier()
    if warp == 0:
        cute.copy(store, sY, gY)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)


@cute.kernel
def shared_tile_kernel(load: cute.CopyAtom, mX: cute.Tensor, mY: cute.Tensor, layout: cute.Layout):
    """Y[block] = X: each block of a pair loads half of a tile into the shared memory of both."""
    memory = cutlass.memory.SmemAllocator()
    sT = memory.allocate_tensor(cutlass.Float32, layout, 128)
    full = memory.allocate_array(cutlass.Int64, 1)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if thread == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, M * N * 4)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    pair = cute.make_layout(2)
    gX = cute.local_tile(mX, (M, N), (0, 0))
    sX, gX = cpasync.tma_partition(load, rank, pair, cute.group_modes(sT, 0, 2), cute.group_modes(gX, 0, 2))
    if warp == 0:
        cute.copy(load, gX, sX, tma_bar_ptr=full, mcast_mask=cutlass.Int16(3))
    cute.arch.mbarrier_wait(full, 0)
    for index in cutlass.range_constexpr(M * N // THREADS):
        at = thread + THREADS * index
        mY[block, at // N, at % N] = sT[at // N, at % N]
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def tiles(mX: cute.Tensor, mY: cute.Tensor, stream: driver.CUstream):
    """Y = 2 X through tensor maps that this function makes."""
    layout = cute.make_layout((M, N), stride=(N, 1))
    load, tX = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), mX, layout, (M, N))
    store, tY = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mY, layout, (M, N))
    tiles_kernel(load, tX, store, tY, layout).launch(
        grid=[cute.ceil_div(mX.shape[0], M), cute.ceil_div(mX.shape[1], N), 1], block=[THREADS, 1, 1], stream=stream
    )


@cute.jit
def shared_tile(mX: cute.Tensor, mY: cute.Tensor, stream: driver.CUstream):
    """Y [2, M, N]: X twice, loaded once by a cluster of two."""
    layout = cute.make_layout((M, N), stride=(N, 1))
    load, tX = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SMulticastOp(), mX, layout, (M, N), 2)
    shared_tile_kernel(load, tX, mY, layout).launch(
        grid=[2, 1, 1], block=[THREADS, 1, 1], cluster=[2, 1, 1], stream=stream
    )


@cute.kernel
def exchange_kernel(mX: cute.Tensor, mY: cute.Tensor):
    """Y[block] = X[next block of the cluster] + 1 through its shared memory: asynchronous stores, remote arrivals."""
    memory = cutlass.memory.SmemAllocator()
    sT = memory.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 16)
    full = memory.allocate_array(cutlass.Int64, 1)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if thread == 0:
        cute.arch.mbarrier_init(full, THREADS + 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, 4 * THREADS)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    before = (rank + CLUSTER - 1) % CLUSTER
    value = mX[block * THREADS + thread] + 1.0
    cute.arch.store_async_dsmem(sT.iterator + thread, value.bitcast(cutlass.Int32), full, before)
    cute.arch.mbarrier_arrive(full, before, scope=nvvm.MemScopeKind.CLUSTER)
    cute.arch.mbarrier_wait(full, 0)
    mY[block * THREADS + thread] = sT[thread]
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


def part(tensor, row, thread):
    """The 4 elements of a row that are a thread's."""
    return cute.local_tile(tensor[row, None], (4,), (thread,))


@cute.kernel
def staged_kernel(mX: cute.Tensor, mY: cute.Tensor, steps: cutlass.Int32, big: cutlass.Constexpr):
    """y[i] = sum over steps of X[step, i], in order, 4 columns a thread, through a pipeline of `cp.async` copies."""
    memory = cutlass.memory.SmemAllocator()
    sT = memory.allocate_tensor(cutlass.Float32, cute.make_layout((STAGES, 4 * THREADS), stride=(4 * THREADS, 1)), 16)
    if cutlass.const_expr(big):
        memory.allocate_array(cutlass.Float32, BIG // 4)
    thread, _, _ = cute.arch.thread_idx()
    cute.arch.griddepcontrol_wait()
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=128)
    for stage in cutlass.range_constexpr(STAGES - 1):
        if stage < steps:
            cute.copy(atom, part(mX, stage, thread), part(sT, stage, thread))
        cute.arch.cp_async_commit_group()
    total = cute.make_rmem_tensor(4, cutlass.Float32)
    total.fill(0.0)
    for step in cutlass.range(steps):
        cute.arch.cp_async_wait_group(STAGES - 2)
        cute.arch.barrier()
        ahead = step + STAGES - 1
        if ahead < steps:
            cute.copy(atom, part(mX, ahead, thread), part(sT, ahead % STAGES, thread))
        cute.arch.cp_async_commit_group()
        for index in cutlass.range_constexpr(4):
            total[index] = total[index] + sT[step % STAGES, 4 * thread + index]
    for index in cutlass.range_constexpr(4):
        mY[4 * thread + index] = total[index]
    cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def chain(mX: cute.Tensor, mS: cute.Tensor, mY: cute.Tensor, mZ: cute.Tensor, steps: cutlass.Int32,
          stream: driver.CUstream):  # fmt: skip
    """S = sum of rows of X; Y = S of the next quarter + 1; then the same sum with more shared memory into Z."""
    staged_kernel(mX, mS, steps, False).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=True)
    exchange_kernel(mS, mY).launch(
        grid=[CLUSTER, 1, 1], block=[THREADS, 1, 1], cluster=[CLUSTER, 1, 1], stream=stream, use_pdl=True
    )
    staged_kernel(mX, mZ, steps, True).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream)
