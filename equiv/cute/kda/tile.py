"""An item's [128, 128] state in the registers of 256 threads, and the operations of the recurrence on it.

Thread (g, l), g = thread // 8, l = thread % 8, owns value rows g + 32 r (r < 4) and keys 4 (l + 8 c) + e (c < 4,
e < 4): element [r, c, e] of its register tile. A warp's access is four rows of 128 bytes (FP32).
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Int64, cute

from equiv.cute.access import load_vector, store_vector
from equiv.cute.kda.formulas import add2, add_rn, fma2, mul2
from equiv.geometry.kda import DIM

THREADS = 256
LANES = 8
"""Threads that share a state row."""
ROWS = 4
"""State rows a thread owns."""
QUADS = 4
"""Groups of four neighbouring keys that a thread owns of a row."""
ROW_STEP = THREADS // LANES
"""Rows between two that a thread owns."""
KEY_STEP = 4 * LANES
"""Keys between two quads that a thread owns."""


def make_tile():
    """A thread's registers for its part of the state, [r, c, e]."""
    return cute.make_rmem_tensor(cute.make_layout((ROWS, QUADS, 4), stride=(4 * QUADS, 4, 1)), Float32)


@cute.jit
def tile_row(mState, slot: Int32, head: Int32, row: Int32, lane: Int32):
    """Address of the first key that a thread owns of a state row; its quads lie 32 keys apart."""
    return mState.iterator + Int64(slot) * mState.stride[0] + ((head * DIM + row) * DIM + 4 * lane)


@cute.jit
def load_tile(mState, rS, slot: Int32, head: Int32, thread: Int32):
    """A slot's state of one head as float32."""
    for r in cutlass.range_constexpr(ROWS):
        row = tile_row(mState, slot, head, thread // LANES + ROW_STEP * r, thread % LANES)
        for c in cutlass.range_constexpr(QUADS):
            rS[r, c, None].store(load_vector(row + KEY_STEP * c, 4).to(Float32))


@cute.jit
def store_tile(mState, rS, slot: Int32, head: Int32, thread: Int32):
    """The state into a slot, nothing if the slot is not positive; to BF16 by rounding to nearest even."""
    if slot > 0:
        for r in cutlass.range_constexpr(ROWS):
            row = tile_row(mState, slot, head, thread // LANES + ROW_STEP * r, thread % LANES)
            for c in cutlass.range_constexpr(QUADS):
                store_vector(row + KEY_STEP * c, rS[r, c, None].load().to(mState.element_type))


@cute.jit
def quad(sOperand, t: Int32, lane: Int32, c: cutlass.Constexpr):
    """A lane's c-th four keys of token t's operand row in shared memory, as two pairs."""
    four = cute.local_tile(sOperand[t, None], (4,), (lane + LANES * c,)).load()
    return (four[0], four[1]), (four[2], four[3])


def scale_quad(rS, r: int, c: int, factor) -> None:
    """S = S * factor of one quad, rounded; `factor` is a pair of pairs."""
    for e in (0, 2):
        rS[r, c, e], rS[r, c, e + 1] = mul2((rS[r, c, e], rS[r, c, e + 1]), factor[e // 2])


def update_quad(rS, r: int, c: int, key, u) -> None:
    """S = key * u + S of one quad, rounded once; `key` is a pair of pairs."""
    for e in (0, 2):
        rS[r, c, e], rS[r, c, e + 1] = fma2(key[e // 2], (u, u), (rS[r, c, e], rS[r, c, e + 1]))


def accumulate(rS, r: int, c: int, operand, total):
    """One quad's products of row r added to the row's four accumulators, two pairs; None: the products start them.

    Accumulator e is a chain over c: the first product rounded, the others by fma.
    """
    pairs = [(rS[r, c, e], rS[r, c, e + 1]) for e in (0, 2)]
    if total is None:
        return [mul2(pair, one) for pair, one in zip(pairs, operand, strict=True)]
    return [fma2(pair, one, before) for pair, one, before in zip(pairs, operand, total, strict=True)]


def joined(total) -> Float32:
    """(e0 + e2) + (e1 + e3) of a row's four accumulators."""
    low, high = add2(total[0], total[1])
    return add_rn(low, high)
