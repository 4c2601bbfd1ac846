"""How a batch is cut for `IndexFrontMma`, and what a CTA of each tiling needs; `hopper_plan` has the Hopper form's.

Host code. Letters: a tile is `n` rows (requests) of one head, `split` CTAs of a cluster share its 1536 products,
`group` CTAs of a cluster take neighbouring heads of the same rows (spec dsa 4, kernels 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from equiv.errors import UsageError
from equiv.geometry.dsa import DIM, HEADS
from equiv.geometry.front import RANK

MAX_BATCH: Final = 1024
STEP: Final = 16
"""Rows of a tile come in multiples of it, as the tensor core's N does at M = 128."""
BLOCK_COLUMNS: Final = 64
"""Columns of one pipeline stage: 128 bytes of BF16, the width of the swizzle."""
SHARED_BYTES: Final = 227 * 1024
"""What one CTA may have of shared memory."""
ALIGN: Final = 1024
"""The swizzle's period; every tile of a stage is a multiple of it."""
BARRIER_BYTES: Final = 8
STAGE_BARRIERS: Final = 4
OTHER_BARRIERS: Final = 3
SLOT_BYTES: Final = 4
"""Where the tensor memory's address is kept."""
WARPS: Final = 4
"""Warps that normalise rows and write results."""
MIN_TENSOR_COLUMNS: Final = 32
ALONE: Final = 32
"""Up to this many rows every CTA computes all factors of the norm itself."""


class FrontTiling(NamedTuple):
    """One way to cut a batch.

    Attributes:
        n: rows of a tile, a multiple of 8 up to 256.
        tiles: row tiles; the last has at least one row of the batch.
        split: CTAs among which the 1536 products of a value are shared, in slices of neighbouring columns.
        group: CTAs of a cluster along the heads.
    """

    n: int
    tiles: int
    split: int
    group: int


def front_tiling(batch: int) -> FrontTiling:
    """The tiling of a batch of 1 to 1024 rows.

    Raises:
        UsageError: another batch.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise UsageError(f"batch must be 1 to {MAX_BATCH}; got batch={batch}")
    if batch <= 48:
        return FrontTiling(_padded(batch), 1, 4, 1)
    parts, split, group = (2, 2, 1) if batch <= 128 else (4, 1, 4)
    n = _padded(-(-batch // parts))
    return FrontTiling(n, -(-batch // n), split, group)


def _padded(rows: int) -> int:
    return -(-rows // STEP) * STEP


@dataclass(frozen=True, slots=True)
class Slices:
    """What one CTA of either form has to do with: its slice of the products of a tile's rows.

    Attributes:
        n: rows of the tile.
        split: slices of the products, one for each CTA of a head's cluster.
    """

    n: int
    split: int

    @property
    def blocks(self) -> int:
        """64-column blocks of a CTA's slice."""
        return RANK // BLOCK_COLUMNS // self.split

    @property
    def owned(self) -> int:
        """Columns (rows of the tile) whose results a CTA writes."""
        return self.n // self.split

    @property
    def weight_bytes(self) -> int:
        """Bytes of a stage's weights, 128 channels of 64 columns."""
        return DIM * BLOCK_COLUMNS * 2

    @property
    def row_bytes(self) -> int:
        """Bytes of a block of rows."""
        return self.n * BLOCK_COLUMNS * 2


@dataclass(frozen=True, slots=True)
class CtaPlan(Slices):
    """What one CTA does and keeps in shared memory; it depends on a tile's rows and the cluster, not on the batch.

    Attributes:
        group: CTAs of the cluster along heads.
    """

    group: int

    @classmethod
    def of(cls, tiling: FrontTiling) -> CtaPlan:
        """The plan of a tiling's CTAs.

        Raises:
            UsageError: the slices do not fit the projection, or two stages do not fit into shared memory.
        """
        plan = cls(tiling.n, tiling.split, tiling.group)
        if RANK % (BLOCK_COLUMNS * plan.split) or HEADS % plan.group or plan.n % (4 * plan.split):
            raise UsageError(f"n={plan.n}, split={plan.split}, group={plan.group} do not divide the projection")
        if plan.stages < 2:
            raise UsageError(f"n={plan.n}, split={plan.split}: no two stages of {plan.stage_bytes} bytes fit")
        return plan

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.split * self.group

    @property
    def shares_factors(self) -> bool:
        """Whether the CTAs of a cluster divide the norm's rows among them and tell each other the factors."""
        return self.n > ALONE and self.cluster > 1

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory: a power of two."""
        return max(MIN_TENSOR_COLUMNS, 1 << (self.n - 1).bit_length())

    @property
    def stage_bytes(self) -> int:
        """Bytes of a pipeline stage."""
        return self.weight_bytes + self.row_bytes

    @property
    def mailbox_pitch(self) -> int:
        """Float32 values from channel to channel of a mailbox; four more than used spread them over the banks."""
        return self.owned + 4

    @property
    def mailbox_bytes(self) -> int:
        """Bytes of the mailboxes, one for each slice, in which partial sums arrive; 0 without slices."""
        return self.split * DIM * self.mailbox_pitch * 4 if self.split > 1 else 0

    @property
    def gamma_bytes(self) -> int:
        """Bytes of the slice's norm weights."""
        return RANK // self.split * 2

    @property
    def small_bytes(self) -> int:
        """Bytes of factors, head weights and magnitudes, and the tensor memory's address."""
        return self.n * 4 + self.owned * 4 + WARPS * self.owned * 4 + SLOT_BYTES

    @property
    def barriers(self) -> int:
        """Number of mbarriers."""
        return STAGE_BARRIERS * self.stages + OTHER_BARRIERS

    @property
    def stages(self) -> int:
        """Stages of the ring: one for each block, or as many as fit."""
        rest = SHARED_BYTES - self.mailbox_bytes - self.gamma_bytes - self.small_bytes - OTHER_BARRIERS * BARRIER_BYTES
        return min(self.blocks, rest // (self.stage_bytes + STAGE_BARRIERS * BARRIER_BYTES))

    @property
    def shared_bytes(self) -> int:
        """All of a CTA's shared memory."""
        fixed = self.mailbox_bytes + self.gamma_bytes + self.small_bytes + self.barriers * BARRIER_BYTES
        return self.stages * self.stage_bytes + fixed
