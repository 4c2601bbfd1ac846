"""Which registers an instruction reads and writes, basic blocks, and what is live at the end of each.

Only register dataflow: memory is not looked at. A register is written by being the first operand (all of it, for a
vector or a `d|p` pair) unless the opcode is in `_NO_DESTINATION`; accumulators of `wgmma` are read and written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equiv.emulator.ptx import Instruction, Kernel, Operand, Pair, Register, Symbol, Vector
from equiv.emulator.ptx_emitter import operand_registers

# Opcodes whose first operand can be a register that they only read. Where it is an address (stores, copies) nothing is
# written either, which needs no entry.
_NO_DESTINATION = (
    "bar.sync", "bar.arrive", "bar.warp", "barrier.", "bra", "brx", "nanosleep", "setmaxnreg", "stackrestore",
    "tcgen05.dealloc",
)  # fmt: skip
_READ_AND_WRITTEN = ("wgmma.mma_async",)
_PURE = frozenset({
    "abs", "add", "and", "bfe", "bfi", "brev", "clz", "copysign", "cvt", "cvta", "div", "ex2", "fma", "fns",
    "lg2", "lop3", "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rcp",
    "rem", "rsqrt", "sad", "selp", "set", "setp", "shf", "shl", "shr", "sqrt", "sub", "tanh", "xor",
})  # fmt: skip
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


def is_pure(instruction: Instruction) -> bool:
    """Whether an instruction does nothing but compute its registers from those of its own thread."""
    return instruction.opcode.partition(".")[0] in _PURE and ".cc." not in instruction.opcode  # the carry, too


@dataclass(slots=True)
class Block:
    """A basic block: instructions `start` to `end` - 1.

    Attributes:
        live_out: registers whose values are still needed after it.
        dead: indices of its arithmetic instructions whose results nothing needs.
    """

    start: int
    end: int
    live_out: frozenset[str] = frozenset()
    dead: set[int] = field(default_factory=set)

    @property
    def indices(self) -> range:
        """Indices of its instructions."""
        return range(self.start, self.end)


def blocks(kernel: Kernel) -> list[Block]:
    """The basic blocks in order, with what is live. A label that no branch names starts none."""
    found = split(kernel)
    _find_live(kernel, found)
    return found


def split(kernel: Kernel) -> list[Block]:
    """The basic blocks in order, without what is live."""
    instructions = kernel.instructions
    starts = {0}
    for index, one in enumerate(instructions):
        head = one.opcode.split(".")[0]
        if head in _ENDS_BLOCK:
            starts.add(index + 1)
            starts.update(kernel.labels[label] for label in _targets(kernel, one))
        elif head == "call":  # ptxas fuses nothing across it
            starts.add(index + 1)
    edges = sorted(start for start in starts if start < len(instructions))
    return [Block(start, end) for start, end in zip(edges, [*edges[1:], len(instructions)], strict=True)]


def followers(kernel: Kernel, found: list[Block]) -> list[list[int]]:
    """For each block the numbers of those that may come next; where it falls through, that one is last."""
    at_start = {block.start: number for number, block in enumerate(found)}
    result: list[list[int]] = []
    for number, block in enumerate(found):
        last = kernel.instructions[block.end - 1]
        targets = [kernel.labels[label] for label in _targets(kernel, last)]
        next_blocks = [at_start[index] for index in targets if index in at_start]
        falls_through = last.guard is not None or last.opcode.split(".")[0] not in _ENDS_BLOCK
        if falls_through and number + 1 < len(found):
            next_blocks.append(number + 1)
        result.append(next_blocks)
    return result


def _targets(kernel: Kernel, instruction: Instruction) -> tuple[str, ...]:
    """Labels that a branch may go to."""
    head = instruction.opcode.split(".")[0]
    if head not in {"bra", "brx"}:
        return ()
    last = instruction.operands[-1]
    assert isinstance(last, Symbol)
    return kernel.branch_targets[last.name] if head == "brx" else (last.name,)


def _find_live(kernel: Kernel, found: list[Block]) -> None:
    """Strong liveness, backwards to a fixed point: what only dead arithmetic reads is not needed."""
    following = followers(kernel, found)
    leaves = [
        not next_blocks or kernel.instructions[block.end - 1].opcode.startswith("ret")
        for block, next_blocks in zip(found, following, strict=True)
    ]
    facts = [(written(one), read(one), is_pure(one), one.guard) for one in kernel.instructions]
    live_in: list[set[str]] = [set() for _ in found]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(found))):
            block = found[number]
            live = set(kernel.results) if leaves[number] else set()
            live.update(*(live_in[follower] for follower in following[number]))
            block.live_out = frozenset(live)
            block.dead = set()
            for index in reversed(block.indices):
                writes, reads, pure, guard = facts[index]
                if pure and writes and live.isdisjoint(writes):
                    block.dead.add(index)
                    continue
                if guard is None:
                    live.difference_update(writes)
                live.update(reads)
            if live != live_in[number]:
                live_in[number], changed = live, True
