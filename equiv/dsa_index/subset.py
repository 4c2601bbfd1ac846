"""Some requests of a `dsa_index` or `dsa_front` case as a batch of their own: what the others must not change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from equiv.dsa_index.tensors import pages, written
from equiv.pairs import Subset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.records import Bits, Case

ROWS = ("q", "q_c", "projected", "slots")
"""Tensors with a row a request; the others are the same for all."""
BY_REQUEST = ("q_codes", "q_scale", "weights")
BY_TOKEN = ("key_codes", "key_scale")


def subset(case: Case, inputs: Mapping[str, Bits], requests: Sequence[int]) -> Subset:
    """These requests with their rows and slots, and the whole cache, whose other bytes have no counterpart."""
    rows = np.array(requests)
    token_of = {int(request): token for token, request in enumerate(written(inputs["slots"])[0])}
    tokens = np.array([token_of[request] for request in requests if request in token_of], dtype=np.int64)

    def part(outputs: Mapping[str, Bits]) -> dict[str, Bits]:
        found = {name: outputs[name][rows] for name in BY_REQUEST if name in outputs}
        return found | {name: outputs[name][tokens] for name in BY_TOKEN if name in outputs}

    axes = {**case.axes, "batch": len(rows), "pages": pages(case)}
    given = {name: bits[rows] if name in ROWS else bits for name, bits in inputs.items()}
    return Subset(replace(case, axes=axes), given, part)
