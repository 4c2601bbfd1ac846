"""Some requests of a `kda` case as a batch of their own, and the cuts of a grid that must not change a bit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from equiv.kda.tensors import axis, pool, present, whole, written
from equiv.pairs import Subset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from equiv.records import Bits, Case

ROWS = ("slots", "corrections", "key_gate", "counts", "final", "boundary", "boundary_counts")
"""Tensors whose first dimension is the request; `rows` and `accepted` have the steps before it."""
BY_REQUEST = ("conv", "corrections", "key", "gate")
BY_SLOT = ("state", "conv_final")
CTAS = (1, 5)


def subset(case: Case, inputs: Mapping[str, Bits], requests: Sequence[int]) -> Subset:
    """These requests with their rows and slots, and both whole pools; what nothing writes there has no counterpart."""
    rows, real = np.array(requests), present(inputs)
    rank = np.where(real, np.cumsum(real), np.cumsum(~real)) - 1
    here, absent = rank[rows[real[rows]]], rank[rows[~real[rows]]]
    owners = written(case, inputs).request
    slots = np.concatenate([np.flatnonzero(owners == request) for request in requests])

    def part(outputs: Mapping[str, Bits]) -> dict[str, Bits]:
        found = {"y": outputs["y"][:, here], "y_absent": outputs["y_absent"][:, absent]}
        found |= {name: outputs[name][here] for name in BY_REQUEST if name in outputs}
        return found | {name: outputs[name][slots] for name in BY_SLOT if name in outputs}

    given = {name: bits[rows] if name in ROWS else bits for name, bits in inputs.items()}
    steps, batch, tokens = (whole(case, name) for name in ("steps", "batch", "tokens"))
    projected = inputs["rows"].reshape(steps, batch, tokens, -1)[:, rows]
    given["rows"] = projected.reshape(steps * len(rows) * tokens, -1)
    given["accepted"] = inputs["accepted"][:, rows]
    return Subset(replace(case, axes={**case.axes, "batch": len(rows), "slots": pool(case)}), given, part)


def recut(case: Case) -> Iterator[tuple[str, Case]]:
    """`KdaWS` on other grids: its CTAs take items in turn, and which one takes an item changes nothing."""
    if axis(case, "kernel") == "ws":
        for ctas in CTAS:
            if ctas != whole(case, "ctas"):
                yield f"{ctas} CTA{'s' * (ctas > 1)}", replace(case, axes={**case.axes, "ctas": ctas})
