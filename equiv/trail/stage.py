"""Where the model's values end among those that an element was made of: the row that departs, and its instruction.

The model runs once more with every execution of a ledger row kept: operands and result. An execution is recognised in
the slice of the wrong element by an instruction that reads all of its operands, bit for bit. If what follows from that
instruction soon holds the result that the model has, the row was computed as declared. If it does not, and no later
row that starts from that result ends in a value of the slice either (a kernel may fuse two rows), the row departs
there.

This is evidence and no proof: a value may occur by chance. So only elements of rows are taken that do not depend on
inputs which the element was not made of (the model runs with those disturbed), no operands that are zero, and, unless
the row was named otherwise, none that BF16 could hold. A row whose operands the kernel never holds as such (another
formula, a sum in another order) is not judged. The first row that departs, in the order of the model, is named; what is
certain is what the instruction read and made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from equiv.pairs import Pair
    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.ledger import Ledger
    from equiv.trail.slice import Slice

    Words = npt.NDArray[np.uint32]

SOON = 120
"""Nodes behind an instruction among which its row's result is looked for."""
EACH = 256
"""Elements of one execution of a row that are looked at."""
LARGEST = 1 << 22
"""Elements up to which an execution of a row is kept."""
_CHANGES = (0x15, 0x2B, 0x7F)
_MOVES = frozenset({"mov", "shfl", "ld", "st", "prmt", "selp", "cp"})


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a row by the model: operands and result `[n]`, patterns; `width`: its bits, 0: a number."""

    row: str
    operands: tuple[Words, ...]
    result: Words
    width: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The row that departs.

    Attributes:
        row: its id. value: in words. expected: what the model has. operands: what it made it of.
        node: the instruction in the slice that reads these operands.
    """

    row: str
    value: str
    expected: int
    operands: tuple[int, ...]
    node: int


