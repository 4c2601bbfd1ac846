"""The model: each rounding point as a row of the ledger, what each party declares, what declared differences may do.

Values are bit patterns: uint32 for FP32, uint16 for BF16. `equiv.rounding` has every conversion, special function and
matrix instruction bit for bit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.envelope import allowed_steps, depth
from equiv.envelope.dsa import share_used
from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, special
from equiv.rounding.declaration import Terms
from equiv.rounding.formats import BF16, ordered
from equiv.rounding.intervals import Interval, corners, hull, sum_of
from equiv.rounding.ledger import Ledger, Row
from equiv.rounding.order_file import OrderFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.orders import Order

DIM = 128
ONE_DIM = fp.bits_of(1.0 / DIM)


def _squares(order: Order, x: Bits) -> Bits:
    return order.seen(order.dot(x, x))[..., :1]


def _moment(total: Bits, eps: Bits) -> Bits:
    return fp.add(fp.mul(total, ONE_DIM), eps)


def _rsqrt(moment: Bits) -> Bits:
    return special.rsqrt(moment, ftz=True)


def _row_first(x: Bits, rstd: Bits, w: Bits) -> Bits:
    return fp.mul(fp.mul(x, rstd), w)


def _weight_first(x: Bits, rstd: Bits, w: Bits) -> Bits:
    return fp.mul(x, fp.mul(rstd, w))


# A row has a step for each way in which a party may compute it; the first `variants` of them may be declared.
# `faults` are ways to get it wrong: `equiv explain` tries them when a kernel differs from its model.
LEDGER = Ledger(
    (
        Row("norm.1", "sum(x * x)", "f32", "f32", "rn", "rounding", {"rn": _squares}, ties="even"),
        Row("norm.2", "sum / 128 + eps", "f32", "f32", "rn", "rounding", {"rn": _moment}, ties="even",
            faults={"no eps": lambda total, _eps: fp.mul(total, ONE_DIM)}),
        Row("norm.3", "rstd = 1 / sqrt(mean + eps)", "f32", "f32", "table", "rounding", {"rsqrt.approx.ftz": _rsqrt}),
        Row("norm.4", "x * rstd * w", "f32", "f32", "rn", "variant",
            {"row first": _row_first, "weight first": _weight_first}, variants=2, ties="even"),
        Row("norm.5", "y", "f32", "bf16", "rn", "rounding",
            {"rn": conversions.named("bf16.f32.rn"), "cut": lambda y: (y >> np.uint32(16)).astype(np.uint16)},
            off="cut", ties="even", nan="0x7fff"),
    )
)  # fmt: skip

VARIANTS: Mapping[str, Mapping[str, str]] = {"oracle": {}, "candidate": {"norm.4": "weight first"}}
"""Party -> row -> its variant, where that is not the first one."""


def ledger() -> Ledger:
    """What `equiv rounding skeleton_name` prints."""
    return LEDGER


def terms() -> dict[str, Terms]:
    """How each reduction is known in a trace, for `equiv order skeleton_name`."""
    return {"squares": Terms("squares", DIM, ("x",))}


def declaration(party: str, toolchain: Mapping[str, str], arch: str, form: str) -> Declaration | None:
    """What a party declares as compiled by these versions, None for versions that nobody has looked at.

    The orders are traced from the compiled kernels: after a kernel or a compiler has changed, `equiv order
    skeleton_name --json > new.json`, read what it says, and put it in the place of orders.json (not straight into it:
    the shell empties that file first, and the command reads it). Entries of other versions are not kept.
    """
    return OrderFile.read(Path(__file__).with_name("orders.json")).find(party, toolchain, arch, form, VARIANTS[party])


def model(case: Case, inputs: Mapping[str, Bits], declaration: Declaration, ledger: Ledger = LEDGER) -> dict[str, Bits]:
    """What a party that declares this must give, to the bit."""

    def run(row: str, *operands: Any) -> Any:  # noqa: ANN401  bits, or an order
        return ledger.step(row, declaration.variants)(*operands)

    x = conversions.widen(inputs["x"], BF16)
    total = run("norm.1", declaration.order("squares"), x)
    rstd = run("norm.3", run("norm.2", total, fp.bits_of(float(case.axes["eps"]))))
    return {"y": run("norm.5", run("norm.4", x, rstd, inputs["w"]))}


class Inside:
    """What y may be: BF16 values between the rounded ends of an interval that follows the computation."""

    def __init__(self, y: Interval) -> None:
        self.y = y

    def judge(self, outputs: Mapping[str, Bits]) -> dict[str, tuple[Any, float]]:
        """Mask of the elements inside, and the share of the envelope that explains them all."""
        code = conversions.named("bf16.f32.rn")
        found = ordered(outputs["y"], BF16)

        def inside(share: float) -> Any:  # noqa: ANN401  a boolean mask
            y = self.y.shrunk(share)
            return (ordered(code(y.low), BF16) <= found) & (found <= ordered(code(y.high), BF16))

        return {"y": (inside(1.0), share_used(inside(1.0), inside))}


def envelope(case: Case, inputs: Mapping[str, Bits], declarations: Sequence[Declaration | None]) -> Inside:
    """The sum in any declared order, then every step by its ends; an unknown party may use any order and variant."""
    x = conversions.widen(inputs["x"], BF16)
    total, _ = sum_of(fp.mul(x, x), depth(declarations, "squares", DIM, products=False))
    eps = fp.bits_of(float(case.axes["eps"]))
    rstd = total.rising(lambda end: _moment(end, eps)).falling(_rsqrt)
    rstd = Interval(rstd.low[:, None], rstd.high[:, None])
    ways = [
        corners(partial(step, w=inputs["w"]), Interval.point(x), rstd)
        for step in allowed_steps(LEDGER, declarations, "norm.4")
    ]
    return Inside(hull(ways))
