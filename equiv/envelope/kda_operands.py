"""Operands of the `kda` recurrence in intervals, and its gated norm: what the declared ways to compute them may yield.

Everything before the recurrence, and the norm behind it, is a chain of monotone steps, so ends map to ends. A sum of
squares rises with every magnitude, so each declared order is executed on the ends. Where all declarations agree, the
results are points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from equiv.envelope import allowed_steps
from equiv.geometry.kda import DIM, RANK
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda_prepare, kda_steps
from equiv.rounding.intervals import Interval, hull, sum_of
from equiv.rounding.kda_ledger import LEDGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.records import Bits
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.kda_walk import Moment, Shape
    from equiv.rounding.ledger import Step
    from equiv.rounding.orders import Order

U32 = npt.NDArray[np.uint32]

ANY_ORDER: Final = 2.0**-15
"""Relative to the sum of magnitudes, the error of 128 products added in any order by float32 additions or by matrix
instructions: at most 128 roundings or truncations, each below 2^-23 of the sum of magnitudes, and as many again."""
INVERSIONS: Final = 2
"""Ulps by which what is divided by a `sqrt.approx` may rise where it should fall: the root's one, and a rounding."""


class Operands(NamedTuple):
    """As `kda_scan.Operands`, by items `[N, T, 128]` and `[N, T]`, in intervals."""

    q: Interval
    k: Interval
    decay: Interval
    v: Interval
    beta: Interval


def mapped(function: Callable[[U32], Any], interval: Interval) -> Interval:
    """Both ends through a function that moves elements about or never falls; a point stays one."""
    if interval.low is interval.high:
        return Interval.point(function(interval.low))
    return Interval(function(interval.low), function(interval.high))


def image(function: Callable[..., Any], *operands: Interval) -> Interval:
    """Image of a function monotone in each operand: the hull of its corners, each computed once."""
    ends = [(x.low,) if x.low is x.high else (x.low, x.high) for x in operands]
    return hull([Interval.point(function(*corner)) for corner in product(*ends)])


def outward(interval: Interval, ulps: int) -> Interval:
    """Intervals that are no points, longer by some ulps at both ends."""
    low, high = (fp.order(end).astype(np.int64) for end in (interval.low, interval.high))
    moved = [np.clip(key, 0x007FFFFF, 0xFF800000).astype(np.uint32) for key in (low - ulps, high + ulps)]
    bits = [np.where(key >= fp.SIGN, key ^ fp.SIGN, ~key) for key in moved]
    same = interval.low == interval.high
    return Interval(np.where(same, interval.low, bits[0]), np.where(same, interval.high, bits[1]))


