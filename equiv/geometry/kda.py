"""Sizes of a KDA layer (spec kda 1.1)."""

from __future__ import annotations

from typing import Final

DIM: Final = 128
"""Channels of a head: keys and values alike."""
TAPS: Final = 4
"""Taps of the causal convolution."""
RANK: Final = 128
"""Columns of the low-rank gate projection's input (F_A)."""
