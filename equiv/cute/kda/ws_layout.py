"""Shared memory of a `KdaWS` CTA: what lies where, and typed pointers to it.

    barriers | state pages | 4 operand blocks | 4 staging buffers | raw gates | partial sums | outputs | F_B of 2 heads

Prep group w owns operand blocks and staging buffers 2 w and 2 w + 1 and uses them by turns, and one copy of its head's
F_B where there is room. The state pages are the scan group's; the outputs are a token's recurrence results between the
scan and the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute

from equiv.geometry.kda import DIM

if TYPE_CHECKING:
    from cutlass import Numeric

    Arrays = dict[str, tuple[type[Numeric], int]]

LIMIT: int = 232448
"""Bytes of shared memory a CTA may have on sm_90a and sm_100a."""
PAGE: int = DIM * DIM
"""Elements of a state page."""
BLOCKS: int = 4
GROUPS: int = 2
PARTS: int = 3
"""q, k, v."""

Q, K, DECAY, V, GATE = (DIM * i for i in range(5))
"""Where a token's vectors lie in its `TOKEN` words of an operand block; GATE is the output gate's sigmoid."""
TOKEN: int = 5 * DIM
META: int = 32
"""Words behind the tokens of a block."""
ACTIVE, NEXT, SLOTS, BETA = 0, 1, 8, 16
"""Words of META: is the request present; slot of the state that the item's page gets next (0: none); 8 state slots
written; 8 betas."""

GATE_PITCH: int = DIM + 16
"""BF16 elements from row to row of F_B in shared memory: 8 bytes of 4 columns by 4 rows touch every bank once."""
MOST_PAGES: int = 2
"""State pages, where there is room: one is filled while the other is read."""

STATE_FULL, STATE_EMPTY = 0, MOST_PAGES
OPS_FULL, DONE = 2 * MOST_PAGES, 2 * MOST_PAGES + BLOCKS
BARRIERS: int = 2 * MOST_PAGES + 2 * BLOCKS


@dataclass(frozen=True)
class Layout:
    """Sizes for one instance of the kernel.

    Attributes:
        tokens: T.
        columns: columns of the convolution window that are staged: all of a dim-first window, 3 of a dim-last one.
    """

    tokens: int
    columns: int

    @property
    def block(self) -> int:
        """Float32 words of an operand block."""
        return self.tokens * TOKEN + META

    @property
    def window(self) -> int:
        """BF16 elements of a staged window."""
        return PARTS * DIM * self.columns

    @property
    def stage(self) -> int:
        """BF16 elements of a staging buffer: the window, then for each token q, k, v, output gate and F_A."""
        return self.window + TOKEN * self.tokens

    @property
    def sums(self) -> int:
        """Number of sums that `spread_sums` makes of the q and k of all tokens: a power of two."""
        return 1 << (2 * self.tokens - 1).bit_length()

    @property
    def norms(self) -> int:
        """The same of the outputs of half the tokens."""
        return 1 << ((self.tokens + 1) // 2 - 1).bit_length()

    @property
    def resident(self) -> bool:
        """Whether each prep group has room for the F_B of its head."""
        return size_of(self._arrays(1, resident=True)) <= LIMIT

    @property
    def pages(self) -> int:
        """State pages: as many as fit."""
        return max(n for n in range(1, MOST_PAGES + 1) if n == 1 or size_of(self._arrays(n, self.resident)) <= LIMIT)

    def arrays(self) -> Arrays:
        """Name -> element type and number of elements, in order; each begins at a multiple of 128 bytes."""
        return self._arrays(self.pages, self.resident)

    def _arrays(self, pages: int, resident: bool) -> Arrays:
        return {
            "barriers": (Int64, BARRIERS),
            "page": (Float32, pages * PAGE),
            "operands": (Float32, BLOCKS * self.block),
            "stages": (BFloat16, BLOCKS * self.stage),
            "raw": (BFloat16, GROUPS * self.tokens * DIM),
            "sums": (Float32, GROUPS * self.sums * 4),
            "norms": (Float32, 2 * self.norms * 4),
            "outputs": (BFloat16, self.tokens * DIM),
            "gates": (BFloat16, GROUPS * DIM * GATE_PITCH if resident else 0),
        }

    @property
    def bytes(self) -> int:
        """All shared memory of a CTA."""
        return size_of(self.arrays())


def size_of(arrays: Arrays) -> int:
    """Bytes of arrays that each begin at a multiple of 128 bytes."""
    return sum((count * one.width // 8 + 127) // 128 * 128 for one, count in arrays.values())


class Shared:
    """Pointers to the arrays of `Layout.arrays`; made while tracing."""

    def __init__(self, layout: Layout):
        memory = cutlass.memory.SmemAllocator()
        self.layout = layout
        for name, (dtype, count) in layout.arrays().items():
            if count:
                setattr(self, name, memory.allocate_array(dtype, count, byte_alignment=128))


# Functions, not methods: the DSL takes a method call inside a loop for a change of the object.
def block_at(shared: Shared, block: Int32) -> cute.Pointer:
    """An operand block."""
    return shared.operands + block * shared.layout.block


def stage_at(shared: Shared, stage: Int32) -> cute.Pointer:
    """A staging buffer."""
    return shared.stages + stage * shared.layout.stage


def page_at(shared: Shared, page: Int32 | int) -> cute.Pointer:
    """A state page."""
    return shared.page + page * PAGE


def gates_at(shared: Shared, group: Int32) -> cute.Pointer:
    """A prep group's F_B, rows `GATE_PITCH` apart."""
    return shared.gates + group * (DIM * GATE_PITCH)


def barrier_at(shared: Shared, which: int, index: Int32 | int) -> cute.Pointer:
    """An mbarrier of a page, STATE_FULL or STATE_EMPTY, or of a block, OPS_FULL or DONE."""
    return shared.barriers + (which + index)


def meta(block: cute.Pointer, layout: Layout) -> cute.Pointer:
    """The META words of an operand block as integers."""
    return cute.recast_ptr(block + layout.tokens * TOKEN, dtype=Int32)


def block_of(j: Int32) -> Int32:
    """Operand block and staging buffer of a CTA's j-th item: two to each prep group, by turns."""
    return 2 * (j & 1) + (j >> 1 & 1)


@cute.jit
def init_barriers(shared, scan: int, prep: int):
    """One thread sets the arrivals that each barrier's phases take, of groups of `scan` and of `prep` threads."""
    for page in cutlass.range_constexpr(shared.layout.pages):
        cute.arch.mbarrier_init(barrier_at(shared, STATE_FULL, page), 1)
        cute.arch.mbarrier_init(barrier_at(shared, STATE_EMPTY, page), scan)
    for block in cutlass.range_constexpr(BLOCKS):
        cute.arch.mbarrier_init(barrier_at(shared, OPS_FULL, block), prep)
        cute.arch.mbarrier_init(barrier_at(shared, DONE, block), scan)
    cute.arch.mbarrier_init_fence()
