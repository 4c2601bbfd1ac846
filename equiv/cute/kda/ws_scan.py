"""What the scan group of `KdaWS` does with an item: the recurrence over its tokens, then the gated norm.

256 threads hold a state [128, 128]. Thread (g, l), g = thread // 8, owns rows g + 32 r (r < 4) and keys 4 (l + 8 c) + e
(c, e < 4): element (r, c, e) is `rS[16 r + 4 c + e]`.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute

from equiv.cute.kda.formulas import fma2, inverse_rms, mul2, mul_rn, sub_rn
from equiv.cute.kda.ws_copies import view
from equiv.cute.kda.ws_layout import DECAY, GATE, PAGE, TOKEN, K, Q, V
from equiv.cute.kda.ws_sums import ROWS, block_total, from_row_owners, row_sum, spread_sums, store_partial
from equiv.geometry.kda import DIM

LANES = 8
"""Lanes that share a row."""
KEYS = 4
"""Vectors of four keys a thread owns in a row."""
HELD = ROWS * KEYS * 4
THREADS = 256
BARRIER = 3


class Spot:
    """Where a scan thread works on an item.

    Attributes:
        block: operand block. head, number, row: of the item; number is the request, row its first token's.
        thread, group, lane: in the scan group; g and l.
        slots, betas: words of META.
        weight: of the norm, of channel thread % 128.
        outputs, norms: shared memory for the outputs and the partial sums of their norms.
    """

    def __init__(self, **given):
        self.__dict__.update(given)


def page_vector(pointer: cute.Pointer, spot: Spot, row: int, key: int) -> cute.Tensor:
    """Four keys of one of the thread's rows in a state page."""
    return view(pointer + (spot.group + 32 * row) * DIM + 4 * spot.lane + 32 * key, 4)


def vector(pointer: cute.Pointer, spot: Spot, key: int) -> list[Float32]:
    """Four of the thread's keys of a vector over the keys."""
    four = view(pointer + 4 * spot.lane + 32 * key, 4).load()
    return [four[i] for i in range(4)]


def load_state(rS, page: cute.Pointer, spot: Spot):
    """The thread's part of the page into registers."""
    for row in range(ROWS):
        for key in range(KEYS):
            four = page_vector(page, spot, row, key).load()
            for i in range(4):
                rS[16 * row + 4 * key + i] = four[i]


@cute.jit
def store_state(rS, spot, mState, slot: Int32):
    """The thread's part of a state to its slot, if there is one."""
    if slot > 0:
        page = mState.iterator + Int64(slot) * mState.stride[0] + spot.head * PAGE
        for row in cutlass.range_constexpr(ROWS):
            for key in cutlass.range_constexpr(KEYS):
                four = cute.make_rmem_tensor(4, Float32)
                for i in cutlass.range_constexpr(4):
                    four[i] = rS[16 * row + 4 * key + i]
                page_vector(page, spot, row, key).store(four.load())


def held(rS, row: int, key: int) -> list[tuple[Float32, Float32]]:
    """Four keys of a row as two pairs."""
    at = 16 * row + 4 * key
    return [(rS[at], rS[at + 1]), (rS[at + 2], rS[at + 3])]


def hold(rS, row: int, key: int, pairs):
    """Puts two pairs back."""
    at = 16 * row + 4 * key
    rS[at], rS[at + 1] = pairs[0]
    rS[at + 2], rS[at + 3] = pairs[1]


def pairs_of(four: list[Float32]) -> list[tuple[Float32, Float32]]:
    """(e0, e1), (e2, e3)."""
    return [(four[0], four[1]), (four[2], four[3])]


def products(pairs, others, totals):
    """Adds two pairs of products to two accumulators of pairs, or begins them with the rounded products."""
    if totals is None:
        return [mul2(a, b) for a, b in zip(pairs, others, strict=True)]
    return [fma2(a, b, total) for a, b, total in zip(pairs, others, totals, strict=True)]


def decay_and_dot(rS, vectors: cute.Pointer, spot: Spot):
    """Multiplies the state by the token's decays and sums its rows with the keys: accumulators of four rows."""
    totals = [None] * ROWS
    for key in range(KEYS):
        decays, keys = (pairs_of(vector(vectors + which, spot, key)) for which in (DECAY, K))
        for row in range(ROWS):
            pairs = [mul2(a, b) for a, b in zip(held(rS, row, key), decays, strict=True)]
            hold(rS, row, key, pairs)
            totals[row] = products(pairs, keys, totals[row])
    return totals


