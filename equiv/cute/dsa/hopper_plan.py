"""How a batch is cut for `IndexFrontHopper`, and what one of its CTAs keeps in shared memory; host code.

A CTA takes at most half of a multiprocessor's shared memory: while one is at work, that of the next launch waits beside
it with its weights in place. Up to 32 rows are one tile, of which four CTAs share the 1536 products. Clusters of four
leave multiprocessors over: an H200 has room for 30 of them side by side, and where a launch of 32 puts two CTAs on one,
others idle. That costs more the more rows there are. So more than 32 rows are cut into tiles whose products two CTAs
share, and 64 of their 66 places are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from equiv.cute.dsa.tiling import BARRIER_BYTES, MAX_BATCH, WARPS, FrontTiling, Slices
from equiv.errors import UsageError
from equiv.geometry.dsa import DIM

MAX_ROWS: Final = 32
"""Rows of a tile at most; all of them stay in shared memory beside the ring of weights."""
SMALLER: Final = ((16, 16), (32, 32), (48, 24))
"""(last batch, rows of its tiles) where that is not `MAX_ROWS`, or only one tile of them."""
SPLITS: Final = (4, 2)
"""Slices of the products, one for each CTA of a cluster: of one tile, of more."""
SHARED_BYTES: Final = 113 * 1024
"""What one of two CTAs may have of a multiprocessor's 228 KB, of which the system keeps 1 KB for each."""
STAGE_BARRIERS: Final = 2
OTHER_BARRIERS: Final = 3


def hopper_tiling(batch: int) -> FrontTiling:
    """The tiling of a batch of 1 to 1024 rows.

    Raises:
        UsageError: another batch.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise UsageError(f"batch must be 1 to {MAX_BATCH}; got batch={batch}")
    n = next((rows for last, rows in SMALLER if batch <= last), MAX_ROWS)
    tiles = -(-batch // n)
    return FrontTiling(n, tiles, SPLITS[tiles > 1], 1)


@dataclass(frozen=True, slots=True)
class HopperPlan(Slices):
    """What a CTA does and keeps in shared memory: 16, 24 or 32 rows, two or four slices; all rows beside the ring."""

    @property
    def late(self) -> bool:
        """Whether the next launch may begin only when the rows are there: its weights would come in their way."""
        return self.n > 16

    @property
    def together(self) -> int:
        """Blocks of rows stored before they are multiplied: all where four CTAs share the products, else four."""
        return self.blocks if self.split == max(SPLITS) else 4

    @property
    def mailbox_bytes(self) -> int:
        """Bytes of the mailbox, in which the partial sums of the owned columns arrive; it lies in the ring."""
        return self.split * DIM * self.owned * 4

    @property
    def mailbox_stage(self) -> int:
        """The mailbox begins with this stage: the first one that is no longer needed."""
        return self.blocks % self.stages

    @property
    def last_boxed(self) -> int:
        """The last block whose weights lie where the mailbox is."""
        return self.blocks - self.stages + -(-self.mailbox_bytes // self.weight_bytes) - 1

    @property
    def squares_bytes(self) -> int:
        """Bytes of the other slices' sums of squares, and later of each owned column's largest magnitudes."""
        return max((self.split - 1) * self.n, WARPS * self.owned) * 4

    @property
    def barriers(self) -> int:
        """Number of mbarriers."""
        return STAGE_BARRIERS * self.stages + OTHER_BARRIERS

    @property
    def stages(self) -> int:
        """Stages of the ring of weights: one for each block, or as many as fit."""
        rest = SHARED_BYTES - self.blocks * self.row_bytes - self.squares_bytes - OTHER_BARRIERS * BARRIER_BYTES
        return min(self.blocks, rest // (self.weight_bytes + STAGE_BARRIERS * BARRIER_BYTES))

    @property
    def shared_bytes(self) -> int:
        """All of a CTA's shared memory."""
        tiles = self.stages * self.weight_bytes + self.blocks * self.row_bytes
        return tiles + self.squares_bytes + self.barriers * BARRIER_BYTES
