"""The mutants of one kernel of one image, and those among them that cannot matter.

Recognised as equivalent: what decodes to the same handler and arguments; a change of an instruction whose result
nothing needs (strong liveness over registers), or a cache policy alone; bytes packed from registers that nothing
writes, which a compiler left open; a jump to the next instruction left out; a wait for more groups of asynchronous
operations than before; another rounding of an integer conversion that is exact; what `equiv.mutate.ranges` proves from
the bits a register can have, and `equiv.mutate.threads` by computing for every thread what depends on its number alone
and by following the change to where it could be seen.
Left out as invisible: what the emulator executes nothing of, and the jump back to a wait (`Target.polls`). Not
recognised: anything that takes knowledge of inputs (an addition that happens to be exact, a subnormal that never
comes); people say those in `equiv.mutate.argued`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from equiv.emulator import backend, contraction, engine, ptx_parser
from equiv.emulator.dataflow import blocks, read, written
from equiv.emulator.decode import ARCHITECTURES, Decoder
from equiv.emulator.inline import inline
from equiv.emulator.ptx import Immediate, Symbol
from equiv.emulator.ptx_emitter import spelt
from equiv.emulator.variables import place
from equiv.errors import UnknownInstructionError
from equiv.mutate.operators import BY_NAME, NOTHING, orders
from equiv.mutate.ranges import Ranges
from equiv.mutate.threads import ByThread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from equiv.emulator.bytecode import Decoded
    from equiv.emulator.ptx import Instruction, Kernel, Module
    from equiv.emulator.store import Image

_EXACT = frozenset(
    f"{target}.{source}"
    for target, most in (("f32", 16), ("f64", 32))
    for source in ("u8", "s8", "u16", "s16", "u32", "s32")
    if int(source[1:]) <= most
)
"""Conversions of integers (target.source) that never round."""


_LEAP = 8
"""Instructions ahead that a branch leads to which only lets some threads arrive at a barrier, or wait."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed instruction.

    Attributes:
        image: digest of the image; kernel: name of the kernel in it.
        index: of the instruction in the contracted kernel.
        source: (file, line) of the kernel's source, of a branch that of its condition if that has one; None where the
            PTX does not say.
        near: of what the compiler made itself the last line before it that the PTX names (`Instruction.near`).
        equivalent: why it cannot matter, or "".
        invisible: whether the emulator executes nothing here with or without the change.
    """

    image: str
    kernel: str
    index: int
    operator: str
    before: Instruction
    after: Instruction
    source: tuple[str, int] | None = None
    near: tuple[str, int] | None = None
    equivalent: str = ""
    invisible: bool = False

    @property
    def change(self) -> str:
        """Both instructions as PTX."""
        now = "(deleted)" if self.after.opcode == NOTHING[0] else spelt(self.after)
        return f"{spelt(self.before)} -> {now}"


class Target:
    """A kernel of an image as it is executed: contracted, calls put in place.

    Attributes:
        program: the sound one.
        kernel: its instructions; mutants are made of these.
    """

    def __init__(self, image: Image, name: str) -> None:
        self.image = image
        self.name = name
        self.arch = image.arch
        module = contraction.contract_all(ptx_parser.parse(image.ptx), name)
        self.kernel: Kernel = inline(module, module.kernels[name])
        self._module: Module = module
        self.program = engine.build(module, self.kernel, self.arch)
        symbols = {one.name: ("param", one.offset) for one in self.kernel.params}
        symbols |= place(module, self.kernel).offsets
        symbols |= {one.name: (one.space, 0) for one in (*module.variables, *self.kernel.variables)
                    if one.space in {"global", "const"}}  # fmt: skip
        self._decoder = Decoder(self.kernel, ARCHITECTURES[self.arch], symbols)

    def decoded(self, one: Instruction) -> Decoded | None:
        """The instruction as the engine would take it, or None if the table does not know it."""
        try:
            return self._decoder.decode(one)
        except UnknownInstructionError:  # the question was whether it is known
            return None

    def build(self, mutant: Mutant) -> engine.Program:
        """The kernel with the mutant's instruction in place."""
        code = list(self.kernel.instructions)
        code[mutant.index] = mutant.after
        return engine.build(self._module, replace(self.kernel, instructions=tuple(code)), self.arch)

    @cached_property
    def makers(self) -> dict[str, Instruction]:
        """Register -> the only instruction that writes it."""
        count = Counter(name for one in self.kernel.instructions for name in written(one))
        return {name: one for one in self.kernel.instructions for name in written(one) if count[name] == 1}

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Register -> indices of the instructions that read it."""
        found: dict[str, list[int]] = {}
        for index, one in enumerate(self.kernel.instructions):
            for name in set(read(one)):
                found.setdefault(name, []).append(index)
        return found

    def orders(self, index: int) -> bool:
        """Whether an instruction orders accesses, initialises what does, leaps over such a one, or serves these."""
        return index in self._ordering

    @cached_property
    def _ordering(self) -> frozenset[int]:
        code = self.kernel.instructions
        found = {index for index, one in enumerate(code) if orders(one) or one.opcode.startswith("mbarrier.")}
        served = {index for index in found if code[index].opcode.startswith("mbarrier.")}
        for index, one in enumerate(code):
            target = one.operands[-1] if one.opcode.startswith("bra") and one.guard is not None else None
            end = self.kernel.labels[target.name] if isinstance(target, Symbol) else 0
            if index < end <= index + _LEAP and not found.isdisjoint(range(index + 1, end)):
                served.add(index)
        found |= served
        for index, one in enumerate(code):
            uses = {use for name in written(one) for use in self.readers.get(name, ())}
            if uses and uses <= served:
                found.add(index)
        return frozenset(found)

    @cached_property
    def ranges(self) -> Ranges:
        """What is known of registers."""
        variables = (*self._module.variables, *self.kernel.variables)
        aligned = {one.name: one.align for one in variables if one.space == "shared"}
        return Ranges(self.kernel, self.makers, self.readers, aligned)

    @cached_property
    def polls(self) -> frozenset[int]:
        """Indices of jumps back to a wait that was in vain: the emulator parks who waits, and none is.

        Only of those that nothing else leads to.
        """
        found = []
        entered = set(self.kernel.labels.values())
        for index in range(2, len(self.kernel.instructions)):
            wait, leave, again = self.kernel.instructions[index - 2 : index + 1]
            target = again.operands[-1] if again.opcode.startswith("bra") and again.guard is None else None
            waits = wait.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait"))
            leaves = leave.opcode.startswith("bra") and leave.guard in written(wait) and not leave.guard_negated
            back = isinstance(target, Symbol) and self.kernel.labels[target.name] == index - 2
            if waits and leaves and back and not entered & {index - 1, index}:
                found.append(index)
        return frozenset(found)

    @cached_property
    def by_thread(self) -> ByThread:
        """What depends on the thread's number alone."""
        return ByThread(self.kernel, self.makers, self.readers)

    @cached_property
    def dead(self) -> frozenset[int]:
        """Indices of instructions whose results nothing needs."""
        return frozenset(index for block in blocks(self.kernel) for index in block.dead)

    def mutants(self, operators: tuple[str, ...]) -> Iterator[Mutant]:
        """All mutants by these operators, no two alike, in the order of the code; their handlers are compiled."""
        found = []
        shapes = set()
        for index, one in enumerate(self.kernel.instructions):
            original = self.decoded(one)
            assert original is not None, one
            seen = set()
            for name in operators:
                for after in BY_NAME[name](one, lambda other: self.decoded(other) is not None, self.makers):
                    changed = self.decoded(after)
                    if changed is None or after == one or (after.opcode, after.operands, after.guard_negated) in seen:
                        continue
                    seen.add((after.opcode, after.operands, after.guard_negated))
                    if changed.shape is not None:
                        shapes.add(changed.shape)
                    invisible = (original.shape is None and changed.shape is None) or index in self.polls
                    why = "" if invisible else self._equivalent(index, one, after, same=_same(original, changed))
                    places = (self.image.digest, self.name, index, name)
                    shown = self._decides(one)
                    found.append(Mutant(*places, one, after, shown.source, shown.near, why, invisible))
        backend.handlers(shapes)
        yield from found

    def _hints(self, one: Instruction) -> bool:
        """Whether all that reads what an instruction makes takes it for a cache policy."""
        made = written(one)
        alone = bool(made) and all(self.makers.get(name) is one for name in made)
        uses = [(use, name) for name in made for use in self.readers.get(name, ())] if alone else []
        return bool(uses) and all(_hinted(self.kernel.instructions[use], name) for use, name in uses)

    def _open(self, one: Instruction) -> bool:
        """Whether an instruction packs nothing but registers that the kernel never writes."""
        given = read(one)
        packs = one.opcode.startswith("prmt.") and one.guard is None
        return packs and bool(given) and self._written.isdisjoint(given)

    @cached_property
    def _written(self) -> frozenset[str]:
        return frozenset(name for one in self.kernel.instructions for name in written(one))

    def _decides(self, one: Instruction) -> Instruction:
        """The instruction itself, or what makes the condition of a branch if the PTX says which line that is from."""
        decides = self.makers.get(one.guard or "") if one.opcode.startswith("bra") else None
        return one if decides is None or decides.source is None or not decides.source[1] else decides

    def _equivalent(self, index: int, one: Instruction, after: Instruction, *, same: bool) -> str:
        if same and one.guard_negated == after.guard_negated:
            return "the same code"
        if index in self.dead:
            return "its result is not needed"
        if self._hints(one):
            return "only a cache policy depends on it"
        if self._open(one):
            return "it packs registers that nothing writes"
        target = one.operands[-1] if one.opcode.startswith("bra") else None
        if isinstance(target, Symbol) and self.kernel.labels[target.name] == index + 1:
            return "a jump to the next instruction"
        if _waits_longer(one, after):
            return "it waits for more groups, which need nothing from who waits"
        words = one.opcode.split(".")
        if words[0] == "cvt" and ".".join(words[-2:]) in _EXACT and after.opcode.startswith("cvt."):
            return "the conversion is exact"
        return self.ranges.equivalent(one, after) or self.by_thread.equivalent(index, one, after)


def _waits_longer(one: Instruction, after: Instruction) -> bool:
    """Whether both wait for groups of asynchronous operations, the second for no fewer of them."""
    if ".wait_group" not in one.opcode or one.opcode != after.opcode:
        return False
    (may_run,), (may_still_run,) = one.operands, after.operands
    return (
        isinstance(may_run, Immediate) and isinstance(may_still_run, Immediate) and may_still_run.bits <= may_run.bits
    )


def _hinted(one: Instruction, name: str) -> bool:
    """Whether all that an instruction reads a register for is a cache policy."""
    return "L2::cache_hint" in one.opcode and name not in read(replace(one, operands=one.operands[:-1]))


def _same(one: Decoded, other: Decoded) -> bool:
    if one.shape is None or other.shape is None:
        return False
    return one.shape.name == other.shape.name and one.places == other.places
