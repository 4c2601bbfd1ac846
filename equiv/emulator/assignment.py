"""Which registers a kernel may use before anything was written to them, and how to find that out in a launch.

A walk over the basic blocks finds, for every instruction, which registers hold something on all ways to it: for good or
under a predicate whose value the reader shares, be it by its guard or by the branches on the way. What is left in doubt
is followed while the kernel runs, lane by lane, by one mask a register.

Compilers compute with registers that nothing has written where the result does not matter: packs of which one half is
used, sums over a warp of which some lanes have no part. So arithmetic only passes on that it had nothing to work with;
what counts is the use of it: as an address, as data that is stored, as a predicate that decides, as an operand of a
matrix instruction. Accumulators of `wgmma` are no such use, since the instruction may be told to ignore them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from equiv.emulator.dataflow import followers, split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.emulator.bytecode import Decoded
    from equiv.emulator.ptx import Instruction, Kernel

ALL, ANY, SHUFFLE = range(3)
"""When a result holds something: all sources do, any does, or what the lane gets from another one does."""

_ANY: Final = frozenset({"mov", "selp", "prmt", "bfi", "and", "or", "lop3", "shf"})
"""Instructions that pack: half of their result may be of no interest."""

_LOGIC: Final = frozenset({"and", "or", "xor", "not", "mov"})


@dataclass(slots=True)
class Facts:
    """What holds on all ways to a place.

    Attributes:
        written: registers that hold something.
        partly: predicate -> (register, negated) of those that do where the predicate (or its negation) holds.
        known: predicates whose value is known.
    """

    written: set[str] = field(default_factory=set)
    partly: dict[str, set[tuple[str, bool]]] = field(default_factory=dict)
    known: dict[str, bool] = field(default_factory=dict)

    def copy(self) -> Facts:
        """An independent copy."""
        return Facts(set(self.written), {name: set(some) for name, some in self.partly.items()}, dict(self.known))

    def has(self, register: str, guard: str | None, *, negated: bool) -> bool:
        """Whether the register holds something wherever that guard does."""
        return register in self.written or (guard is not None and (register, negated) in self.partly.get(guard, ()))

    def assume(self, predicate: str, *, value: bool) -> None:
        """From here on the predicate has that value."""
        self.known[predicate] = value
        self.written.update(name for name, negated in self.partly.get(predicate, ()) if negated != value)

    def put(self, register: str, guard: str | None, *, negated: bool, certain: bool) -> None:
        """The register is written, with something or with nothing."""
        self.known.pop(register, None)
        self.partly.pop(register, None)
        if certain and guard is None:
            self.written.add(register)
        elif certain and guard is not None and register not in self.written:
            some = self.partly.setdefault(guard, set())
            some.add((register, negated))
            if (register, not negated) in some:
                self.written.add(register)
        elif not certain:
            self.written.discard(register)
            for name, some in self.partly.items():
                if guard is None or name != guard:
                    some -= {(register, True), (register, False)}
                else:
                    some.discard((register, negated))

    def join(self, other: Facts) -> Facts:
        """What holds after either."""
        joined = Facts(self.written & other.written)
        for mine, theirs in ((self, other), (other, self)):
            for guard, some in mine.partly.items():
                value, same = theirs.known.get(guard), theirs.partly.get(guard, ())
                kept = {one for one in some if one[0] in theirs.written or one in same or value == one[1]}
                if kept:
                    joined.partly.setdefault(guard, set()).update(kept)
            # Written on one way only, and a predicate differs between the two: it tells.
            only = mine.written - theirs.written
            for guard, value in mine.known.items() if only else ():
                if theirs.known.get(guard) == (not value):
                    joined.partly.setdefault(guard, set()).update((name, not value) for name in only)
        joined.known = {name: value for name, value in self.known.items() if other.known.get(name) == value}
        return joined


@dataclass(frozen=True, slots=True)
class Tracking:
    """What to do about tracked registers at one instruction.

    Attributes:
        reads: those that must hold something now.
        writes: those that it writes.
        sources: what decides, in the way of `mode`, whether its results hold something; none: they do.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sources: tuple[str, ...] = ()
    mode: int = ALL


