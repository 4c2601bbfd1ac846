"""Sizes of the DSA indexer's front: the query projection `wq_b` (spec dsa 1)."""

from __future__ import annotations

from typing import Final

from equiv.geometry.dsa import DIM, HEADS

RANK: Final = 1536
"""Columns of the query latent, the products of one projected value."""
OUTPUTS: Final = HEADS * DIM
"""Rows of the projection's weights: channel c of head h is row 128 h + c."""
