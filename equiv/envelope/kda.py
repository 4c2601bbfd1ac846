"""The envelope of `kda`: which y, states and corrections the declared differences of two parties may lead to.

Design section 4. The trajectory of the first known declaration (the oracle's) runs through the model; the other's is
bounded about it, step by step, from the operands' intervals (`kda_operands`) and the delta rule's contraction
(`kda_bounds`). What is declared alike widens nothing: two equal declarations leave one allowed value for each element.
Nothing is tuned. Where a party declares nothing, every order and every variant that the ledger knows is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from equiv.envelope.kda_bounds import CHUNK, GUARD, LEAST, Bound, Found, Near, Sums, Token, folded, step
from equiv.envelope.kda_operands import Operands, Ways, mapped, mixed, operands
from equiv.geometry.kda import DIM
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda_prepare, kda_steps
from equiv.rounding.declaration import differences
from equiv.rounding.declarations import kda as declared
from equiv.rounding.formats import BF16, ordered
from equiv.rounding.intervals import Interval, gamma
from equiv.rounding.kda import model, owned
from equiv.rounding.kda_commit import Records, commit, fold, recorded, tokens_of
from equiv.rounding.kda_ledger import LEDGER
from equiv.rounding.kda_prepare import Execution
from equiv.rounding.kda_walk import Pools, Shape, by_token, codes, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.kda_walk import Moment

Mask = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

SHARES: Final = 16
"""The share of y's envelope that was used is found in steps of one sixteenth, rounded up."""


@dataclass(frozen=True, slots=True)
class Band:
    """Values about the trajectory's: bits of a format, and how far a result may be off, float32 rounded up.

    `signed`: zeros of either sign are the same. The sign of a sum that is zero, and of what is computed from it, is a
    matter of its order where products underflow.
    """

    at: Bits
    off: F32
    signed: bool = False

    def judge(self, found: Bits) -> tuple[Mask, float]:
        """Which values lie in the band, and the largest share of its half width that was used."""
        inside = np.asarray(self.at == found)
        elsewhere = np.nonzero(~inside)
        at, value, off = _values(self.at[elsewhere]), _values(found[elsewhere]), self.off[elsewhere]
        with np.errstate(all="ignore"):
            apart = np.abs(value - at)
            reached = (off > 0) & (apart <= off)
            share = float((apart / off).max(initial=0.0, where=reached))
        reached |= self.signed & (value == 0) & (at == 0)
        inside[elsewhere] = reached
        return inside, share if reached.all() else 1.0


def _values(bits: Bits) -> F64:
    wide = bits if bits.dtype == np.uint32 else np.asarray(bits, dtype=np.uint32) << np.uint32(16)
    return fp.floats(wide).astype(np.float64)