@dataclass(frozen=True, slots=True)
class Model:
    """The model of a party on one case."""

    pair: Pair
    case: Case
    inputs: Mapping[str, Bits]
    declaration: Declaration
    ledger: Ledger

    def outputs(self, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
        """Logical outputs for some inputs."""
        return self.pair.model(self.case, inputs, self.declaration, self.ledger)


def executions(model: Model, others: Mapping[str, npt.NDArray[np.bool_]]) -> list[Execution]:
    """What the model computes, row by row, in order; only what does not depend on the elements `others` of inputs."""
    runs = [_executions(model, model.inputs)]
    for change in _CHANGES:
        inputs = {name: disturbed(bits, others[name], change) if name in others else bits
                  for name, bits in model.inputs.items()}  # fmt: skip
        runs.append(_executions(model, inputs))
    found = []
    for one, *changed in zip(*runs, strict=True):
        same = np.ones(one.result.shape, np.bool_)
        for other in changed:
            for ours, theirs in zip((*one.operands, one.result), (*other.operands, other.result), strict=True):
                same &= ours == theirs
        if same.any():
            operands = tuple(operand[same] for operand in one.operands)
            found.append(replace(one, operands=operands, result=one.result[same]))
    return found


def disturbed(bits: Bits, where: npt.NDArray[np.bool_], change: int) -> Bits:
    """Float patterns with some bits of the mantissa inverted, `change` of the upper seven, at some places."""
    mask = bits.dtype.type(change if bits.dtype.itemsize == 2 else change << 16 | 0x5555)
    return np.where(where, bits ^ mask, bits)


def missing(
    model: Model, others: Mapping[str, npt.NDArray[np.bool_]], output: str, index: tuple[int, ...]
) -> tuple[str, ...]:
    """Inputs that an element depends on by the model, by elements of `others`."""
    sound = model.outputs(model.inputs)[output][index]
    found = []
    for name, where in others.items():
        changed = {**model.inputs, name: disturbed(model.inputs[name], where, _CHANGES[0])}
        if where.any() and model.outputs(changed)[output][index] != sound:
            found.append(name)
    return tuple(found)


def unread(some: Slice) -> dict[str, npt.NDArray[np.bool_]]:
    """Of each float input the elements that a slice was not made of (if it is cut: that its clusters did not read)."""
    read = some.read()
    found = {}
    buffers = [(one.address, one.address + one.span) for one in some.played.scene.buffers]
    copied = any(not any(low <= address < high for low, high in buffers) for address, _ in read.tolist())
    for buffer in some.played.scene.buffers:
        spec = buffer.spec
        if spec.role == "output" or spec.sparse or spec.format not in {"bf16", "f32"} or not buffer.elements.size:
            continue
        size = buffer.elements.itemsize
        touched = np.zeros(max(buffer.span, size), np.bool_)
        inside = read[(read[:, 0] >= buffer.address) & (read[:, 0] < buffer.address + buffer.span)]
        if copied and not len(inside):
            touched[:] = True  # the host copied it to memory of its own
        for address, count in inside.tolist():
            touched[address - buffer.address : address - buffer.address + count] = True
        strides = tuple(stride * size for stride in spec.strides)
        found[spec.name] = ~np.lib.stride_tricks.as_strided(touched, spec.shape, strides)
    return found


def _executions(model: Model, inputs: Mapping[str, Bits]) -> list[Execution]:
    found: list[Execution] = []

    def tap(row: str, operands: tuple[Any, ...], result: Any) -> None:  # noqa: ANN401
        one = _execution(row, operands, result)
        if one is not None:
            found.append(one)

    model.pair.model(model.case, inputs, model.declaration, replace(model.ledger, tap=tap))
    return found


def _execution(row: str, operands: Sequence[Any], result: Any) -> Execution | None:  # noqa: ANN401
    """None if it is none of element by element, or of other things than patterns of up to 32 bits."""
    made = np.asarray(result)
    arrays = [np.asarray(one) for one in operands]
    if any(one.dtype not in {np.dtype("u2"), np.dtype("u4")} for one in arrays) or made.dtype.kind not in "ui":
        return None
    if not 0 < made.size <= LARGEST or (made.dtype.kind == "u" and made.dtype.itemsize > 4):
        return None
    varying = [one for one in arrays if one.size > 1]
    try:
        shaped = [np.broadcast_to(one, made.shape) for one in varying]
    except ValueError:
        return None
    flat = tuple(np.ascontiguousarray(one).reshape(-1).astype(np.uint32) for one in shaped)
    width = made.dtype.itemsize * 8 if made.dtype.kind == "u" else 0
    return Execution(row, flat, made.reshape(-1).astype(np.uint32), width) if flat else None


class Values:
    """The values of a slice by their bits."""

    def __init__(self, some: Slice) -> None:
        self.slice = some
        found: dict[int, list[int]] = {}
        for number, node in enumerate(some.nodes):
            for bits in parts(node.bits, node.width):
                found.setdefault(bits, []).append(number)
        self.nodes = found
        self.known = np.sort(np.array(list(found), np.uint32))

    def holds(self, bits: Words) -> npt.NDArray[np.bool_]:
        """Which patterns occur."""
        if not len(self.known):
            return np.zeros(bits.shape, np.bool_)
        at = np.minimum(np.searchsorted(self.known, bits), len(self.known) - 1)
        return np.asarray(self.known[at] == bits)

    def reader(self, operands: Sequence[int]) -> int | None:
        """A node made of all of these values; None: there is none."""
        wanted = set(operands)
        for number in self.nodes.get(operands[0], ())[:64]:
            for user in self._users(number):
                if wanted <= self.read(user):
                    return user
        return None

    def read(self, number: int) -> set[int]:
        """Patterns that a node was made of."""
        return {bits for one in self._sources(number) for bits in self._bits(one)}

    def _bits(self, number: int) -> set[int]:
        node = self.slice.nodes[number]
        return set(parts(node.bits, node.width))

    def _users(self, number: int) -> Iterator[int]:
        """What reads a value, through instructions that only move it."""
        pending, seen = deque([number]), {number}
        while pending and len(seen) < SOON:
            for user in self.slice.nodes[pending.popleft()].used:
                if user in seen:
                    continue
                seen.add(user)
                if self._moves(user):
                    pending.append(user)
                else:
                    yield user

    def _sources(self, number: int) -> Iterator[int]:
        """What an instruction read, and where that was moved from."""
        pending, seen = deque(self.slice.nodes[number].made), set[int]()
        while pending and len(seen) < SOON:
            one = pending.popleft()
            if one not in seen:
                seen.add(one)
                yield one
                if self._moves(one):
                    pending.extend(self.slice.nodes[one].made)

    def _moves(self, number: int) -> bool:
        node = self.slice.nodes[number]
        return node.view.log.instruction(node.event).opcode.split(".")[0] in _MOVES

    def soon(self, number: int, bits: int, width: int) -> bool:
        """Whether a pattern of that many bits is among what follows from a node."""
        return bits in self.following(number, width)

    def following(self, number: int, width: int) -> dict[int, list[int]]:
        """Patterns of that many bits, and which nodes hold them, of a node and those that soon follow from it."""
        pending, seen, found = deque([number]), {number}, dict[int, list[int]]()
        while pending:
            one = pending.popleft()
            node = self.slice.nodes[one]
            for bits in pieces(node.bits, node.width, width) if width < 32 else parts(node.bits, node.width):
                found.setdefault(bits, []).append(one)
            for user in node.used:
                if user not in seen and len(seen) < SOON:
                    seen.add(user)
                    pending.append(user)
        return found


def parts(bits: int, width: int) -> tuple[int, ...]:
    """The patterns that a register holds: itself, its halves; of 16 bits also the float32 whose upper half it is."""
    if width == 64:
        return bits & 0xFFFF_FFFF, bits >> 32
    if width == 32:
        return bits, bits & 0xFFFF, bits >> 16
    return (bits, bits << 16) if width == 16 else ()


def pieces(bits: int, width: int, size: int) -> set[int]:
    """All aligned patterns of `size` bits in a register."""
    return {bits >> at & (1 << size) - 1 for at in range(0, max(width, 1), size)}


def stage(some: Slice, kept: Sequence[Execution], ledger: Ledger) -> Stage | None:
    """The first row that departs, or None if none can be told."""
    values = Values(some)
    for number, one in enumerate(kept):
        for at in _present(values, one) if one.width else ():
            operands = tuple(int(operand[at]) for operand in one.operands)
            node = values.reader(operands)
            if node is None:
                continue
            expected = int(one.result[at])
            if not (values.soon(node, expected, one.width) or _healed(values, expected, one.width, kept[number + 1 :])):
                return Stage(one.row, ledger[one.row].value, expected, operands, node)
    return None


def located(some: Slice, kept: Sequence[Execution], ledger: Ledger, row: str) -> Stage | None:
    """An instruction that reads the operands of a row and that its result does not follow from, or None."""
    values = Values(some)
    for number, one in enumerate(kept):
        for at in _present(values, one, copies=True) if one.row == row else ():
            operands = tuple(int(operand[at]) for operand in one.operands)
            node = values.reader(operands)
            expected = int(one.result[at])
            if node is not None and not (one.width and _follows(values, node, one, expected, kept[number + 1 :])):
                return Stage(row, ledger[row].value, expected, operands, node)
    return None


def _present(values: Values, one: Execution, *, copies: bool = False) -> Iterable[int]:
    """Elements of an execution all of whose operands occur, none of them zero; `copies`: also those that only copy."""
    there = np.ones(one.result.shape, np.bool_)
    for operand in one.operands:
        there &= values.holds(operand) & (operand & np.uint32(0x7FFF_FFFF) != 0)
        if not copies:
            there &= (one.result != operand) & (one.result != operand << np.uint32(16))
    if not copies:  # what BF16 could hold occurs by chance
        there &= np.any([operand & np.uint32(0xFFFF) != 0 for operand in one.operands], axis=0)
    return [int(at) for at in np.flatnonzero(there)[:EACH]]


def _follows(values: Values, node: int, one: Execution, expected: int, later: Sequence[Execution]) -> bool:
    """Whether what the model has soon follows from a node, or what a later row makes of that and of what is read there.

    Stricter than what `stage` asks: that a later row's result occurs says nothing of an instruction of a row that was
    named, least of all beside scales, where values often are each other's doubles.
    """
    if values.soon(node, expected, one.width):
        return True
    held = values.following(node, 32)
    for other in later if one.width == 32 else ():
        for number, operand in enumerate(other.operands if other.width == 32 else ()):
            rest = other.operands[:number] + other.operands[number + 1 :]
            for at in np.flatnonzero(operand == np.uint32(expected))[:EACH].tolist():
                beside = {int(another[at]) for another in rest}
                if any(beside <= values.read(user) for user in held.get(int(other.result[at]), ())):
                    return True
    return False


def _healed(values: Values, bits: int, width: int, later: Sequence[Execution]) -> bool:
    """Whether a later row that starts from a value ends in one that occurs: then the kernel computes both in one."""
    for one in later:
        for operand in one.operands:
            places = np.flatnonzero(operand == np.uint32(bits))[:EACH]
            if len(places) and width == 32 and one.width == 32 and values.holds(one.result[places]).any():
                return True
    return False
