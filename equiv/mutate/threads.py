"""What depends on the thread's number alone, computed for every thread, and the mutants that this proves equivalent.

Which threads get to an instruction follows from branches whose conditions are known in the same way. A change cannot
matter if no thread that gets there ends up with another value in whatever leaves its registers (`equiv.mutate.spread`).
Values are known of instructions without a guard that are the only ones to write their register.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from equiv.emulator.dataflow import followers, is_pure, split, written
from equiv.emulator.ptx import Immediate, Instruction, Negated, Operand, Register, Special, Symbol
from equiv.mutate.evaluate import WARP, Values, computed, lanes
from equiv.mutate.operators import NOTHING
from equiv.mutate.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.emulator.ptx import Kernel

Threads = npt.NDArray[np.bool_]
_DEEP = 40
"""Instructions that are looked through."""


class ByThread:
    """Facts about one kernel. `makers`, `readers`: as of a `Target`."""

    def __init__(self, kernel: Kernel, makers: Mapping[str, Instruction], readers: Mapping[str, Sequence[int]]) -> None:
        self._kernel = kernel
        self._makers = makers
        size = kernel.directives.get("reqntid", ())
        self.count = size[0] if size and all(axis == 1 for axis in size[1:]) and size[0] % WARP == 0 else 0
        self._known: dict[str, Values | None] = {}
        self._readers = readers

    def equivalent(self, index: int, one: Instruction, after: Instruction) -> str:
        """Why a change of instruction `index` cannot matter, or ""."""
        if not self.count:
            return ""
        gone = after.opcode == NOTHING[0]
        if not self.reaching[index].any():
            return "no thread gets there"
        if one.opcode.startswith("bra") and one.guard is not None and gone:
            taken = self.value(Register(one.guard))
            if taken is not None and not ((taken != 0) ^ one.guard_negated)[self.reaching[index]].any():
                return "no thread takes the branch"
        target = written(one)
        if not target or one.guard is not None or not (gone or one.operands[0] == after.operands[0]):
            return ""
        shuffles = not gone and all(made.opcode.startswith("shfl.sync.") for made in (one, after))
        if shuffles and len(target) == 1 and one.operands[:2] == after.operands[:2]:
            was, now = (lanes(given, self.inputs(given)) for given in (one, after))
            if was is not None and now is not None:
                if self._same(index, was, now):
                    return "every lane gets the value of the same one"
                if self._uniform(one.operands[1]):
                    return "every lane has the same value"
        alone = shuffles and one.operands[-1] == after.operands[-1]  # the same lanes take part
        if not alone and not (is_pure(one) and (gone or is_pure(after))):
            return ""
        same = self._vanishes(index, one, None if gone else after)
        return "no thread that gets there has another value" if same else ""

    def _vanishes(self, index: int, one: Instruction, after: Instruction | None) -> bool:
        """Whether the change comes to nothing that leaves a thread's registers; no `after`: anything may be there."""
        made = written(one)
        known = len(made) == 1 and self._makers.get(made[0]) is one
        old = computed(one, self.inputs(one), self.count) if known else None
        new = computed(after, self.inputs(after), self.count) if after is not None and old is not None else None
        return Spread(self, self._kernel, self._makers, self._readers).vanishes(index, old, new)

    def _uniform(self, operand: Operand, depth: int = 0) -> bool:
        """Whether all threads of a CTA have the same value there, whatever it is."""
        if isinstance(operand, Immediate | Symbol):
            return True
        maker = self._makers.get(operand.name) if isinstance(operand, Register) else None
        if maker is None or maker.guard is not None or depth > _DEEP:
            return False
        plain = maker.opcode.partition(".")[0] in {"mov", "add", "sub", "mul", "mad", "shl", "shr", "and", "or"}
        return plain and all(self._uniform(one, depth + 1) for one in maker.operands[1:])

    def _same(self, index: int, one: Values, other: Values) -> bool:
        return not (one != other)[self.reaching[index]].any()

    def inputs(self, one: Instruction) -> list[Values | None]:
        """The values of all operands but the first."""
        return [self.value(operand) for operand in one.operands[1:]]

    def value(self, operand: Operand, depth: int = 0) -> Values | None:
        """Of every thread; None where it depends on anything but the thread's number."""
        if isinstance(operand, Immediate):
            return np.full(self.count, operand.bits, np.uint64)
        if isinstance(operand, Special):
            threads = np.arange(self.count, dtype=np.uint64)
            known = {"%tid.x": threads, "%laneid": threads % WARP, "%tid.y": threads * 0, "%tid.z": threads * 0}
            return known.get(operand.name)
        if isinstance(operand, Negated):
            value = self.value(operand.register, depth)
            return None if value is None else value ^ np.uint64(1)
        if not isinstance(operand, Register) or depth > _DEEP:
            return None
        if operand.name not in self._known:
            self._known[operand.name] = None  # a register that is made of itself is not known
            maker = self._makers.get(operand.name)
            if maker is not None and maker.guard is None and len(written(maker)) == 1:
                given = [self.value(one, depth + 1) for one in maker.operands[1:]]
                self._known[operand.name] = computed(maker, given, self.count)
        return self._known[operand.name]

    @cached_property
    def reaching(self) -> list[Threads]:
        """Which threads may come to each instruction."""
        blocks = split(self._kernel)
        following = followers(self._kernel, blocks)
        inside = [np.zeros(self.count, np.bool_) for _ in blocks]
        inside[0][:] = True
        waiting = [0]
        while waiting:
            number = waiting.pop()
            last = self._kernel.instructions[blocks[number].end - 1]
            condition = None if last.guard is None else self.value(Register(last.guard))
            goes = None if condition is None else (condition != 0) ^ last.guard_negated
            head = last.opcode.partition(".")[0]
            for at, follower in enumerate(following[number]):
                arriving = inside[number]
                if goes is not None and head in {"bra", "ret", "exit"}:
                    falls = follower == number + 1 and at == len(following[number]) - 1
                    both = head == "bra" and len(following[number]) == 1 and falls  # a branch to the next instruction
                    arriving = arriving if both else arriving & ~goes if falls else arriving & goes
                if (arriving & ~inside[follower]).any():
                    inside[follower] |= arriving
                    waiting.append(follower)
        result: list[Threads] = []
        for block, threads in zip(blocks, inside, strict=True):
            result += [threads] * len(block.indices)
        return result
