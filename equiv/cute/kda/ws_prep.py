"""What a prep group of `KdaWS` computes for an item: thread = channel, warp = 32 of the head's 128 channels.

Convolution and SiLU, the window after the step, norms of q and k, the F_B gate projection, decays, beta and the output
gate's sigmoid. Everything the scan group needs ends up in an operand block.
"""

from __future__ import annotations

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, Uint32, cute

from equiv.cute.kda.formulas import (
    add_rn,
    decay,
    fma_rn,
    inverse_norm,
    mma_m16n8k16,
    mul_rn,
    sigmoid,
    silu,
    triton_exp,
)
from equiv.cute.kda.ws_copies import fence_async_shared, stage_gate, store_bulk, view, window_part
from equiv.cute.kda.ws_layout import BETA, DECAY, GATE, GATE_PITCH, PARTS, SLOTS, TOKEN, K, Q, V, meta
from equiv.cute.kda.ws_sums import block_total, spread_sums, store_partial
from equiv.geometry.kda import DIM, TAPS

BIAS, DT_BIAS, A_LOG = PARTS * TAPS, PARTS * TAPS + PARTS, PARTS * TAPS + PARTS + 1
CONSTANTS = A_LOG + 1
"""Places of a channel's constants: taps, tap by tap for each part; biases of the parts; dt_bias; A_log."""
CHUNKS = DIM // 16
"""Matrix instructions over the 128 columns of F_A."""


class Place:
    """Where a prep thread works on an item: its buffers and indices.

    Attributes:
        stage, block: staging buffer and operand block. gates: the group's F_B, if it has it in shared memory.
        raw, sums: the group's scratch for the raw gates and for partial sums.
        constants: registers of `load_constants`. beta: the raw beta of token `thread`, in threads t < T.
        request: the slots. following: slot of the state that the item's page gets next.
        head, number, row: of the item; number is the request, row its first token's.
        thread, warp, lane: in the group.
        barrier: the group's named barrier.
    """

    def __init__(self, **given):
        self.__dict__.update(given)


def sync(place: Place):
    """Waits for the group's 128 threads."""
    cute.arch.barrier(barrier_id=place.barrier, number_of_threads=DIM)


@cute.jit
def prepare(shape, operands, place):
    """All of an item's operands; the staging buffer may be filled again after its last barrier."""
    thread, channel = place.thread, place.head * DIM + place.thread
    # First, while few registers are in use: it takes the most.
    project_gate(shape, place, operands.f_b)
    squares = convolve_parts(shape, operands, place, channel)
    if cutlass.const_expr(shape.dim_first):
        fence_async_shared()
    squares += [Float32(0.0)] * (shape.layout.sums - len(squares))
    store_partial(place.sums, shape.layout.sums, spread_sums(squares, place.lane), place.warp, place.lane)
    write_gates(shape, operands, place, channel)
    sync(place)
    if cutlass.const_expr(shape.dim_first) and thread == 0:
        store_bulk(shape, place.stage, operands.conv_state, place.request.first, place.head)
    for token in cutlass.range(shape.tokens, unroll=1):
        q, k = place.block + token * TOKEN + Q + thread, place.block + token * TOKEN + K + thread
        q_factor = inverse_norm(block_total(place.sums, token))
        k_factor = inverse_norm(block_total(place.sums, shape.tokens + token))
        q.store(mul_rn(mul_rn(q.load(), q_factor), operands.scale))
        k.store(mul_rn(k.load(), k_factor))


def load_taps(shape, operands, rC, part: int, channel: Int32):
    """A channel's taps and bias of q, k or v."""
    for tap in range(TAPS):
        rC[part * TAPS + tap] = (operands.weight.iterator + (part * TAPS + tap) * shape.dim + channel).load()
    if shape.has_bias:
        rC[BIAS + part] = Float32(operands.bias[part * shape.dim + channel])


def load_rates(operands, rC, channel: Int32, head: Int32):
    """A channel's dt_bias and its head's A_log."""
    rC[DT_BIAS], rC[A_LOG] = Float32(operands.dt_bias[channel]), Float32(operands.a_log[head])


