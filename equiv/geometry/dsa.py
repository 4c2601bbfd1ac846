"""Sizes of the DSA indexer (spec/dsa.md 1)."""

from __future__ import annotations

from typing import Final

HEADS: Final = 32
DIM: Final = 128
"""Channels of a query head, and of the index key."""
BLOCK: Final = 32
"""Channels that share one MXFP4 scale."""
PAGE: Final = 64
"""Tokens a cache page."""
