"""Declarations of the oracle of `kda`, the stock Triton chain, by compiler version, architecture and form.

Traced from the PTX of `equiv.triton_ref.kda` with ptxas's contractions (3.8.0 and 3.6.0, sm_90a and sm_100a), and
held against the emulated kernels bit for bit. A lane has four keys of an FP32 state, eight of a BF16 one. Whether a
square is contracted never shows: q, k and o are BF16 there, and their squares exact in FP32.

Not declared: the commit of a BF16 state by 3.6.0 on sm_100a. Its fold rounds the product with the state of a boundary
for three rows of four, and fuses it for the fourth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declaration import Declaration
from equiv.rounding.declarations.kda_orders import ARCHITECTURES, crossed, gates, one_a_lane, paired, serial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.rounding.orders import Order

VERSIONS: Final = ("3.8.0", "3.6.0")
FORMS: Final = ("packed", "packed-bf16", "multi", "multi-bf16", "verify", "verify-bf16")
"""The recurrent kernel: one token, several, or a record and its commit; with an FP32 or a BF16 state."""


def _sums(version: str, arch: str) -> Mapping[str, Order]:
    """What one compiler makes of the sums within a lane: dots of a state with 4 or 8 keys a lane, squares, the norm."""
    if version == "3.6.0":
        packed = arch == "sm_100a"
        return {
            "dot": serial(4),
            "dot-bf16": serial(8),
            "dot-rounded": serial(8, unfused=range(8)),
            "squares": serial(4),
            "norm": serial(8, unfused=(3, 5, 7) if packed else ()),
        }
    if arch == "sm_90a":
        return {
            "dot": paired(4, fused=True),
            "dot-bf16": paired(8, fused=True),
            "dot-rounded": paired(8, fused=False),
            "squares": paired(4, fused=True),
            "norm": paired(8, fused=True),
        }
    return {
        "dot": crossed(4, fused=False),
        "dot-bf16": crossed(8, fused=False),
        "dot-rounded": crossed(8, fused=False),
        "squares": crossed(4, fused=False),
        "norm": crossed(8, fused=True),
    }


def _declared(version: str, arch: str, form: str) -> Declaration:
    sums = _sums(version, arch)
    kernel, _, narrow = form.partition("-")
    dot = sums["dot-rounded" if form == "multi-bf16" else "dot-bf16" if narrow else "dot"]
    orders = {
        **gates(arch),
        "q.squares": sums["squares"] if kernel == "multi" else one_a_lane(fused=True),
        "dot": dot,
        "out": dot,
        "norm.squares": sums["norm"],
    }
    # ptxas contracts the norm's exact division by 128 into the sum with eps.
    variants = {"kda.13q": "fma"}
    if kernel == "verify":
        orders["commit.squares"] = one_a_lane(fused=True)
        variants |= {"kda.13b": "rsqrt", "kda.13c": "rsqrt", "kda.13o": "rsqrt", "kda.13p": "backward"}
    return Declaration("oracle", {"triton": version}, arch, orders, variants, form)


_BY_ROW: Final = ("3.6.0", "sm_100a", "verify-bf16")
DECLARATIONS: Final[tuple[Declaration, ...]] = tuple(
    _declared(version, arch, form)
    for version in VERSIONS
    for arch in ARCHITECTURES
    for form in FORMS
    if (version, arch, form) != _BY_ROW
)
"""Other versions were not read."""
