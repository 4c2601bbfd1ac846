"""Cases of `kda` for tests of its package: defaults of the axes, a seed, some regimes."""

from __future__ import annotations

from typing import Any

from equiv.kda import PAIR
from equiv.records import Case


def case(regimes: dict[str, str] | None = None, seed: int = 3, **axes: Any) -> Case:
    """A case with all axes filled in: two requests of six heads where nothing else is said."""
    filled = {axis.name: axis.default for axis in PAIR.axes} | {"batch": 2, "heads": 6} | axes
    return Case("kda", "x", "w", seed, ("pr",), filled, regimes or {})