def load_constants(shape, operands, rC, channel: Int32, head: Int32):
    """All that depends on the channel alone."""
    for part in range(PARTS):
        load_taps(shape, operands, rC, part, channel)
    load_rates(operands, rC, channel, head)


def take_head(shape, operands, gates: cute.Pointer, rC, head: Int32, thread: Int32):
    """Asks for a head's F_B and loads the constants of its channels."""
    stage_gate(gates, operands.f_b, head, thread)
    load_constants(shape, operands, rC, head * DIM + thread, head)


def convolve_parts(shape, operands, place: Place, channel: Int32) -> list[Float32]:
    """Convolution, window and operand block of q, k and v; the squares of the q of all tokens, then of the k."""
    squares = []
    for part in range(PARTS):
        if not shape.layout.resident:
            load_taps(shape, operands, place.constants, part, channel)
        inputs = staged_inputs(shape, place, part)
        write_window(shape, place, operands.conv_state, part, inputs)
        for token, value in enumerate(convolve(shape, place.constants, part, inputs)):
            keep_convolved(shape, operands, place, part, token, value)
            if part != 2:
                squares.append(mul_rn(Float32(value), Float32(value)))
    return squares


def record_at(shape, operands, place: Place, token: int) -> cute.Pointer:
    """The thread's key in the record of a token; its raw gate is DIM behind."""
    record = place.number * shape.heads + place.head
    return operands.key_gate.iterator + (Int64(record) * shape.tokens + token) * (2 * DIM) + place.thread


def keep_convolved(shape, operands, place: Place, part: int, token: int, value: BFloat16):
    """q, k or v of a token into the operand block, q and k to be normalised there; k into its record."""
    (place.block + token * TOKEN + (Q, K, V)[part] + place.thread).store(Float32(value))
    if shape.record and part == 1:
        record_at(shape, operands, place, token).store(value)


@cute.jit
def write_gates(shape, operands, place: Place, channel: Int32):
    """Decays and the output gate's sigmoid of all tokens; the raw gate into its record."""
    if cutlass.const_expr(not shape.layout.resident):
        load_rates(operands, place.constants, channel, place.head)
    bias, rate = place.constants[DT_BIAS], triton_exp(place.constants[A_LOG])
    output_gates = place.stage + shape.layout.window + PARTS * DIM + place.thread
    for token in cutlass.range(shape.tokens, unroll=1):
        vectors = place.block + token * TOKEN + place.thread
        (vectors + GATE).store(sigmoid(Float32((output_gates + token * TOKEN).load())))
        gate = (place.raw + token * DIM + place.thread).load()
        (vectors + DECAY).store(decay(Float32(gate), bias, rate, operands.lower_bound))
        if cutlass.const_expr(shape.record):
            (record_at(shape, operands, place, token) + DIM).store(gate)


def staged_inputs(shape, place: Place, part: int) -> list[BFloat16]:
    """c0, c1, c2, x_0, ... of the thread's channel from its staging buffer."""
    if shape.dim_first:
        at = place.stage + (part * DIM + place.thread) * shape.window + place.request.offset
        window = [(at + i).load() for i in range(TAPS - 1)]
    else:
        window = [(place.stage + (part * 3 + i) * DIM + place.thread).load() for i in range(TAPS - 1)]
    rows = place.stage + shape.layout.window + part * DIM + place.thread
    return window + [(rows + token * TOKEN).load() for token in range(shape.tokens)]


def convolve(shape, rC, part: int, inputs: list[BFloat16]) -> list[BFloat16]:
    """Causal convolution and SiLU of each token: an FMA chain over the taps from the bias, one rounding to BF16."""
    bias = rC[BIAS + part] if shape.has_bias else Float32(0.0)
    wide = [Float32(one) for one in inputs]
    results = []
    for token in range(shape.tokens):
        total = bias
        for tap in range(TAPS):
            total = fma_rn(wide[token + tap], rC[part * TAPS + tap], total)
        results.append(BFloat16(silu(total)))
    return results


