"""Declarations of the pair `kda`: the stock Triton chain, and the candidates `KdaWide`, `KdaWS` and `RecoverCommit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declarations import kda_candidate, kda_oracle

if TYPE_CHECKING:
    from equiv.rounding.declaration import Declaration

DECLARATIONS: Final[tuple[Declaration, ...]] = (*kda_oracle.DECLARATIONS, *kda_candidate.DECLARATIONS)
