"""Mutation operators: what can be wrong with one instruction, as a list of others to stand in its place.

An operator knows opcodes and operands, not meanings; what it makes is asked of the instruction table (`fits`), and what
the table does not know is no mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.ptx import Address, Immediate, Instruction, Operand, Register, Vector
from equiv.mutate import OPERATORS

Fits = Callable[[Instruction], bool]
Makers = Mapping[str, Instruction]
Operator = Callable[[Instruction, Fits, Makers], Iterator[Instruction]]
"""(instruction, does the table know it, register -> the only instruction that writes it) -> what replaces it."""

NOTHING = ("pmevent", (Immediate(0, "int"),))
"""Opcode and operands of an instruction that does nothing: what stands where one was deleted, so that labels hold."""

_ROUNDINGS = ("rz", "rp", "rn")
_IMPLICIT = frozenset({"add", "sub", "mul", "fma", "mad"})
_INTEGRAL = {"rni": "rzi", "rzi": "rni", "rmi": "rpi", "rpi": "rmi"}
_FLOATS = frozenset({"f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})
_EXCHANGED = {"min": "max", "max": "min", "add": "sub", "sub": "add", "and": "or", "or": "and", "shl": "shr",
              "shr": "shl"}  # fmt: skip
_COMPARED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "ltu": "leu", "leu": "ltu",
             "gtu": "geu", "geu": "gtu", "equ": "neu", "neu": "equ", "lo": "ls", "ls": "lo", "hi": "hs",
             "hs": "hi"}  # fmt: skip
_ORDERING = (
    "bar.", "barrier.", "fence.", "membar.", "mbarrier.", "griddepcontrol.", "cp.async.commit_group",
    "cp.async.wait_", "cp.async.mbarrier.", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "wgmma.fence.",
    "wgmma.commit_group.", "wgmma.wait_group.", "tcgen05.wait::", "tcgen05.fence::", "tcgen05.commit.",
)  # fmt: skip
_ORDERED = frozenset(
    {"sub", "div", "rem", "selp", "setp", "set", "slct", "shl", "shr", "prmt", "bfi", "shf", "copysign"}
)
_SYMMETRIC = frozenset({"eq", "ne", "equ", "neu", "num", "nan"})
_KEPT = ("ret", "exit", "pmevent", "setmaxnreg", "nanosleep")


def deleted(one: Instruction) -> Instruction:
    """The instruction that does nothing, in the place of `one`."""
    return replace(one, opcode=NOTHING[0], operands=NOTHING[1], guard=None, guard_negated=False)


def orders(one: Instruction) -> bool:
    """Whether the instruction only makes others wait, or says that they need not."""
    return one.opcode.startswith(_ORDERING)


def rounding(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """Another rounding mode, or an approximation for a correctly rounded result."""
    words = one.opcode.split(".")
    for at, word in enumerate(words):
        others = [mode for mode in _ROUNDINGS if mode != word] if word in {"rn", "rz", "rm", "rp", "rna"} else []
        others += [_INTEGRAL[word]] if word in _INTEGRAL else []
        others += ["full", "approx"] if word == "rn" and words[0] in {"div", "sqrt", "rcp"} else []
        for other in others:
            yield _respelt(one, [*words[:at], other, *words[at + 1 :]])
        if others:
            return
    if words[0] in _IMPLICIT and words[-1] in _FLOATS:
        yield from (_respelt(one, [words[0], mode, *words[1:]]) for mode in ("rz", "rp"))
    elif words[0] == "div" and "full" in words:
        yield _respelt(one, ["rn" if word == "full" else word for word in words])


def flush(one: Instruction, fits: Fits, _: Makers) -> Iterator[Instruction]:
    """`.ftz` dropped or added."""
    words = one.opcode.split(".")
    if "ftz" in words:
        yield _respelt(one, [word for word in words if word != "ftz"])
    elif "f32" in words:
        spellings = (_respelt(one, [*words[:at], "ftz", *words[at:]]) for at in range(1, len(words)))
        found = next((spelling for spelling in spellings if fits(spelling)), None)
        if found is not None:
            yield found


def conversion(one: Instruction, _: Fits, makers: Makers) -> Iterator[Instruction]:
    """A value kept as it was before it was rounded to a narrower format and widened again; a saturation dropped."""
    words = one.opcode.split(".")
    for word in ("sat", "satfinite", "relu"):
        if word in words:
            yield _respelt(one, [other for other in words if other != word])
    source = one.operands[1] if words[0] == "cvt" and len(one.operands) == 2 else None
    if isinstance(source, Register) and words[1] == "f32":
        narrow = makers.get(source.name)
        if narrow is not None and narrow.guard is None and narrow.opcode.startswith("cvt.") and _narrows(narrow, words):
            yield replace(one, opcode="mov.b32", operands=(one.operands[0], narrow.operands[1]))
    if words[0] == "cvt" and words[-1] == words[-2] == "f32":
        yield replace(one, opcode="mov.b32")


def _narrows(narrow: Instruction, widening: list[str]) -> bool:
    words = narrow.opcode.split(".")
    return len(narrow.operands) == 2 and words[-1] == "f32" and words[-2] == widening[-1]


def constant(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """A float constant one ulp away, up and down."""
    for step in (1, -1):
        yield from _each(one, partial(_float_step, step=step))


def _float_step(operand: Operand, step: int) -> Operand:
    if not isinstance(operand, Immediate) or operand.kind == "int":
        return operand
    if operand.bits == 0 and step < 0:
        return Immediate(1 << (31 if operand.kind == "f32" else 63) | 1, operand.kind)
    return Immediate(operand.bits + step, operand.kind)


def immediate(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """An integer constant (shift, mask, count) off by one either way, or an address one element further."""
    if one.opcode == NOTHING[0]:
        return
    for step in (1, -1):
        for changed in _each(one, partial(_integer_step, step=step)):
            if not _copies_too_much(changed):
                yield changed
    width = _access_bytes(one.opcode)
    for at, operand in enumerate(one.operands):
        if isinstance(operand, Address):
            moved = replace(operand, offset=operand.offset + width)
            yield replace(one, operands=(*one.operands[:at], moved, *one.operands[at + 1 :]))


def _integer_step(operand: Operand, step: int) -> Operand:
    if not isinstance(operand, Immediate) or operand.kind != "int":
        return operand
    return Immediate((operand.bits + step) & (1 << 64) - 1, "int")


def _copies_too_much(one: Instruction) -> bool:
    """Whether a `cp.async` reads more bytes than it copies, of which PTX says nothing."""
    size, taken = one.operands[2:4] if len(one.operands) > 3 else (None, None)
    return (
        one.opcode.startswith(("cp.async.ca", "cp.async.cg"))
        and isinstance(size, Immediate)
        and isinstance(taken, Immediate)
        and taken.bits > size.bits
    )


def _access_bytes(opcode: str) -> int:
    """Bytes of one element of an access, by the last type in its opcode; 16 where there is none (copies)."""
    words = opcode.split(".")
    bits = next((TYPE_BITS[word] for word in reversed(words) if word in TYPE_BITS), 128)
    count = next((int(word[1:]) for word in words if word in {"v2", "v4", "v8"}), 1)
    return max(bits // 8, 1) * count


def operands(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """Two operands that do not commute exchanged, or two neighbours in a vector."""
    base, given = one.opcode.partition(".")[0], one.operands
    pairs: tuple[tuple[int, int], ...] = ()
    symmetric = base in {"setp", "set"} and one.opcode.split(".")[1] in _SYMMETRIC
    if (base in _ORDERED and not symmetric) or (base, len(given)) == ("cvt", 3):
        pairs = ((1, 2),)
    elif base in {"fma", "mad"}:
        pairs = ((2, 3),)
    elif base == "lop3":
        pairs = ((1, 2), (2, 3))
    for left, right in pairs:
        if len(given) > right:
            swapped = list(given)
            swapped[left], swapped[right] = swapped[right], swapped[left]
            yield replace(one, operands=tuple(swapped))
    for at, operand in enumerate(given):
        if isinstance(operand, Vector) and len(operand.items) > 1:
            first, second, *rest = operand.items
            yield replace(one, operands=(*given[:at], Vector((second, first, *rest)), *given[at + 1 :]))


def ordering(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """A fence, wait, barrier, arrival or expected count left out; a wait that is polled succeeds at once."""
    if not orders(one):
        return
    if one.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
        zero = Immediate(0, "int")
        yield replace(one, opcode="setp.eq.u32", operands=(one.operands[0], zero, zero))
    else:
        yield deleted(one)


def predicate(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """The guard negated."""
    if one.guard is not None:
        yield replace(one, guard_negated=not one.guard_negated)


def comparison(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """A comparison that decides the other way where both sides are equal."""
    words = one.opcode.split(".")
    if words[0] in {"setp", "set"} and words[1] in _COMPARED:
        yield _respelt(one, [words[0], _COMPARED[words[1]], *words[2:]])


def deletion(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """The instruction left out; what it would have written keeps whatever bits were there."""
    if not orders(one) and one.opcode.partition(".")[0] not in _KEPT:
        yield deleted(one)


def exchange(one: Instruction, _: Fits, __: Makers) -> Iterator[Instruction]:
    """`min` for `max`, `add` for `sub`, `and` for `or`, `shl` for `shr`, and back."""
    words = one.opcode.split(".")
    if words[0] in _EXCHANGED:
        other = [_EXCHANGED[words[0]], *words[1:]]
        if words[0] == "shl":
            other[-1] = other[-1].replace("b", "u")
        elif words[0] == "shr":
            other[-1] = f"b{TYPE_BITS[words[-1]]}"
        yield _respelt(one, other)
    elif words[0] in {"redux", "atom", "red"}:
        for at, word in enumerate(words):
            if word in {"min", "max"}:
                yield _respelt(one, [*words[:at], _EXCHANGED[word], *words[at + 1 :]])


def _respelt(one: Instruction, words: list[str]) -> Instruction:
    return replace(one, opcode=".".join(words))


def _each(one: Instruction, change: Callable[[Operand], Operand]) -> Iterator[Instruction]:
    """The instruction with one operand changed, for each that `change` changes; also inside vectors and coordinates."""
    for at, operand in enumerate(one.operands):
        for changed in _variants(operand, change):
            yield replace(one, operands=(*one.operands[:at], changed, *one.operands[at + 1 :]))


def _variants(operand: Operand, change: Callable[[Operand], Operand]) -> Iterator[Operand]:
    if isinstance(operand, Vector):
        for at, item in enumerate(operand.items):
            for changed in _variants(item, change):
                yield Vector((*operand.items[:at], changed, *operand.items[at + 1 :]))
    elif isinstance(operand, Address):
        for at, item in enumerate(operand.extra):
            for changed in _variants(item, change):
                yield replace(operand, extra=(*operand.extra[:at], changed, *operand.extra[at + 1 :]))
    else:
        changed = change(operand)
        if changed != operand:
            yield changed


BY_NAME: Mapping[str, Operator] = dict(
    zip(
        OPERATORS,
        (
            rounding,
            flush,
            conversion,
            constant,
            immediate,
            operands,
            ordering,
            predicate,
            comparison,
            exchange,
            deletion,
        ),
        strict=True,
    )
)
"""Every operator by its name."""
