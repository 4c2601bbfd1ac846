"""`wgmma`: products of a warpgroup from shared memory or registers; each warp computes its 16 rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.reference import operands
from equiv.emulator.reference.copies import nothing
from equiv.emulator.reference.machine import FULL, LANES
from equiv.emulator.reference.matrix import a_places
from equiv.emulator.reference.operands import Problem, problem
from equiv.emulator.reference.steps import mask_of
from equiv.rounding import matrix

if TYPE_CHECKING:
    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.operands import Codes
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Handler, Observer

ROWS = 16
_MINUS = (1 << 64) - 1


def _accumulator(columns: int, width: int) -> list[tuple[int, int, int]]:
    """(register, lane, bit) of each element of 16 rows of D, row-major."""
    places = []
    for row in range(ROWS):
        for column in range(columns):
            lane = row % 8 * 4 + column % 8 // 2
            if width == 32:
                places.append((column // 8 * 4 + row // 8 * 2 + column % 2, lane, 0))
            else:
                places.append((column // 8 * 2 + row // 8, lane, column % 2 * 16))
    return places


def _matrix(warp: Warp, step: Step, name: str, first: int, count: int, *, size: int) -> Codes:
    word = operands.uniform(step.source(warp, name))
    turned = step.operand(f"t{name}")
    transposed = turned is not None and turned.value != 0
    at = operands.wgmma_descriptor(warp, word)
    return operands.operand(warp, at, first, count, f"<u{size}", transposed=transposed)


def _fragment(warp: Warp, step: Step, depth: int, size: int) -> Codes:
    values = [step.source(warp, f"a{i}") for i in range(4)]
    places = a_places(depth, 8 * size)
    elements = [values[register][lane] >> bit & (1 << 8 * size) - 1 for register, lane, bit in places]
    return np.array(elements, f"<u{size}").reshape(ROWS, depth)


def multiply(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`wgmma.mma_async`: D = A B, or A B + D where the predicate is set."""
    operands.whole_warp(mask)
    model = matrix.variant(step.instruction.opcode, warp.grid.arch)
    columns, size = int(step.mods["columns"]), model.a.dtype.itemsize
    operands.uniform(step.source(warp, "b"))
    accumulate = mask_of(step.source(warp, "c"))
    if accumulate not in {0, FULL}:
        raise problem(Problem.UNIFORM, accumulate)
    signs = [step.source(warp, name)[0] for name in ("sa", "sb")]
    if any(one not in {1, _MINUS} for one in signs):
        raise problem(Problem.NEGATE)
    shared = step.operand("a") is not None
    if shared:
        operands.uniform(step.source(warp, "a"))
    if warp.id // 4 * 4 + 4 > len(warp.cta.warps):
        raise problem(Problem.WARPGROUP, warp.id, len(warp.cta.warps))
    a = (
        _matrix(warp, step, "a", warp.id % 4 * ROWS, ROWS, size=size)
        if shared
        else _fragment(warp, step, operands.DEPTH // size, size)
    )
    b = _matrix(warp, step, "b", 0, columns, size=size).T
    fmt = model.result.format
    places = _accumulator(columns, fmt.width)
    c = None
    if accumulate:
        held = [step.read(warp, one) for one in step.results]
        elements = [held[register][lane] >> bit & (1 << fmt.width) - 1 for register, lane, bit in places]
        c = np.array(elements, fmt.dtype).reshape(ROWS, columns)
    d = matrix.fused_dot(model, a.astype(model.a.dtype), b.astype(model.b.dtype), c, negate=signs[0] != signs[1])
    values = [[0] * LANES for _ in step.results]
    for value, (register, lane, bit) in zip(d.reshape(-1).tolist(), places, strict=True):
        values[register][lane] |= value << bit
    for one, lanes in zip(step.results, values, strict=True):
        step.write(warp, one, lanes, mask)
    if observer is not None:
        observer.hidden(warp, step, mask)


def find(step: Step) -> Handler | None:
    """What executes a `wgmma`; groups have nothing to do."""
    if "mma_async" in step.mods:
        return multiply
    return nothing if step.mods.keys() & {"commit_group", "wait_group"} else None