def update_and_dot(rS, vectors: cute.Pointer, spot: Spot, corrections: list[Float32]):
    """Adds key times correction to the state and sums its rows with q: accumulators of four rows."""
    totals = [None] * ROWS
    for key in range(KEYS):
        keys, queries = (pairs_of(vector(vectors + which, spot, key)) for which in (K, Q))
        for row in range(ROWS):
            both = (corrections[row], corrections[row])
            pairs = [fma2(a, both, b) for a, b in zip(keys, held(rS, row, key), strict=True)]
            hold(rS, row, key, pairs)
            totals[row] = products(pairs, queries, totals[row])
    return totals


@cute.jit
def scan_token(shape, operands, rS, spot, token: Int32):
    """One token of the recurrence; its output goes to shared memory, its state to its slot."""
    vectors = spot.block + token * TOKEN
    row = spot.group + 32 * (spot.lane // 2)
    value, beta = (vectors + V + row).load(), (spot.betas + token).load()
    dot = row_sum(decay_and_dot(rS, vectors, spot), spot.lane)
    correction = mul_rn(sub_rn(value, dot), beta)
    output = row_sum(update_and_dot(rS, vectors, spot, from_row_owners(correction)), spot.lane)
    if spot.lane % 2 == 0:
        (spot.outputs + token * DIM + row).store(BFloat16(output))
        if cutlass.const_expr(shape.record):
            record = Int64(spot.number * shape.heads + spot.head) * shape.tokens + token
            (operands.corrections.iterator + record * DIM + row).store(correction)
    if cutlass.const_expr(not shape.record):
        store_state(rS, spot, operands.state, (spot.slots + token).load())


@cute.jit
def scan(shape, operands, rS, spot):
    """All tokens of an item."""
    if cutlass.const_expr(shape.tokens == 1):
        scan_token(shape, operands, rS, spot, Int32(0))
    else:
        for token in cutlass.range(shape.tokens, unroll=1):
            scan_token(shape, operands, rS, spot, token)


def sync():
    """Waits for the scan group's 256 threads."""
    cute.arch.barrier(barrier_id=BARRIER, number_of_threads=THREADS)


@cute.jit
def epilogue(shape, operands, spot):
    """Gated RMSNorm of the outputs: thread = channel, one half of the group for even tokens, the other for odd ones."""
    half, channel = spot.thread // DIM, spot.thread % DIM
    lane, warp = channel % 32, channel // 32
    sums = spot.norms + half * (shape.layout.norms * 4)
    own = (shape.tokens + 1) // 2
    rO = cute.make_rmem_tensor(own, Float32)
    rO.fill(0.0)
    sync()
    for index in cutlass.range_constexpr(own):
        if 2 * index + half < shape.tokens:
            rO[index] = Float32((spot.outputs + (2 * index + half) * DIM + channel).load())
    squares = [mul_rn(rO[index], rO[index]) for index in range(own)]
    squares += [Float32(0.0)] * (shape.layout.norms - own)
    store_partial(sums, shape.layout.norms, spread_sums(squares, lane), warp, lane)
    sync()
    for index in cutlass.range_constexpr(own):
        token = 2 * index + half
        if token < shape.tokens:
            rstd = inverse_rms(block_total(sums, index), operands.eps)
            gate = (spot.block + token * TOKEN + GATE + channel).load()
            normed = mul_rn(mul_rn(mul_rn(rO[index], rstd), spot.weight), gate)
            output_at(operands, spot, token, channel).store(BFloat16(normed))


@cute.jit
def zero_rows(shape, operands, spot):
    """+0 to all rows of an absent request."""
    half, channel = spot.thread // DIM, spot.thread % DIM
    for index in cutlass.range_constexpr((shape.tokens + 1) // 2):
        token = 2 * index + half
        if token < shape.tokens:
            output_at(operands, spot, token, channel).store(BFloat16(0.0))


def output_at(operands, spot: Spot, token: Int32, channel: Int32) -> cute.Pointer:
    """An element of the output."""
    return operands.output.iterator + Int64(spot.row + token) * operands.output.stride[0] + spot.head * DIM + channel