def tracked(kernel: Kernel, decoded: Sequence[Decoded]) -> dict[int, Tracking]:
    """What to track, by the index of the instruction; empty if nothing is in doubt.

    Args:
        kernel: its calls inlined.
        decoded: its instructions, in their order.
    """
    doubts = _doubts(kernel, decoded)
    names = {name for index, found in doubts.items() if not _passes(decoded[index]) for name in found}
    grown = bool(names)
    while grown:
        more = {
            name
            for index, found in doubts.items()
            if _passes(decoded[index]) and not names.isdisjoint(decoded[index].outputs)
            for name in found
        }
        grown = not more <= names
        names |= more
    result = {}
    for index, one in enumerate(decoded[: len(kernel.instructions)] if names else ()):
        doubtful, writes = doubts.get(index, frozenset()), tuple(sorted(one.outputs & names))
        if not _passes(one):
            tracking = Tracking(tuple(sorted(doubtful)), writes)
        else:
            certain = _certain(one, doubtful)
            tracking = Tracking((), writes, () if certain else tuple(sorted(doubtful & one.inputs)), _mode(one))
        if tracking.reads or tracking.writes:
            result[index] = tracking
    return result


def origins(tracking: Mapping[int, Tracking], name: str) -> tuple[str, ...]:
    """The registers that a tracked one may be made of, to which nothing may have been written; itself, if it is one."""
    seen, pending, found = {name}, [name], set()
    while pending:
        one = pending.pop()
        sources = {source for at in tracking.values() if one in at.writes for source in at.sources}
        if not sources:
            found.add(one)
        pending += sources - seen
        seen |= sources
    return tuple(sorted(found))


def _passes(one: Decoded) -> bool:
    """Whether it makes results of registers alone."""
    if one.shape is None or one.flow:
        return False
    entry = one.shape.entry
    return entry.kind == "lane" or entry.base == "shfl" or (entry.base in _LOGIC and entry.kind == "warp")


def _mode(one: Decoded) -> int:
    assert one.shape is not None
    base = one.shape.entry.base
    if base == "shfl":
        return SHUFFLE
    return ANY if base in _ANY or (base == "cvt" and len(one.inputs) > 1) else ALL


def _certain(one: Decoded, doubtful: frozenset[str]) -> bool:
    """Whether the results hold something, if those sources may not."""
    if not doubtful & one.inputs:
        return True
    assert one.shape is not None
    constant = any(slot.kind == "imm" for slot in one.shape.slots) or any(at.kind == "special" for at in one.places)
    return _mode(one) == ANY and (constant or not one.inputs <= doubtful)


def _doubts(kernel: Kernel, decoded: Sequence[Decoded]) -> dict[int, frozenset[str]]:
    """For each instruction the registers among its sources, or its guard, that may hold nothing."""
    blocks = split(kernel)
    following = followers(kernel, blocks)
    before: list[Facts | None] = [Facts(), *(None for _ in blocks[1:])]
    pending = {0}
    while pending:
        number = min(pending)
        pending.remove(number)
        start = before[number]
        assert start is not None
        facts = start.copy()
        for index in blocks[number].indices:
            _step(kernel.instructions[index], decoded[index], facts)
        last = kernel.instructions[blocks[number].end - 1]
        for place, follower in enumerate(following[number]):
            after = facts.copy()
            if last.guard is not None and last.opcode.partition(".")[0] in {"bra", "exit", "ret"}:
                falls = place == len(following[number]) - 1
                after.assume(last.guard, value=last.guard_negated if falls else not last.guard_negated)
            earlier = before[follower]
            joined = after if earlier is None else earlier.join(after)
            if joined != earlier:
                before[follower] = joined
                pending.add(follower)
    found: dict[int, frozenset[str]] = {}
    for block, entry in zip(blocks, before, strict=True):
        facts = Facts() if entry is None else entry.copy()
        for index in block.indices if entry is not None else ():
            doubtful = _step(kernel.instructions[index], decoded[index], facts)
            if doubtful:
                found[index] = doubtful
    return found


def _step(instruction: Instruction, one: Decoded, facts: Facts) -> frozenset[str]:
    """Applies one instruction; the registers it reads in doubt."""
    guard, negated = instruction.guard, instruction.guard_negated
    if guard is not None and guard in facts.known and not one.flow:
        if facts.known[guard] == negated:
            return frozenset()
        guard = None
    inputs = one.inputs - one.outputs if one.writes_late else one.inputs
    doubtful = frozenset(name for name in inputs if not facts.has(name, guard, negated=negated))
    certain = not doubtful or not _passes(one) or _certain(one, doubtful)
    if guard is not None and not _passes(one) and guard not in facts.written:
        doubtful |= {guard}
    for name in one.outputs:
        facts.put(name, guard, negated=negated, certain=certain)
    return doubtful
