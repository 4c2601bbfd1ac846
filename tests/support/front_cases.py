"""Cases of `dsa_front` with all axes filled in, and the oracle's declaration beside ones with other slices of K."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equiv.dsa_front import PAIR
from equiv.records import Case
from equiv.rounding.declarations import find
from equiv.rounding.declarations.front import MATRIX, projection

if TYPE_CHECKING:
    from equiv.records import AxisValue
    from equiv.rounding.declaration import Declaration

FP4: dict[str, Any] = {"format": "fp4", "scale": "mx"}
DEFAULTS: dict[str, AxisValue] = {axis.name: axis.default for axis in PAIR.axes}


def case(regimes: dict[str, str] | None = None, seed: int = 7, **axes: Any) -> Case:
    """A case of five requests, unless `batch` says otherwise."""
    return Case("dsa_front", "x", "w", seed, ("pr",), DEFAULTS | {"batch": 5} | axes, regimes or {})


def oracle(arch: str = "sm_90a") -> Declaration:
    """What Triton 3.8.0's kernels declare."""
    found = find("dsa_front", "oracle", {"triton": "3.8.0"}, arch)
    assert found is not None
    return found


def sliced(split: int, arch: str = "sm_90a") -> Declaration:
    """The same with the projection in slices of K."""
    known = oracle(arch)
    return replace(known, orders={**known.orders, "projection": projection(MATRIX[arch], split)})
