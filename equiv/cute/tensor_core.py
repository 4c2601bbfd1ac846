"""Device helpers for `tcgen05` (sm_100a): operands in swizzled shared memory, the accumulator in tensor memory.

Bit fields of the two descriptors: spec dsa 4 and numerics 1.6.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Int64, cute

SWIZZLE_128B = 2 << 61
VERSION = 1 << 46
GROUP_BYTES = 1024
"""Eight rows of 128 bytes, the unit of the 128-byte swizzle and the distance from one such group to the next."""
K_BYTES = 32
"""Bytes of a row that one instruction takes: 16 elements of 16 bits."""
WARP_LANES = 32 << 16
"""From the tensor memory address of one warp's lanes to that of the next."""
MAX_PIECE = 64


@cute.jit
def matrix_descriptor(address: Int32) -> Int64:
    """Descriptor of a K-major operand in shared memory, 64 columns of 16 bits a row, swizzled over 128 bytes."""
    return Int64((address >> 4) & 0x3FFF) | ((GROUP_BYTES >> 4) << 32 | VERSION | SWIZZLE_128B)


def bf16_instruction(m: int, n: int) -> int:
    """Instruction descriptor of an m x n tile: float32 result, BF16 operands, both K-major."""
    return 1 << 4 | 1 << 7 | 1 << 10 | n // 8 << 17 | m // 16 << 24


@cute.jit
def multiply_16(accumulator: Int32, a: Int64, b: Int64, instruction: cutlass.Constexpr[int], add: cutlass.Boolean):
    """Sixteen products a value: D = A B^T, or D += A B^T where `add`; for one thread."""
    cute.arch.inline_ptx(
        "{ .reg .pred add; setp.ne.b32 add, {$r4}, 0;"
        " tcgen05.mma.cta_group::1.kind::f16 [{$r0}], {$r1}, {$r2}, {$r3}, add; }",
        read_only_args=[accumulator, a, b, Int32(instruction), Int32(add)],
    )


@cute.jit
def fence_before_sync():
    """Orders this thread's `tcgen05` work before the synchronisation that follows."""
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")


@cute.jit
def fence_after_sync():
    """Orders this thread's `tcgen05` work behind the synchronisation before it."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def load_columns(address: Int32, count: int) -> cute.Tensor:
    """This thread's lane of `count` columns (a multiple of 4) of tensor memory, for all threads of a warp.

    The address is that of the warp's own 32 lanes. Pieces are powers of two up to 64 columns; the values are there when
    it returns.
    """
    rX = cute.make_rmem_tensor(count, Float32)
    at = 0
    while at < count:
        size = min(MAX_PIECE, 1 << ((count - at).bit_length() - 1))
        names = ", ".join(f"{{$w{i}}}" for i in range(size))
        # One block: nothing may use the registers between the load and the wait.
        piece = cute.arch.inline_ptx(
            f"tcgen05.ld.sync.aligned.32x32b.x{size}.b32 {{{names}}}, [{{$r0}}]; tcgen05.wait::ld.sync.aligned;",
            write_only_types=[Float32] * size,
            read_only_args=[address + at],
        )
        for i in range(size):
            rX[at + i] = piece[i]
        at += size
    return rX
