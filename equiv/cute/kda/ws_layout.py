"""Shared memory of a `KdaWS` CTA: what lies where, and typed pointers to it.

    barriers | state page | 4 operand blocks | 4 staging buffers | F_B scratch | partial sums | outputs

Prep group w owns operand blocks and staging buffers 2 w and 2 w + 1 and uses them by turns. The state page is the scan
group's; the outputs are a token's recurrence results between the scan and the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute

from equiv.geometry.kda import DIM

if TYPE_CHECKING:
    from cutlass import Numeric

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
"""Words of META: is the request present; state slot that the CTA's next item reads (0: none); 8 state slots written;
8 betas."""

STATE_FULL, STATE_EMPTY, OPS_FULL, DONE = 0, 1, 2, 2 + BLOCKS
BARRIERS: int = 2 + 2 * BLOCKS


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

    def arrays(self) -> dict[str, tuple[type[Numeric], int]]:
        """Name -> element type and number of elements, in order; each begins at a multiple of 128 bytes."""
        return {
            "barriers": (Int64, BARRIERS),
            "page": (Float32, PAGE),
            "operands": (Float32, BLOCKS * self.block),
            "stages": (BFloat16, BLOCKS * self.stage),
            "raw": (BFloat16, GROUPS * self.tokens * DIM),
            "sums": (Float32, GROUPS * self.sums * 4),
            "norms": (Float32, 2 * self.norms * 4),
            "outputs": (BFloat16, self.tokens * DIM),
        }

    @property
    def bytes(self) -> int:
        """All shared memory of a CTA."""
        return sum((count * one.width // 8 + 127) // 128 * 128 for one, count in self.arrays().values())


class Shared:
    """Pointers to the arrays of `Layout.arrays`; made while tracing."""

    def __init__(self, layout: Layout):
        memory = cutlass.memory.SmemAllocator()
        self.layout = layout
        for name, (dtype, count) in layout.arrays().items():
            setattr(self, name, memory.allocate_array(dtype, count, byte_alignment=128))


# Functions, not methods: the DSL takes a method call inside a loop for a change of the object.
def block_at(shared: Shared, block: Int32) -> cute.Pointer:
    """An operand block."""
    return shared.operands + block * shared.layout.block


def stage_at(shared: Shared, stage: Int32) -> cute.Pointer:
    """A staging buffer."""
    return shared.stages + stage * shared.layout.stage


def barrier_at(shared: Shared, which: int, block: Int32 | int = 0) -> cute.Pointer:
    """An mbarrier: STATE_FULL, STATE_EMPTY, or that of a block, OPS_FULL or DONE."""
    return shared.barriers + (which + block)


def meta(block: cute.Pointer, layout: Layout) -> cute.Pointer:
    """The META words of an operand block as integers."""
    return cute.recast_ptr(block + layout.tokens * TOKEN, dtype=Int32)
