"""Reductions to memory of every type: `atom`, `red`, and the elements of bulk copies that reduce."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.reference import spaces
from equiv.emulator.reference.floats import FLOATS
from equiv.emulator.reference.machine import LANES
from equiv.emulator.reference.steps import lanes_of
from equiv.emulator.reference.warps import addresses, put_results
from equiv.rounding import arithmetic as fp
from equiv.rounding import double

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.spaces import Place
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Observer

FLOAT_TYPES = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64"})


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "min": min,
    "max": max,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "exch": lambda _, y: y,
    "inc": lambda x, y: 0 if x >= y else x + 1,
    "dec": lambda x, y: y if x == 0 or x > y else x - 1,
}


@cache
def combine(operation: str, kind: str, flush: bool) -> Callable[[int, int], int]:  # noqa: FBT001
    """What memory holds after an operation with a value of a type, both bit patterns; `flush`: of f32 subnormals."""
    bits = TYPE_BITS[kind]
    if kind == "f32" and operation == "add":
        return lambda x, y: int(fp.add(np.uint32(x), np.uint32(y), ftz=flush))
    if kind == "f64" and operation == "add":
        return double.add
    if kind in FLOAT_TYPES and operation != "exch":
        lanes = FLOATS[operation]({"type": kind})
        return lambda x, y: int(lanes(np.array([x], np.uint64), np.array([y], np.uint64))[0])
    function = _INTEGERS[operation]
    if kind[0] == "s" and operation in {"min", "max"}:
        return lambda x, y: function(_signed(x, bits), _signed(y, bits)) & (1 << bits) - 1
    return lambda x, y: function(x, y) & (1 << bits) - 1


def reduce_bytes(warp: Warp, operation: str, kind: str, where: Place, data: bytes, *, flush: bool) -> None:
    """Combines memory with bytes, element by element."""
    size = TYPE_BITS[kind] // 8
    one = combine(operation, kind, flush)
    held = spaces.read(warp, where, len(data))
    changed = b""
    for at in range(0, len(data), size):
        x, y = (int.from_bytes(part[at : at + size], "little") for part in (held, data))
        changed += one(x, y).to_bytes(size, "little")
    spaces.write(warp, where, changed)
    if operation == "add" and kind in FLOAT_TYPES:
        warp.grid.order_dependent += len(data) // size


def atomic(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`atom` and `red`, scalars and vectors: lanes in ascending order, each sees the one before."""
    kind, operation = step.mods["type"], step.mods["op"]
    size, bits = TYPE_BITS[kind] // 8, TYPE_BITS[kind]
    space, at = addresses(warp, step, "a")
    # On shared memory subnormals are kept (measured on an H200).
    change = None if operation == "cas" else combine(operation, kind, step.mods["space"] in {"global", ""})
    vector = int(step.mods["vec"][1:]) if step.mods.get("vec") else 0
    names = [f"b{i}" for i in range(vector)] or ["b"]
    values = [[value & (1 << bits) - 1 for value in step.source(warp, name)] for name in names]
    third = [value & (1 << bits) - 1 for value in step.source(warp, "c")] if operation == "cas" else []
    total = size * len(names)
    where = {lane: spaces.place(warp, space, lane, at[lane], total, write=True) for lane in lanes_of(mask)}
    old = [[0] * LANES for _ in names]
    for lane, place in where.items():
        before = spaces.read(warp, place, total)
        after = b""
        for i, given in enumerate(values):
            x = old[i][lane] = int.from_bytes(before[i * size : (i + 1) * size], "little")
            y = change(x, given[lane]) if change is not None else third[lane] if x == given[lane] else x
            after += y.to_bytes(size, "little")
        spaces.write(warp, place, after)
        if observer is not None:
            observer.updated(warp, step, lane, place, (before, after))
    warp.grid.events += 1
    if operation == "add" and kind in FLOAT_TYPES:
        warp.grid.order_dependent += len(names) * mask.bit_count()
    if step.results:
        found = {name.replace("b", "d"): lanes for name, lanes in zip(names, old, strict=True)}
        put_results(step, warp, mask, **found)
