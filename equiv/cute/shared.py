"""Device helpers for shared memory, one's own and that of the cluster's other CTAs."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Int64, cute

EVICT_FIRST = 0x12F0000000000000
"""L2 policy of data that is read once, as `createpolicy.fractional.L2::evict_first` gives it."""


@cute.jit
def shared_vector(dtype: cutlass.Constexpr, address: Int32, count: cutlass.Constexpr[int]) -> cute.Tensor:
    """`count` neighbouring elements at a byte address of shared memory that is aligned to all of them."""
    align = count * dtype.width // 8
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.smem, assumed_align=align)
    return cute.make_tensor(pointer, cute.make_layout(count))


@cute.jit
def push(pointer: cute.Pointer, value: Float32, barrier: cute.Pointer, rank: Int32):
    """Stores `value` at the same place of another CTA of the cluster; its barrier counts four bytes."""
    cute.arch.store_async_dsmem(pointer, value.bitcast(Int32), barrier, rank)


@cute.jit
def push4(pointer: cute.Pointer, rX, at: cutlass.Constexpr[int], barrier: cute.Pointer, rank: Int32):
    """As `push`, four neighbours `rX[at .. at + 3]` of 32 bits at once; the place is aligned to 16 bytes."""
    values = tuple(rX[at + i].bitcast(Int32) for i in range(4))
    aligned = cute.make_ptr(Float32, pointer.toint(), cute.AddressSpace.smem, assumed_align=16)
    cute.arch.store_async_dsmem(aligned, values, barrier, rank)


@cute.jit
def load_box(destination: cute.Pointer, tensor_map: Int64, column: Int32, row: Int32, barrier: cute.Pointer):
    """Copies a box of a 2-dimensional tensor into shared memory and keeps it out of L2's way; for one thread.

    The map lies in device memory; `barrier` counts the bytes.
    """
    cute.arch.inline_ptx(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [{$r0}], [{$r1}, {{$r2}, {$r3}}], [{$r4}], {$r5};",
        read_only_args=[destination.toint(), tensor_map, column, row, barrier.toint(), Int64(EVICT_FIRST)],
    )


@cute.jit
def acquire_tensor_map(tensor_map: Int64):
    """Makes a tensor map that was written to device memory visible to this CTA's copies."""
    cute.arch.inline_ptx("fence.proxy.tensormap::generic.acquire.sys [{$r0}], 128;", read_only_args=[tensor_map])