@dataclass(frozen=True, slots=True)
class Ways:
    """What the parties of a case may do at each ledger row and reduction.

    Attributes:
        declarations: of the parties; for None everything that the ledger knows is allowed.
    """

    declarations: tuple[Declaration | None, ...]

    def steps(self, row: str) -> list[Step]:
        """Functions of a row."""
        return allowed_steps(LEDGER, self.declarations, row)

    def orders(self, reduction: str) -> list[Order | None]:
        """The different declared orders of a reduction; None stands for any."""
        found = [None if d is None else d.order(reduction) for d in self.declarations]
        return list({"" if order is None else order.digest: order for order in found}.values())

    def differ(self, reduction: str) -> bool:
        """Whether the parties may take a reduction in different orders."""
        found = self.orders(reduction)
        return len(found) > 1 or None in found

    def over(self, row: str, *operands: Interval) -> Interval:
        """A row that is monotone in each of its operands."""
        return hull([image(step, *operands) for step in self.steps(row)])

    def rooted(self, row: str, x: Interval, n: Interval, *rest: npt.ArrayLike) -> Interval:
        """A row that divides x by the root of n, which is monotone but for the root's inversions."""
        steps = [partial(lambda step, a, b: step(a, b, *rest), step) for step in self.steps(row)]
        found = hull([image(step, x, n) for step in steps])
        if n.low is n.high:
            return found
        moves = np.broadcast_to(n.low != n.high, found.low.shape)
        wide = outward(found, INVERSIONS)
        return Interval(np.where(moves, wide.low, found.low), np.where(moves, wide.high, found.high))

    def squares(self, x: Interval, reduction: str) -> Interval:
        """Sum of squares along the last axis under every allowed order, as its consumers see it."""
        size = x.magnitude()
        found = []
        for order in self.orders(reduction):
            if order is None:
                low, high = (sum_of(fp.mul(ends, ends), DIM)[0] for ends in (size.low, size.high))
                least = np.where(low.low >= fp.SIGN, np.uint32(0), low.low)
                found.append(Interval(least[..., None], high.high[..., None]))
            else:
                found.append(mapped(partial(kda_prepare.squares, order=order), size))
        if len({each.low.shape for each in found}) > 1:
            found = [mapped(lambda ends: np.broadcast_to(ends, x.low.shape), each) for each in found]
        return hull(found)

    def gates(self, f_a: Bits, f_b: Bits, mode: int) -> Interval:
        """The gate projection `[M, D]`, rounded to BF16."""
        found = []
        for order in self.orders(f"gate.{mode}"):
            if order is None:
                a, b = (fp.floats(np.asarray(x, np.uint32) << np.uint32(16)).astype(np.float64) for x in (f_a, f_b))
                with np.errstate(all="ignore"):
                    exact, half = a @ b.T, (np.abs(a) @ np.abs(b).T) * ANY_ORDER
                found.append(Interval.around(exact - half, exact + half))
            else:
                found.append(Interval.point(kda_prepare.project(f_a, f_b, order)))
        return self.over("kda.2", hull(found))

    def decays(self, raw: Interval, inputs: Mapping[str, Bits], lower_bound: U32) -> Interval:
        """Decays of raw gates `[..., H, 128]`."""
        rate = mapped(lambda end: end[:, None], self.over("kda.13d", Interval.point(inputs["a_log"])))
        z = self.over("kda.13e", raw, Interval.point(inputs["dt_bias"].reshape(-1, DIM)))
        gate = self.over("kda.13g", self.over("kda.13f", rate, z))
        return self.over("kda.13i", self.over("kda.13h", gate, Interval.point(lower_bound)))

    def normed(self, shape: Shape, o: Interval, gate: Bits, norm_w: Bits) -> Interval:
        """Gated norm of o before it is rounded to BF16 for the last time; o before its own rounding, float32."""
        x = self.over("kda.8", o)
        mean = self.over("kda.13q", self.squares(x, "norm.squares"), Interval.point(shape.eps))
        root = self.over("kda.13r", mean)
        moved = outward(root, INVERSIONS)
        still = np.asarray(mean.low == mean.high)
        rstd = Interval(np.where(still, root.low, moved.low), np.where(still, root.high, moved.high))
        weight = self.over("kda.12", Interval.point(norm_w))
        sigmoid = self.over("kda.13u", self.over("kda.1", Interval.point(gate)))
        scaled = self.over("kda.13t", self.over("kda.13s", x, rstd), weight)
        return self.over("kda.13v", scaled, sigmoid)


def mixed(ways: Ways, moment: Moment) -> Interval:
    """q, k, v after the convolution, `[R, T, 3, H, 128]`: the chain of taps is one, what follows it may differ."""
    return ways.over("kda.5", ways.over("kda.5a", Interval.point(moment.prepared.taps)))


def operands(ways: Ways, shape: Shape, moment: Moment, inputs: Mapping[str, Bits]) -> tuple[Operands, Interval]:
    """Operands of one step's recurrence, and the raw gates `[R, T, H, 128]` behind their decays."""
    x = mixed(ways, moment)
    q, k, v = (mapped(lambda end, part=part: end[:, :, part], x) for part in range(3))  # type: ignore[misc]
    n = [ways.over("kda.13a", ways.squares(each, "q.squares"), Interval.point(kda_steps.TINY)) for each in (q, k)]
    raw = ways.gates(moment.rows.f_a.reshape(-1, RANK), inputs["f_b"], shape.gate_mode)
    raw = mapped(lambda end: end.reshape(q.low.shape), raw)
    beta = ways.over("kda.13j", ways.over("kda.1", Interval.point(moment.rows.beta)))
    found = (
        ways.rooted("kda.13c", q, n[0], kda_prepare.SCALE),
        ways.rooted("kda.13b", k, n[1]),
        ways.decays(raw, inputs, shape.lower_bound),
        v,
        beta,
    )
    return Operands(*(mapped(kda_prepare.items, each) for each in found)), raw
