"""What a warp does together: shuffles, votes, matches, reductions, elections; loads and stores.

A function takes the engine's state and the lanes that execute, changes registers and memory, and tells the observer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.reference import spaces
from equiv.emulator.reference.machine import LANES
from equiv.emulator.reference.steps import Operand, lanes_of, mask_of
from equiv.rounding import arithmetic as fp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.matrix import Multiplication
    from equiv.emulator.reference.spaces import Place
    from equiv.emulator.reference.steps import Step, Values


Handler = Callable[["Warp", "Step", int, "Observer | None"], "int | None"]
"""Executes a step for some lanes; of these it may park some, and returns them."""


class Observer(Protocol):
    """Is told of every value that is made or moved, after it happened; see `equiv.emulator.trace`."""

    def computed(self, warp: Warp, step: Step, mask: int, sources: Sequence[Values], results: Sequence[Values]) -> None:
        """A lane instruction gave `results`; the registers hold them already, the sources are as they were."""

    def shuffled(self, warp: Warp, step: Step, mask: int, origin: Sequence[int]) -> None:
        """Lane l now holds what lane origin[l] held."""

    def reduced(self, warp: Warp, step: Step, mask: int, source: Values) -> None:
        """All lanes of `mask` now hold one value made of `source` in all of them."""

    def loaded(self, warp: Warp, step: Step, lane: int, where: Place, data: bytes) -> None:
        """A lane's results were read from memory, one behind the other."""

    def stored(self, warp: Warp, step: Step, lane: int, where: Place, data: bytes) -> None:
        """A lane's sources `b...`, of `st.async` `v...`, were written to memory, one behind the other."""

    def updated(self, warp: Warp, step: Step, lane: int, where: Place, change: tuple[bytes, bytes]) -> None:
        """An atomic changed memory from one to the other; its results are written after all lanes are through."""

    def copied(self, warp: Warp, where: Place, source: Place, count: int, size: int) -> None:
        """`size` bytes came from another place, those after `count` are zero."""

    def assembled(
        self, warp: Warp, operand: Operand, lane: int, pieces: Sequence[tuple[Place, int]], data: bytes
    ) -> None:
        """A register was read as two halves, low half first, each at a byte behind a place."""

    def scattered(self, warp: Warp, operand: Operand, lane: int, where: Place, data: bytes, *, at: int) -> None:
        """Bytes of a register, from byte `at` on, were written to memory."""

    def multiplied(self, warp: Warp, one: Multiplication) -> None:
        """A matrix instruction wrote its results."""

    def hidden(self, warp: Warp, step: Step, mask: int) -> None:
        """Results of which nothing is told but that they were written: products and tensor memory of warpgroups."""


