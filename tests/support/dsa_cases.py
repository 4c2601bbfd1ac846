"""Small cases of `dsa_index` with chosen bits, and declarations to run the model under; loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.records import Case
from equiv.rounding.arithmetic import bits_of
from equiv.rounding.conversions import CONVERSIONS
from equiv.rounding.declaration import Declaration
from equiv.rounding.orders import Order, butterfly, chain, leaves, pairwise

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.records import AxisValue, Bits

DEFAULTS: dict[str, AxisValue] = {"batch": 4, "format": "fp8", "scale": "f32", "key_round": "bf16", "key_floor": 1e-4,
                                  "eps": 1e-6, "rows": "dense"}  # fmt: skip
_LANES = [pairwise(leaves(range(4 * lane, 4 * lane + 4))) for lane in range(32)]
_FUSED = [pairwise(leaves(range(4 * lane, 4 * lane + 4)), fused=True) for lane in range(32)]
WARP = Order.of(128, butterfly(_LANES, (16, 8, 4, 2, 1)))
WARP_FUSED = Order.of(128, butterfly(_FUSED, (16, 8, 4, 2, 1)))
CHAIN = Order.of(128, chain(leaves(range(128))))

FUSED = Declaration(
    "candidate",
    {},
    "sm_90a",
    {"key.sum": WARP, "key.squares": WARP_FUSED},
    {"dsa.R13": "inverse", "dsa.K3c": "inverse", "dsa.F1": "bits", "dsa.K4a": "bits"}
    | dict.fromkeys(("dsa.R11", "dsa.K3a"), "div.rn")
    | dict.fromkeys(("dsa.R12", "dsa.K3b"), "add_mask")
    | dict.fromkeys(("dsa.R15a", "dsa.F3a"), "folded"),
)
STOCK = Declaration(
    "oracle",
    {},
    "sm_90a",
    {"key.sum": CHAIN, "key.squares": CHAIN},
    {"dsa.R13": "div.full.clamp", "dsa.K3a": "div.rn"},
)


def case(**axes: AxisValue) -> Case:
    """A case with the pair's defaults filled in."""
    return Case("dsa_index", "test", "test", 1, (), DEFAULTS | axes, {})


def bf16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Nearest BF16 codes of numbers."""
    return CONVERSIONS["bf16.f32.rn"](bits_of(values)).astype(np.uint16)


def inputs(one: Case, seed: int = 1) -> dict[str, Bits]:
    """Normal data, heads of different size, norm weights about 1, slots 70, 3, -1, 64, 65, ... and two pages."""
    rng = np.random.default_rng(seed)
    batch = int(one.axes["batch"])
    dense = one.axes["rows"] == "dense"
    values = 64 if one.axes["format"] == "fp4" else 128
    slots = np.array([70, 3, -1, *range(64, 64 + batch)], dtype=np.int64)[:batch]
    return {
        "q": bf16(rng.standard_normal((batch, 32, 128)) * 2.0 ** rng.integers(-8, 8, (batch, 32, 1))),
        "projected": bf16(rng.standard_normal((batch, 160 if dense else 2272))),
        "norm_w": bits_of(1 + rng.standard_normal(128) / 8),
        "norm_b": bits_of(rng.standard_normal(128) / 8),
        "cache": rng.integers(0, 256, (2, 64 * (values + 4)), dtype=np.uint8),
        "slots": slots.view(np.uint64),
    }
