"""The rows of the front's Hopper form: every CTA normalises its slice of all rows of its tile, where it is multiplied.

Half a warp takes a row's slice, a lane some chunks of eight columns. The CTAs of a cluster tell each other their sums
of squares and add them in slice order, so that each has the same factor. Two BF16 columns share a register from load to
store.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from equiv.cute.access import load_vector
from equiv.cute.dsa.hopper_cta import WORKERS
from equiv.cute.dsa.tiling import BLOCK_COLUMNS
from equiv.cute.fixed import Fixed
from equiv.cute.row_norm import CHAINS, CHUNK, factor_of, row_of
from equiv.cute.shared import push, shared_vector
from equiv.cute.warp import group_sum

LANES = 16
"""Lanes that share a row."""
CHUNKS = BLOCK_COLUMNS // CHUNK
"""Chunks of eight columns in a row of a block."""
WORDS = CHUNK // 2


class Rows(Fixed):
    """The slices of a half warp's rows in its registers, to be stored by and by.

    Attributes:
        places: rows of the tile, or past it.
        words: of each row this lane's words; of the batch's last row where the tile has none.
        gamma: the norm's words of the same columns, and factors: one a row; None where rows come normalised.
    """

    def __init__(self, cta, mRows: cute.Tensor, thread: Int32):
        self.cta = cta
        self.thread = thread
        each = WORKERS // LANES
        self.places = [thread // LANES + m * each for m in range(-(-cta.plan.n // each))]
        rows = [row_of(mRows, cta.first_row + cutlass.min(place, cta.valid - 1)) for place in self.places]
        self.words = [load_slice(cta, row, thread) for row in rows]
        self.gamma: list[list[Uint32]] | None = None
        self.factors: list[Float32] = []

    @cute.jit
    def store(self, first: cutlass.Constexpr[int], count: cutlass.Constexpr[int]):
        """Some chunks of all rows, normalised if that is to be done, to where they are multiplied."""
        for m in cutlass.range_constexpr(len(self.places)):
            words = self.words[m][first : first + count]
            if cutlass.const_expr(self.gamma is not None):
                words = [
                    [scaled(words[i][k], self.gamma[first + i][k], self.factors[m]) for k in range(WORDS)]
                    for i in range(count)
                ]
            if self.places[m] < self.cta.valid:
                for i in cutlass.range_constexpr(count):
                    store_chunk(self.cta, words[i], self.places[m], first + i, self.thread)
        cute.arch.fence_view_async_shared()


@cute.jit
def make_factors(cta, places: list[Int32], words: list[list[list[Uint32]]], eps: Float32, thread: Int32):
    """The norm's factor of each row; the cluster meets on the way, as sums of squares go to its other CTAs."""
    lane = thread % LANES
    sums = [square_sum(one) for one in words]
    cute.arch.cluster_wait()
    split = cta.plan.split
    # Lane split * m + q tells CTA q about the m-th row.
    for m in cutlass.range_constexpr(len(sums)):
        to = lane % split
        if lane // split == m and to != cta.part and places[m] < cta.valid:
            push(cta.squares + (slot_of(cta.part, to) * cta.plan.n + places[m]), sums[m], cta.squares_full, to)
    cute.arch.mbarrier_wait(cta.squares_full, 0)
    # Every so many lanes make the m-th row's factor for all.
    own, row = sums[0], places[0]
    for m in cutlass.range_constexpr(1, len(sums)):
        if lane % len(sums) == m:
            own, row = sums[m], places[m]
    row = cutlass.min(row, cta.valid - 1)
    total = slice_sum(cta, own, row, 0)
    for part in cutlass.range_constexpr(1, split):
        total = total + slice_sum(cta, own, row, part)
    factor = factor_of(total, eps)
    return [cute.arch.shuffle_sync(factor, thread % 32 // LANES * LANES + m) for m in range(len(sums))]


@cute.jit
def slot_of(sender: Int32, receiver: Int32) -> Int32:
    """Where a CTA keeps the sums of another: nobody sends to itself."""
    return sender - Int32(sender > receiver)


@cute.jit
def slice_sum(cta, own: Float32, row: Int32, part: cutlass.Constexpr[int]) -> Float32:
    """A slice's sum of squares of a row, of which this CTA's own is `own`."""
    found = own
    if cta.part != part:
        found = cta.squares[slot_of(part, cta.part) * cta.plan.n + row]
    return found


def load_slice(cta, row: cute.Pointer, thread: Int32) -> list[list[Uint32]]:
    """This lane's chunks of the slice of a BF16 row: columns 128 i + 8 (lane mod 16) .. + 7, the lower of two first."""
    words = cute.make_ptr(Uint32, row.toint(), cute.AddressSpace.gmem, assumed_align=16)
    first = cta.part * (cta.plan.blocks * BLOCK_COLUMNS // 2) + thread % LANES * WORDS
    pieces = cta.plan.blocks * CHUNKS // LANES
    chunks = [load_vector(words + (first + i * LANES * WORDS), WORDS) for i in range(pieces)]
    return [[one[k] for k in range(WORDS)] for one in chunks]


@cute.jit
def store_chunk(cta, words: list[Uint32], row: Int32, piece: cutlass.Constexpr[int], thread: Int32):
    """A chunk of a lane to its place: rows of 128 bytes, their chunks permuted by the row's number modulo 8."""
    lane = thread % LANES
    block = piece * (LANES // CHUNKS) + lane // CHUNKS
    inside = row * (BLOCK_COLUMNS * 2) + (lane % CHUNKS ^ row % 8) * (CHUNK * 2)
    rWords = cute.make_rmem_tensor(WORDS, Uint32)
    for k in cutlass.range_constexpr(WORDS):
        rWords[k] = words[k]
    shared_vector(Uint32, cta.rows.toint() + block * cta.plan.row_bytes + inside, WORDS).store(rWords.load())


def halves(word: Uint32) -> tuple[Float32, Float32]:
    """Two BF16 columns as float32, the lower one first."""
    return (word << 16).bitcast(Float32), (word & Uint32(0xFFFF0000)).bitcast(Float32)


def halves_again(word: Uint32) -> tuple[Float32, Float32]:
    """The same by another instruction: a compiler would keep what `halves` gave, in twice the registers."""
    low, high = (
        cute.arch.inline_ptx(f"prmt.b32 {{$w0}}, {{$r0}}, 0, {how};", write_only_types=[Uint32], read_only_args=[word])
        for how in ("0x1044", "0x3244")
    )
    return low.bitcast(Float32), high.bitcast(Float32)


@cute.jit
def square_sum(words: list[list[Uint32]]) -> Float32:
    """Sum of squares of a row's slice, in each of its lanes: column e of a lane is added to chain e mod 4."""
    rC = cute.make_rmem_tensor(CHAINS, Float32)
    rC.fill(0.0)
    for i in cutlass.range_constexpr(len(words)):
        for k in cutlass.range_constexpr(WORDS):
            for half, x in enumerate(halves(words[i][k])):
                chain = (2 * k + half) % CHAINS
                rC[chain] = cute.math.fma(x, x, rC[chain])
    return group_sum((rC[0] + rC[1]) + (rC[2] + rC[3]), LANES)


def scaled(word: Uint32, gamma: Uint32, factor: Float32) -> Uint32:
    """Two columns normalised: (x * factor) * gamma, both products rounded to float32, the result to BF16."""
    low, high = (x * factor * g for x, g in zip(halves_again(word), halves(gamma), strict=True))
    return cute.arch.inline_ptx(
        "cvt.rn.bf16x2.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[high, low]
    )
