"""The DSA indexer's front in one launch: arguments and operands that `IndexFrontMma` and `IndexFrontHopper` share.

Optional RMSNorm of the query latent, the projection to 32 heads of 128 channels, BF16 rounding, query quantisation,
folded head weights, and the index key's insertion. Formulas and layouts: spec dsa 1. Structure of `IndexFrontMma`: spec
kernels 1; that of `IndexFrontHopper`: its module. Their orders of K differ (`hopper_plan`), declared by architecture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from equiv.cute.dsa.index import DsaIndex
from equiv.errors import UsageError
from equiv.geometry.front import RANK

if TYPE_CHECKING:
    from collections.abc import Hashable

    from equiv.cute.dsa.tiling import FrontTiling


class IndexFront(ABC):
    """The front for batches of one size.

    A form is one architecture's kernel.

    Args:
        batch: rows, 1 to 1024.
        key: column of `projected` where the index key's 128 channels begin; a multiple of 4.
        weight: column of `projected` where the 32 head weights begin.
        mx: store the key's scale as its UE8M0 byte four times instead of as float32 (FP8 pages).
        normalized: `rows_in` holds rows that are normalised already; the norm is left out.
        row_pitch: elements from row to row of `rows_in`, a multiple of 8; 0 means 1536.
        fp4: quantise query and key to MXFP4 (blocks of 32 channels) instead of FP8.
        key_round, key_floor: as `DsaIndex`.

    Operands of the call, in order:
        projected: BF16 [B, width]. rows_in: BF16 [B, >= 1536], strides (row_pitch, 1), aligned to 16 bytes.
        w_qa: BF16 [1536], the norm's gamma. w_map: uint8 [128], tensor map of the BF16 weights [4096, 1536] with boxes
            of 128 rows and 64 columns (`equiv.cute.tensormap`).
        norm_w, norm_b, cache, slots, q_out, w_out: as `DsaIndex`.
        eps: float32 added to a row's mean square. key_eps: float32 added to the key's variance. stream: CUDA stream.

    Raises:
        UsageError: no tiling for `batch`, or another argument is refused; the message names it.

    Attributes:
        plan: what one CTA does; batches with equal plans share their code.
    """

    plan: Hashable

    def __init__(
        self,
        batch: int,
        key: int,
        weight: int,
        mx: bool = False,
        normalized: bool = False,
        row_pitch: int = 0,
        fp4: bool = False,
        key_round: str = "bf16",
        key_floor: float = 1e-4,
    ):
        if row_pitch and (row_pitch < RANK or row_pitch % 8):
            raise UsageError(f"row_pitch must be 0, or a multiple of 8 from {RANK}; got row_pitch={row_pitch}")
        _, self.plan = self.cut(batch)
        self.normalized = normalized
        self.row_pitch = row_pitch or RANK
        self.index = DsaIndex(key, weight, mx=mx, fp4=fp4, key_round=key_round, key_floor=key_floor)

    @property
    def variant(self) -> tuple[Hashable, ...]:
        """What distinguishes the generated code of two instances: not the batch, but how it is cut."""
        return (self.plan, self.normalized, self.row_pitch, *self.index.variant)

    @staticmethod
    @abstractmethod
    def cut(batch: int) -> tuple[FrontTiling, Any]:
        """Tiling and plan of a batch.

        Raises:
            UsageError: no tiling for `batch`.
        """
