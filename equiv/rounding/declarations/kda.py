"""Declarations of the pair `kda`: the stock Triton chain, and the candidates `KdaWide`, `KdaWS` and `RecoverCommit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Terms
from equiv.rounding.declarations import kda_candidate, kda_oracle
from equiv.rounding.declarations.kda_orders import DIM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.rounding.declaration import Declaration

DECLARATIONS: Final[tuple[Declaration, ...]] = (*kda_oracle.DECLARATIONS, *kda_candidate.DECLARATIONS)

WINDOW: Final = ("conv_state", "rows")
"""What a channel after the convolution reads, beside weights, of which a candidate has a copy in another layout."""
WEIGHTS: Final = ("conv_bias", "conv_w")
STATE: Final = Terms("products", DIM, ("conv_state", "dt_bias", "f_b", "rows", "state"), WEIGHTS)
"""A state, decayed or corrected, times the normalised key or query."""

TERMS: Final[Mapping[str, Terms]] = {
    "gate.0": Terms("products", DIM, ("f_b", "rows"), where={"gate_mode": 0}),
    "gate.1": Terms("products", DIM, ("f_b", "rows"), where={"gate_mode": 1}),
    "q.squares": Terms("squares", DIM, WINDOW, WEIGHTS),
    "dot": STATE,
    "out": STATE,
    "norm.squares": Terms("squares", DIM, (*WINDOW, "state"), WEIGHTS),
    "commit.squares": Terms("squares", DIM, WINDOW, WEIGHTS, where={"mode": "commit"}),
}
"""Term i is channel i: of F_A, of the query or key, of the state's row, of the output.

A name may share its terms with another; then what is traced must be what these declare.
"""