def shuffle(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`shfl.sync`."""
    a, b, c = (step.source(warp, name) for name in "abc")
    mode = step.mods["mode"]
    origin, valid = [], []
    for lane in range(LANES):
        by, segment = b[lane] & 31, c[lane] >> 8 & 31
        limit = lane & segment | c[lane] & 31 & ~segment
        if mode == "up":
            other, fits = lane - by, lane - by >= limit
        else:
            other = {"down": lane + by, "bfly": lane ^ by, "idx": lane & segment | by & ~segment & 31}[mode]
            fits = other <= limit
        origin.append(other & 31 if fits else lane)
        valid.append(int(fits))
    put_results(step, warp, mask, d=[a[other] for other in origin], p=valid)
    if observer is not None:
        observer.shuffled(warp, step, mask, origin)


def vote(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`vote.sync`."""
    true = mask_of(step.source(warp, "a")) & mask
    if step.mods.get("mode"):
        value = {"all": true == mask, "any": true != 0, "uni": true in {0, mask}}[step.mods["mode"]]
        put_results(step, warp, mask, p=[int(value)] * LANES)
    else:
        put_results(step, warp, mask, d=[true] * LANES)


def match(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`match.sync`."""
    a = step.source(warp, "a")
    if "any" in step.mods:
        same = [mask_of([int(other == value) for other in a]) & mask for value in a]
        put_results(step, warp, mask, d=same)
        return
    everywhere = len({a[lane] for lane in lanes_of(mask)}) == 1
    put_results(step, warp, mask, d=[mask if everywhere else 0] * LANES, p=[int(everywhere)] * LANES)


_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "min": min,
    "max": max,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}


def redux(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`redux.sync`."""
    source = step.source(warp, "a")
    a = [source[lane] for lane in lanes_of(mask)]
    if step.mods["type"] == "f32":
        values = [np.uint32(value & 0x7FFFFFFF if step.mods["abs"] else value) for value in a]
        choose = fp.minimum if step.mods["op"] == "min" else fp.maximum
        nan = bool(step.mods["NaN"])
        result = int(reduce(lambda x, y: choose(x, y, nan=nan), values, fp.canonical(values[0])))
    else:
        result = reduce(_FOLDS[step.mods["op"]], a)
    put_results(step, warp, mask, d=[result] * LANES)
    if observer is not None:
        observer.reduced(warp, step, mask, source)


def elect(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`elect.sync`: the lowest lane."""
    leader = lanes_of(mask)[0]
    put_results(step, warp, mask, d=[leader] * LANES, p=[int(lane == leader) for lane in range(LANES)])


def activemask(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`activemask`."""
    put_results(step, warp, mask, d=[mask] * LANES)


def clock(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`mov` of a clock or timer: the instructions that the warp has executed."""
    put_results(step, warp, mask, d=[warp.clock >> step.source(warp, "k")[0]] * LANES)


def predicate_logic(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`and`, `or`, `xor`, `not`, `mov` on predicates."""
    a, *rest = (step.read(warp, one) for one in step.sources)
    if step.base in {"not", "mov"}:
        put_results(step, warp, mask, p=[1 - x if step.base == "not" else x for x in a])
    else:
        put_results(step, warp, mask, p=[_FOLDS[step.base](x, y) for x, y in zip(a, rest[0], strict=True)])


def carry(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """Chains through the carry, one bit a lane; after a subtraction it is set where nothing was borrowed."""
    bits, base = TYPE_BITS[step.mods["type"]], step.base
    ones = (1 << bits) - 1
    a, b = (step.source(warp, name) for name in "ab")
    if base in {"mad", "madc"}:
        high = bits if step.mods["side"] == "hi" else 0
        a = [x * y >> high for x, y in zip(a, b, strict=True)]
        b = step.source(warp, "c")
    less = base in {"sub", "subc"}
    carried = warp.carry if base in {"addc", "subc", "madc"} else [int(less)] * LANES
    total = [(x & ones) + ((~y if less else y) & ones) + one for x, y, one in zip(a, b, carried, strict=True)]
    put_results(step, warp, mask, d=total)
    if step.mods.get("cc"):
        warp.carry = [value >> bits if mask >> lane & 1 else warp.carry[lane] for lane, value in enumerate(total)]


def addresses(warp: Warp, step: Step, name: str) -> tuple[str, list[int]]:
    """(space, address of each lane) of an address operand."""
    base, offset = step.operand(name), step.operand(f"{name}+")
    assert base is not None
    assert offset is not None
    known = base.kind == "special" or (base.register and base.bits)
    values = step.read(warp, base) if known else [base.value] * LANES
    space = "" if base.type == "generic" else base.type
    return space, [spaces.wrap(space, value + offset.value) for value in values]


def load(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`ld`: all lanes are checked before the first one reads."""
    size = TYPE_BITS[step.mods["type"]] // 8
    total = size * len(step.results)
    space, at = addresses(warp, step, "a")
    where = {lane: spaces.place(warp, space, lane, at[lane], total, write=False) for lane in lanes_of(mask)}
    data = {lane: spaces.read(warp, place, total) for lane, place in where.items()}
    for i, result in enumerate(step.results):
        values = [int.from_bytes(data.get(lane, b"")[i * size : (i + 1) * size], "little") for lane in range(LANES)]
        step.write(warp, result, values, mask)
    if observer is not None:
        for lane, place in where.items():
            observer.loaded(warp, step, lane, place, data[lane])


def store(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`st`: of lanes at one address in one pass of 128 bytes the lowest's value stays; a later pass overwrites."""
    values = [one for one in step.sources if one.name.startswith("b")]
    size = TYPE_BITS[step.mods["type"]] // 8
    total = size * len(values)
    space, at = addresses(warp, step, "a")
    where = {lane: spaces.place(warp, space, lane, at[lane], total, write=True) for lane in lanes_of(mask)}
    read = [step.read(warp, one) for one in values]
    in_a_pass = 128 // max(total, 4)
    for lane in (k ^ in_a_pass - 1 for k in range(LANES)):
        if lane in where:
            data = b"".join((one[lane] & (1 << 8 * size) - 1).to_bytes(size, "little") for one in read)
            spaces.write(warp, where[lane], data)
            if observer is not None:
                observer.stored(warp, step, lane, where[lane], data)


def put_results(step: Step, warp: Warp, mask: int, **values: Any) -> None:  # noqa: ANN401  lists of integers
    """Writes results by name; those that the instruction does not have are left out."""
    for name, value in values.items():
        found: Operand | None = next((one for one in step.results if one.name == name), None)
        if found is not None:
            step.write(warp, found, value, mask)
