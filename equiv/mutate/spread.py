"""How a change of one instruction spreads over registers, thread by thread, up to where it could be seen.

A register may hold another value for some threads, and what is computed from it may, too. That goes on until a thread
that has another value leaves arithmetic with it: an address, a condition, a shuffle, a store. If no thread ever does,
the change cannot matter. Where both values are known they are compared; a selection by a known predicate takes over
what its own side has; an `and` with 0, and an `or` with all ones, take over nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.dataflow import is_pure, read, written
from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.ptx import Negated, Register
from equiv.mutate.evaluate import computed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.emulator.ptx import Instruction, Kernel, Operand
    from equiv.mutate.evaluate import Values
    from equiv.mutate.threads import ByThread, Threads

_STEPS = 4000
"""Readers that are looked at."""


class Spread:
    """What one change does to the registers of a kernel. `makers`, `readers`: as of a `Target`."""

    def __init__(
        self,
        threads: ByThread,
        kernel: Kernel,
        makers: Mapping[str, Instruction],
        readers: Mapping[str, Sequence[int]],
    ) -> None:
        self._threads = threads
        self._kernel = kernel
        self._makers = makers
        self._readers = readers
        self._differs: dict[str, Threads] = {}  # threads for which a register may hold another value
        self._now: dict[str, Values] = {}  # what it holds instead, where that is known

    def vanishes(self, index: int, old: Values | None, new: Values | None) -> bool:
        """Whether nothing is to be seen if instruction `index` makes `new` of what was `old`; None: not known."""
        made = written(self._kernel.instructions[index])
        reaching = self._threads.reaching[index]
        differs = reaching if old is None or new is None else reaching & (old != new)
        for name in made:
            self._differs[name] = differs
            if new is not None:
                self._now[name] = new
        waiting = [name for name in made if differs.any()]
        for _ in range(_STEPS):
            if not waiting:
                return True
            for at in self._readers.get(waiting.pop(), ()):
                further = self._passed(at)
                if further is None:
                    return False
                waiting += further
        return False

    def _passed(self, at: int) -> list[str] | None:
        """Registers that a reader brings the difference to, or to more threads than before; None: it can be seen."""
        one, reaching = self._kernel.instructions[at], self._threads.reaching[at]
        differs = np.zeros(self._threads.count, np.bool_)
        for name in read(one):
            differs |= self._differs.get(name, False)
        differs &= reaching
        if not differs.any():
            return []
        if not is_pure(one):
            return None
        made = written(one)
        new = None
        if len(made) == 1 and self._makers.get(made[0]) is one and one.guard is None:
            was, new = self._threads.value(Register(made[0])), self._computed(one)
            if was is not None and new is not None:
                differs = reaching & (was != new)
        differs = self._chosen(one, differs)
        more = [name for name in made if (differs & ~self._differs.get(name, np.zeros_like(differs))).any()]
        for name in made:
            self._differs[name] = self._differs.get(name, np.zeros_like(differs)) | differs
            if new is not None:
                if name not in more and not np.array_equal(self._now.get(name, new), new):
                    more.append(name)
                self._now[name] = new
            else:
                self._now.pop(name, None)
        return more

    def _chosen(self, one: Instruction, differs: Threads) -> Threads:
        """The threads among these for which the result takes over what differs."""
        base = one.opcode.partition(".")[0]
        if base == "selp":
            which = self._sure(one.operands[3])
            if which is not None:
                sides = [self._differing(operand) for operand in one.operands[1:3]]
                return differs & np.where(which & np.uint64(1) != 0, sides[0], sides[1])
        if base in {"and", "or"}:
            ones = np.uint64((1 << TYPE_BITS[one.opcode.rpartition(".")[2]]) - 1)
            for operand in one.operands[1:]:
                value = self._sure(operand)
                if value is not None:
                    differs = differs & (value & ones != (0 if base == "and" else ones))
        return differs

    def _differing(self, operand: Operand) -> Threads:
        nobody = np.zeros(self._threads.count, np.bool_)
        name = operand.register.name if isinstance(operand, Negated) else getattr(operand, "name", "")
        return self._differs.get(name, nobody) if isinstance(operand, Register | Negated) else nobody

    def _sure(self, operand: Operand) -> Values | None:
        """The known values of what does not differ."""
        return None if self._differing(operand).any() else self._threads.value(operand)

    def _computed(self, one: Instruction) -> Values | None:
        given: list[Values | None] = []
        for operand in one.operands[1:]:
            if not self._differing(operand).any():
                given.append(self._threads.value(operand))
            elif isinstance(operand, Register):
                given.append(self._now.get(operand.name))
            else:
                given.append(None)
        return computed(one, given, self._threads.count)
