"""Which registers an instruction reads and writes, basic blocks, and what is live at the end of each.

Only register dataflow: memory is not looked at. A register is written by being the first operand (all of it, for a vector
or a `d|p` pair) unless the opcode is in `_NO_DESTINATION`; accumulators of `wgmma.mma_async` are read and written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.emulator.ptx import Instruction, Kernel, Operand, Pair, Register, Symbol, Vector
from equiv.emulator.ptx_emitter import operand_registers

if TYPE_CHECKING:
    from collections.abc import Iterator

# Opcodes whose first operand can be a register that they only read. Where it is an address (stores, copies) nothing is
# written either, which needs no entry.
_NO_DESTINATION = ("bar.sync", "bar.arrive", "bar.warp", "barrier.", "bra", "brx", "nanosleep", "setmaxnreg", "stackrestore",
                   "tcgen05.dealloc")  # fmt: skip
_READ_AND_WRITTEN = ("wgmma.mma_async",)
_PURE = frozenset(
    "abs add and bfe bfi brev clz copysign cvt cvta div ex2 fma fns lg2 lop3 mad mad24 max min mov mul mul24 neg not or popc "
    "prmt rcp rem rsqrt sad selp set setp shf shl shr sqrt sub tanh xor".split()  # noqa: SIM905 - a word list
)
_ENDS_BLOCK = frozenset({"bra", "brx", "ret", "exit", "trap"})


def written(instruction: Instruction) -> tuple[str, ...]:
    """Names of the registers that the instruction writes."""
    if not instruction.operands or instruction.opcode.startswith(_NO_DESTINATION):
        return ()
    first = instruction.operands[0]
    return tuple(operand_registers(first)) if isinstance(first, Register | Vector | Pair) else ()


def read(instruction: Instruction) -> tuple[str, ...]:
    """Names of the registers that the instruction reads, the guard among them, with repetitions."""
    operands: tuple[Operand, ...] = instruction.operands
    if written(instruction) and not instruction.opcode.startswith(_READ_AND_WRITTEN):
        operands = operands[1:]
    names = [] if instruction.guard is None else [instruction.guard]
    for operand in operands:
        names += operand_registers(operand)
    return tuple(names)


@dataclass(slots=True)
class Block:
    """A basic block: instructions `start` to `end` - 1, and the registers whose values are still needed after it."""

    start: int
    end: int
    live_out: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def blocks(kernel: Kernel) -> list[Block]:
    """The basic blocks in order. A label that no branch names starts none."""
    instructions = kernel.instructions
    starts = {0}
    for index, one in enumerate(instructions):
        head = one.opcode.split(".")[0]
        if head in _ENDS_BLOCK:
            starts.add(index + 1)
            starts.update(kernel.labels[label] for label in _targets(kernel, one))
    edges = sorted(start for start in starts if start < len(instructions))
    found = [Block(start, end) for start, end in zip(edges, [*edges[1:], len(instructions)], strict=True)]
    _find_live_out(kernel, found)
    return found


def _targets(kernel: Kernel, instruction: Instruction) -> tuple[str, ...]:
    """Labels that a branch may go to."""
    head = instruction.opcode.split(".")[0]
    if head not in {"bra", "brx"}:
        return ()
    last = instruction.operands[-1]
    assert isinstance(last, Symbol)
    return kernel.branch_targets[last.name] if head == "brx" else (last.name,)


def _find_live_out(kernel: Kernel, found: list[Block]) -> None:
    at_start = {block.start: number for number, block in enumerate(found)}
    followers: list[list[int]] = []
    needs: list[set[str]] = []
    kills: list[set[str]] = []
    for number, block in enumerate(found):
        need: set[str] = set()
        kill: set[str] = set()
        for index in block:
            one = kernel.instructions[index]
            need.update(name for name in read(one) if name not in kill)
            if one.guard is None:
                kill.update(written(one))
        needs.append(need)
        kills.append(kill)
        last = kernel.instructions[block.end - 1]
        next_blocks = [
            at_start[kernel.labels[label]] for label in _targets(kernel, last) if kernel.labels[label] in at_start
        ]
        falls_through = last.guard is not None or last.opcode.split(".")[0] not in _ENDS_BLOCK
        if falls_through and number + 1 < len(found):
            next_blocks.append(number + 1)
        followers.append(next_blocks)
    live_in: list[set[str]] = [set() for _ in found]
    live_out: list[set[str]] = [set() for _ in found]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(found))):
            out = set().union(*(live_in[follower] for follower in followers[number]))
            now = needs[number] | (out - kills[number])
            if out != live_out[number] or now != live_in[number]:
                live_out[number], live_in[number], changed = out, now, True
    for block, names in zip(found, live_out, strict=True):
        block.live_out = frozenset(names)


def dead(kernel: Kernel) -> frozenset[int]:
    """Indices of arithmetic instructions whose results no other instruction uses, directly or through dead ones."""
    uses: Counter[str] = Counter()
    writers: dict[str, list[int]] = {}
    for index, one in enumerate(kernel.instructions):
        uses.update(read(one))
        for name in written(one):
            writers.setdefault(name, []).append(index)
    found: set[int] = set()
    waiting = [index for name, places in writers.items() if not uses[name] for index in places]
    while waiting:
        index = waiting.pop()
        one = kernel.instructions[index]
        if index in found or one.opcode.split(".")[0] not in _PURE or any(uses[name] for name in written(one)):
            continue
        found.add(index)
        for name in read(one):
            uses[name] -= 1
            if not uses[name]:
                waiting += writers.get(name, ())
    return frozenset(found)