def _up(off: F64) -> F32:
    """Float32 not below."""
    return np.asarray(off * (1 + 2.0**-22), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Norms:
    """y, by way of what its norm may start from.

    Attributes:
        y: the trajectory's, BF16 codes `[steps, R, T, H, 128]`. o: before its rounding, float32 bits of that shape.
        off: bound on the other's difference from o. gate: BF16 codes of the output gate.
    """

    shape: Shape
    ways: Ways
    norm_w: Bits
    y: Bits
    o: Bits
    off: F64
    gate: Bits

    def judge(self, found: Bits) -> tuple[Mask, float]:
        """Which y lie between the rounded ends, and the share of o's bound that explains all of them."""
        inside = np.ones(found.shape, dtype=bool)
        rows = (found != self.y).any(axis=-1)
        given = Norms(self.shape, self.ways, self.norm_w, *(x[rows] for x in (self.y, self.o, self.off, self.gate)))
        inside[rows] = given.inside(found[rows], 1.0)
        if not inside.all():
            return inside, 1.0
        least, most = -1, SHARES  # most always explains everything
        while most - least > 1:
            middle = (least + most) // 2
            if given.inside(found[rows], middle / SHARES).all():
                most = middle
            else:
                least = middle
        return inside, most / SHARES

    def inside(self, found: Bits, share: float) -> Mask:
        """Which y the bounds, shrunk to a share, explain."""
        value = fp.floats(self.o).astype(np.float64)
        with np.errstate(all="ignore"):
            around = Interval.around(value - self.off * share, value + self.off * share)
        still = self.off == 0
        zero = (value == 0) & self.ways.differ("out")  # of either sign, as in `Band`
        low, high = np.where(zero, np.uint32(1 << 31), self.o), np.where(zero, np.uint32(0), self.o)
        ends = Interval(np.where(still, low, around.low), np.where(still, high, around.high))
        y = self.ways.over("kda.9", self.ways.normed(self.shape, ends, self.gate, self.norm_w))
        low, high = (ordered(codes(end), BF16) for end in (y.low, y.high))
        place = ordered(found, BF16)
        return np.asarray(((low <= place) & (place <= high) & ~y.nan) | (found == self.y))


@dataclass(frozen=True, slots=True)
class KdaEnvelope:
    """What the outputs of one case may be.

    Attributes:
        outputs: `y`, `state` and, with records, `corrections`.
    """

    outputs: Mapping[str, Band | Norms]

    def judge(self, outputs: Mapping[str, Bits]) -> dict[str, tuple[Any, float]]:
        """`y`, `state`, `corrections` -> (mask of elements inside, largest share of the envelope used)."""
        return {name: allowed.judge(outputs[name]) for name, allowed in self.outputs.items()}


@dataclass(slots=True)
class Spread:
    """The other party's states as bounds about the trajectory's, while the steps go by.

    Attributes:
        pages: slot -> bounds on each element, float32 `[H, 128, 128]`, and on each row's norm, float64 `[H, 128]`; a
            slot that nothing has written is known exactly.
    """

    shape: Shape
    ways: Ways
    base: Declaration
    pages: dict[int, tuple[F32, F64]] = field(default_factory=dict)

    def sums(self, reduction: str) -> Sums:
        """How far two results of a reduction of products may be apart."""
        own = self.base.order(reduction).roundings(products=True)
        others = [DIM if o is None else o.roundings(products=True) for o in self.ways.orders(reduction)]
        return Sums(gamma(own), gamma(max(others)), self.ways.differ(reduction))

    def advance(self, moment: Moment, given: Operands) -> tuple[F64, F64]:
        """Bounds of o and u of one step, by items `[N, T, 128]`; the pages of the slots it writes take theirs."""
        heads, tokens = self.shape.heads, self.shape.tokens
        count = len(moment.before)
        o, u = (np.zeros((count, tokens, DIM)) for _ in range(2))
        near = [Near.of(x, at) for x, at in zip(given, moment.prepared.operands, strict=True)]
        sums = self.sums("dot"), self.sums("out")
        fresh = {
            int(slot): (np.zeros((heads, DIM, DIM), dtype=np.float32), np.zeros((heads, DIM)))
            for slot in moment.slots.ravel()
        }
        for first in range(0, count, CHUNK):
            chunk = np.arange(first, min(first + CHUNK, count))
            state = fp.floats(moment.before[chunk]).astype(np.float64)
            bound = self._before(moment, chunk)
            for t in range(tokens):
                token = Token(*(Near(x.at[chunk, t], x.off[chunk, t]) for x in near))
                with np.errstate(all="ignore"):
                    found = step(state, bound, token, *sums)
                state, bound = found.state, found.bound
                o[chunk, t], u[chunk, t] = found.o, found.u
                if not self.shape.records:
                    kept = self._stored(moment.scanned.states[chunk, t], bound.each)
                    norms = self._norms(kept, found)
                    for at, item in enumerate(chunk):
                        page = fresh[int(moment.slots[item // heads, t])]
                        page[0][item % heads], page[1][item % heads] = kept[at], norms[at]
        if not self.shape.records:
            self.pages |= fresh
        return o, u

    def _before(self, moment: Moment, chunk: npt.NDArray[np.int64]) -> Bound:
        each, row = np.zeros((len(chunk), DIM, DIM)), np.zeros((len(chunk), DIM))
        for at, item in enumerate(chunk):
            page = self.pages.get(int(moment.source[item // self.shape.heads]))
            if page is not None:
                each[at], row[at] = (part[item % self.shape.heads] for part in page)
        return Bound(each, row)

    def _norms(self, kept: F32, found: Found) -> F64:
        """Bounds on the rows' norms of what a pool holds: in BF16 every element that may differ adds an ulp."""
        if not self.shape.bf16_state:
            return found.bound.row
        ulp = np.where(kept > 0, 2.0**-7 * (np.abs(found.state) + found.bound.each) + 2.0**-133, 0.0)
        return np.asarray((found.bound.row + np.sqrt((ulp * ulp).sum(axis=-1))) * GUARD)

    def _stored(self, states: Bits, each: F64) -> F32:
        """Bounds on what a pool holds: of a BF16 pool, how far the rounded ends are from the rounded state."""
        if not self.shape.bf16_state:
            return _up(each)
        value = fp.floats(states).astype(np.float64)
        with np.errstate(all="ignore"):
            around = Interval.around(value - each, value + each)
        ends = self.ways.over("kda.7", Interval(*(np.where(each > 0, x, states) for x in (around.low, around.high))))
        off = Near.of(ends, kda_steps.rounded(states)).off
        signed = (each > 0) & (np.abs(value) <= each)  # rounded to zero, it may be a zero of either sign
        return _up(np.maximum(off, np.where(signed, LEAST, 0.0)))

    def commit(self, inputs: Mapping[str, Bits], left: Left, pools: Pools) -> F32:
        """Bounds of the states that a commit writes, `[W, H, 128, 128]` in the order of the output.

        Args:
            inputs: of the case, for its plan.
            left: what the step left for the commit.
            pools: the trajectory's, before the commit.
        """
        shape, ways, run = self.shape, self.ways, Execution(self.base)
        todo, states = fold(shape, left.records, inputs, pools, run)
        n = ways.over("kda.13a", ways.squares(left.keys, "commit.squares"), Interval.point(kda_steps.TINY))
        found = (ways.decays(left.raw, inputs, shape.lower_bound), ways.rooted("kda.13o", left.keys, n))
        own = tokens_of(shape, left.records, inputs, run)
        near = [
            Near.of(mapped(kda_prepare.items, x), at.reshape(-1, shape.tokens, DIM))
            for x, at in zip(found, own[:2], strict=True)
        ]
        near.append(Near(_values(own.values.reshape(-1, shape.tokens, DIM)), left.off))
        differ = len(ways.steps("kda.13p")) > 1
        result = np.zeros((len(todo.target), shape.heads, DIM, DIM), dtype=np.float32)
        for at, (request, source, folds) in enumerate(zip(todo.request, todo.source, todo.folded, strict=True)):
            chunk = slice(request * shape.heads, (request + 1) * shape.heads)
            tokens = [[Near(x.at[chunk, t], x.off[chunk, t]) for x in near] for t in range(folds)]
            page = _values(pools.state[source])
            each = folded(page, tokens, differ=differ, roundings=gamma(2 * int(folds) + 2))
            result[at] = self._stored(states[at], each)
        return result


class Left(NamedTuple):
    """What a step in mode commit leaves for the commit.

    Attributes:
        records: the trajectory's. raw, keys: raw gates, and k before it is normalised, `[R, T, H, 128]` in intervals.
        off: bound on the corrections, by items `[N, T, 128]`.
    """

    records: Records
    raw: Interval
    keys: Interval
    off: F64


def _closest(declarations: tuple[Declaration | None, ...]) -> Declaration:
    """The declaration whose trajectory the envelope is about: the first known one, else any that knows all orders."""
    known = [d for d in declarations if d is not None]
    return known[0] if known else declared.DECLARATIONS[0]


def _alike(declarations: tuple[Declaration | None, ...]) -> bool:
    first, *others = declarations
    return first is not None and all(d is not None and not differences(first, d, LEDGER) for d in others)


def kda_envelope(case: Case, inputs: Mapping[str, Bits], declarations: tuple[Declaration | None, ...]) -> KdaEnvelope:
    """The envelope of `kda`: its outputs `y`, `state` and `corrections`; all others are bitwise.

    Args:
        case: with all axes filled in.
        inputs: logical bits, as for the model.
        declarations: of both parties; None stands for one that nobody has read.
    """
    shape, base = Shape.of(case), _closest(declarations)
    if _alike(declarations):
        found = model(case, inputs, base)
        names = ("y", "state", "corrections") if shape.records else ("y", "state")
        return KdaEnvelope({name: Band(found[name], np.zeros(found[name].shape, np.float32)) for name in names})
    ways, run, pools = Ways(declarations), Execution(base), Pools.of(inputs)
    spread, bands = Spread(shape, ways, base), dict[str, Band | Norms]()
    norms: list[tuple[Any, ...]] = []
    todo, off = None, None
    for moment in walk(shape, inputs, pools, run):
        given, raw = operands(ways, shape, moment, inputs)
        o, u = spread.advance(moment, given)
        gate = moment.rows.gate.reshape(moment.y.shape)
        norms.append((moment.y, by_token(moment.scanned.o, shape), by_token(o, shape), gate))
        if shape.records:
            records = recorded(shape, moment, run)
            off_u = _up(u).reshape(records.corrections.shape)
            bands["corrections"] = Band(records.corrections, off_u, signed=ways.differ("dot"))
            if shape.mode == "commit":
                keys = mapped(lambda end: end[:, :, 1], mixed(ways, moment))
                off = spread.commit(inputs, Left(records, raw, keys, u), pools)
                todo = commit(shape, records, inputs, pools, run)
    written = owned(shape, inputs, todo)[0]
    if off is None:
        empty = np.zeros((0, shape.heads, DIM, DIM), dtype=np.float32)
        off = np.stack([spread.pages[int(slot)][0] for slot in written]) if len(written) else empty
    bands["y"] = Norms(shape, ways, inputs["norm_w"], *(np.stack(part) for part in zip(*norms, strict=True)))
    return KdaEnvelope(bands | {"state": Band(pools.state[written], off, signed=ways.differ("dot"))})
