"""`ldmatrix`, `stmatrix`, `movmatrix`, `mma.sync`: which lane holds which element (spec numerics 1.6), and products.

The arithmetic is `equiv.rounding.matrix`; here is where its operands come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.emulator.reference import spaces
from equiv.emulator.reference.machine import LANES
from equiv.emulator.reference.operands import whole_warp
from equiv.emulator.reference.steps import Step
from equiv.emulator.reference.warps import addresses, put_results
from equiv.rounding import matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.spaces import Place
    from equiv.emulator.reference.steps import Operand
    from equiv.emulator.reference.warps import Observer

ROW_BYTES = 16
Places = tuple[tuple[int, int, int], ...]
"""(register, lane, bit) of each element."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One matrix of an `mma`, spread over lanes.

    Attributes:
        operands: its registers.
        places: of each element, row-major, (register, lane, bit).
        width: bits of an element.
        bits: the elements, `[rows, columns]`.
    """

    operands: tuple[Operand, ...]
    places: Places
    width: int
    bits: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Multiplication:
    """D = A B + C of one `mma`: the fragments as they were read, and where D's elements go.

    Attributes:
        variant: the instruction and the architecture as `equiv.rounding.matrix.variant` takes them, a blank between.
    """

    a: Fragment
    b: Fragment
    c: Fragment
    results: tuple[Operand, ...]
    variant: str


def _places(rows: int, columns: int, at: Callable[[int, int], tuple[int, int, int]]) -> Places:
    return tuple(at(row, column) for row in range(rows) for column in range(columns))


def a_places(k: int, width: int) -> Places:
    """Of each element of A `[16, k]` the register, lane and bit that hold it; registers hold 32 bits."""
    each = 32 // width

    def at(row: int, column: int) -> tuple[int, int, int]:
        high, left = divmod(column, 4 * each)
        return row // 8 + 2 * high, row % 8 * 4 + left // each, left % each * width

    return _places(16, k, at)


def b_places(k: int, width: int) -> Places:
    """The same of B `[k, 8]`."""
    each = 32 // width

    def at(row: int, column: int) -> tuple[int, int, int]:
        high, left = divmod(row, 4 * each)
        return high, column * 4 + left // each, left % each * width

    return _places(k, 8, at)


def c_places(width: int) -> Places:
    """The same of C and D `[16, 8]`: float32, or two f16 in a register."""

    def at(row: int, column: int) -> tuple[int, int, int]:
        lane = row % 8 * 4 + column // 2
        if width == 32:
            return row // 8 * 2 + column % 2, lane, 0
        return row // 8, lane, column % 2 * 16

    return _places(16, 8, at)


def _read(warp: Warp, operands: tuple[Operand, ...], places: Places, width: int, shape: tuple[int, int]) -> Fragment:
    values = [Step.read(warp, one) for one in operands]
    elements = [values[register][lane] >> bit & (1 << width) - 1 for register, lane, bit in places]
    dtype = {8: np.uint8, 16: np.uint16, 32: np.uint32}[width]
    return Fragment(operands, places, width, np.array(elements, dtype).reshape(shape))


def multiply(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`mma.sync` with 16 rows and 8 columns.

    Raises:
        FaultError: not all lanes.
    """
    whole_warp(mask)
    opcode = step.instruction.opcode
    model = matrix.variant(opcode, warp.grid.arch)
    k, width = model.k, model.a.dtype.itemsize * 8
    out = model.result.format.width
    split = [tuple(one for one in step.sources if one.name[0] == name) for name in "abc"]
    one = Multiplication(
        _read(warp, split[0], a_places(k, width), width, (16, k)),
        _read(warp, split[1], b_places(k, width), width, (k, 8)),
        _read(warp, split[2], c_places(out), out, (16, 8)),
        step.results,
        f"{opcode} {warp.grid.arch}",
    )
    d = matrix.fused_dot(model, one.a.bits, one.b.bits, one.c.bits)
    values = [[0] * LANES for _ in step.results]
    for value, (register, lane, bit) in zip(d.reshape(-1).tolist(), c_places(out), strict=True):
        values[register][lane] |= value << bit
    for operand, lanes in zip(step.results, values, strict=True):
        step.write(warp, operand, lanes, mask)
    if observer is not None:
        observer.multiplied(warp, one)


def load(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`ldmatrix.m8n8.b16`: lane 8 i + j says where row j of matrix i lies; lane l gets two elements of row l / 4.

    With `.trans` it gets two of column l / 4.

    Raises:
        FaultError: not all lanes, or an address.
    """
    opcode = step.instruction.opcode
    whole_warp(mask)
    name = next(one.name for one in step.sources if one.kind in {"address", "special"})
    space, at = addresses(warp, step, name)
    rows = [spaces.place(warp, space, lane, at[lane], ROW_BYTES, write=False) for lane in range(8 * len(step.results))]
    transposed = ".trans" in opcode
    for i, operand in enumerate(step.results):
        picked: list[list[tuple[Place, int]]] = []
        for lane in range(LANES):
            first, second = lane // 4, 2 * (lane % 4)
            cells = [(second, first), (second + 1, first)] if transposed else [(first, second), (first, second + 1)]
            picked.append([(rows[8 * i + row], 2 * column) for row, column in cells])
        data = [
            b"".join(spaces.read(warp, spaces.Place(one.owner, one.number, one.at + byte), 2) for one, byte in pieces)
            for pieces in picked
        ]
        step.write(warp, operand, [int.from_bytes(one, "little") for one in data], mask)
        if observer is not None:
            for lane, pieces in enumerate(picked):
                observer.assembled(warp, operand, lane, pieces, data[lane])


def store(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`stmatrix.m8n8.b16`: the other way round.

    Raises:
        FaultError: not all lanes, or an address.
    """
    opcode = step.instruction.opcode
    whole_warp(mask)
    address = next(one for one in step.sources if one.kind in {"address", "special"})
    values = [one for one in step.sources if one.kind in {"reg", "imm"}]
    space, at = addresses(warp, step, address.name)
    rows = [spaces.place(warp, space, lane, at[lane], ROW_BYTES, write=True) for lane in range(8 * len(values))]
    for i, operand in enumerate(values):
        read = step.read(warp, operand)
        for row, column in ((row, column) for row in range(8) for column in range(8)):
            first, second = (column, row) if ".trans" in opcode else (row, column)
            lane, half = 4 * first + second // 2, second % 2
            whole = rows[8 * i + row]
            cell = spaces.Place(whole.owner, whole.number, whole.at + 2 * column)
            data = (read[lane] >> 16 * half & 0xFFFF).to_bytes(2, "little")
            spaces.write(warp, cell, data)
            if observer is not None:
                observer.scattered(warp, operand, lane, cell, data, at=2 * half)


def transpose(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`movmatrix.m8n8.trans.b16`: element (i, j) goes to where (j, i) was."""
    whole_warp(mask)
    given = step.source(warp, "a")
    moved = [0] * LANES
    for row, column in ((row, column) for row in range(8) for column in range(8)):
        value = given[4 * column + row // 2] >> 16 * (row % 2) & 0xFFFF
        moved[4 * row + column // 2] |= value << 16 * (column % 2)
    put_results(step, warp, mask, d=moved)