def write_window(shape, place: Place, mConv, part: int, inputs: list[BFloat16]):
    """[c1, c2, x_0, ..] to columns 0, 1, 2, ..: of the staged window if it is dim-first, else of the pool itself."""
    if shape.dim_first:
        first, step = place.stage + (part * DIM + place.thread) * shape.window, 1
    else:
        first = window_part(shape, mConv, place.request.first, place.head, part) + place.thread
        step = PARTS * shape.dim
    for column, value in enumerate(inputs[1:]):
        (first + column * step).store(value)


@cute.jit
def project_gate(shape, place, mFb):
    """raw[token, feature] = BF16(F_A . F_B) of the warp's 32 features: two tiles of 16 by `mma.sync`.

    A is F_B, B is F_A with a token a column; column n is token n mod T, columns from T on are not used. A lane reads
    columns 16 c + 4 quarter .. + 3 of both at once and takes them for k = 2 quarter + {0, 1, 8, 9} of chunk c.
    Gate mode 1 sums chunks 2 w, 2 w + 1 in a chain of their own, then ((w0 + w1) + w2) + w3; mode 0 is one chain.
    """
    quarter, group = place.lane % 4, place.lane // 4
    tokens = place.stage + shape.layout.window + 4 * DIM + (group % shape.tokens) * TOKEN + quarter * 4
    b = [words(tokens + chunk * 16) for chunk in range(CHUNKS)]
    # One by one where many tokens leave few registers.
    for tile in cutlass.range(2, unroll=2 if shape.tokens == 1 else 1):
        feature = place.warp * 32 + tile * 16 + group
        total = gate_tile(shape, *gate_rows(shape, place, mFb, feature, quarter * 4), b)
        for side in cutlass.range_constexpr(2):
            token = quarter * 2 + side
            if token < shape.tokens:
                (place.raw + token * DIM + feature).store(BFloat16(total[side]))
                (place.raw + token * DIM + feature + 8).store(BFloat16(total[2 + side]))
    cute.arch.sync_warp()


def gate_rows(shape, place: Place, mFb, feature: Int32, column: Int32) -> tuple[cute.Pointer, int]:
    """An element of the head's F_B and the elements from row to row: in shared memory if the group has it there."""
    if shape.layout.resident:
        return place.gates + feature * GATE_PITCH + column, GATE_PITCH
    return mFb.iterator + (place.head * DIM + feature) * DIM + column, DIM


def gate_tile(shape, weights: cute.Pointer, pitch: int, b: list[list[Uint32]]) -> list[Float32]:
    """The accumulator of one tile, whose lane's first row begins at `weights`."""
    zeros = [Float32(0.0)] * 4
    chains, total = [], zeros
    for chunk in range(CHUNKS):
        low, high = words(weights + chunk * 16), words(weights + 8 * pitch + chunk * 16)
        total = mma_m16n8k16((low[0], high[0], low[1], high[1]), b[chunk], total)
        if shape.gate_mode == 1 and chunk % 2 == 1:
            chains.append(total)
            total = zeros
    for one in chains:
        total = one if one is chains[0] else [add_rn(x, y) for x, y in zip(total, one, strict=True)]
    return total


def words(pointer: cute.Pointer) -> list[Uint32]:
    """Four neighbouring BF16 elements as two words."""
    both = view(cute.recast_ptr(pointer, dtype=Uint32), 2, 8).load()
    return [both[0], both[1]]


@cute.jit
def write_meta(shape, operands, place):
    """Threads t < T write the state slot and the beta of token t."""
    words = meta(place.block, shape.layout)
    if place.thread < shape.tokens:
        slot = place.request.first
        if cutlass.const_expr(shape.tokens > 1 and not shape.record):
            slot = Int32(operands.slots[place.number, place.thread])
        beta = sigmoid(Float32(place.beta))
        (words + SLOTS + place.thread).store(slot)
        (words + BETA + place.thread).store(beta.bitcast(Int32))
