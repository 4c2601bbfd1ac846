"""The form of the instruction table: what an entry says, and how an opcode is matched against it.

The table is the only place that knows instructions. The decoder, the C handlers, the documentation and the coverage
tests read the same entries. An opcode matches an entry only if every modifier is spelt there, in its place; nothing is
skipped or guessed.

Pattern: the base name, then modifier groups in PTX order, separated by blanks:

    sat             the literal modifier `.sat`, required
    sat?            may be absent
    type=s32|u32    one of these, required; its spelling is known to operands and semantics as `type`
    rnd?=rn|rz      one of these or absent (then the empty string)
    rest=*          everything that is left, of any spelling (for refusals)

Operands, separated by blanks, in PTX order:

    d=type          destination of that type: the name of a group, or a PTX type
    a:type          source
    d|p=type        destination with an optional predicate destination `p`
    d+=type         destination that is read too
    p=pred, c:pred  predicates; `c:pred` takes `!c` too
    d=type*vec      a vector; its length is that of group `vec` (`v2` or `x2` -> 2, absent -> no vector) or a number
    [a]:space       an address; its state space is the name of a group, or a PTX space
    [a,c]:space*n   an address followed by n coordinates (`2d`, a number, or a group): sources `c0`, `c1`, ..., all s32
    -h:b64          a source without effect on values (a cache policy): checked, not given to the handler
    i:imm           an integer constant, read in C as `i`
    i:count         one that is not negative, nor 2**31 or more
    t:label, t:table  a branch target, a `.branchtargets` list
    k:clock         `%clock`, `%globaltimer` and their like, as wide as the type; read in C as a shift of the count
    ...~            a register may be wider than the type (ld, st, cvt)
    ...?            the operand may be absent; its value is then 0 (the all-ones mask for a predicate)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

Mods = Mapping[str, str]
Body = str | Callable[[Mods], str]

TYPE_BITS = {
    "b8": 8,
    "u8": 8,
    "s8": 8,
    "e2m1x2": 8,
    "b16": 16,
    "u16": 16,
    "s16": 16,
    "f16": 16,
    "bf16": 16,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "e2m3x2": 16,
    "e3m2x2": 16,
    "ue8m0x2": 16,
    "b32": 32,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "f16x2": 32,
    "bf16x2": 32,
    "tf32": 32,
    "b64": 64,
    "u64": 64,
    "s64": 64,
    "f64": 64,
    "f32x2": 64,
    "pred": 1,
}
FLOAT_TYPES = frozenset({"f32", "f64"})
_BLACKWELL = 100
_MOVES = frozenset({"ld", "st", "cp", "mov", "tensormap", "multimem", "clusterlaunchcontrol"})

MEMBERS = "(uint32_t)mask_[__builtin_ctz(m)]"
"""`Entry.needs_lanes` of an instruction with a membermask operand called `mask`."""

OUTSIDER = (
    "{ uint32_t outside_ = 0; LANES(l) outside_ |= (uint32_t)!(mask_[l] >> l & 1) << l; outside_ &= m;"
    " if (outside_) { const uint32_t lane_ = (uint32_t)__builtin_ctz(outside_);"
    " return fault(w, o, FAULT_VALUE, lane_, (uint32_t)mask_[lane_], 0, 3); } }"
)
"""C: a lane that its own membermask does not name executes the instruction, which PTX leaves undefined."""


def c_type(type_name: str) -> str:
    """The C type of one lane: an integer of the type's width; signed types are signed, floats are bit patterns."""
    bits = TYPE_BITS[type_name]
    return f"{'' if type_name[0] == 's' else 'u'}int{max(bits, 8)}_t" if bits > 1 else "uint32_t"


@dataclass(frozen=True, slots=True)
class Group:
    """One place for a modifier in an opcode: its name, the spellings allowed there, whether it may be absent."""

    name: str
    choices: tuple[str, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand of an entry; see the module's text.

    Attributes:
        kind: `out`, `in`, `ignored`, `address`, `imm`, `count`, `label`, `table` or `clock`.
        type: PTX type, state space of an address, or the group that names it.
        length: name of the group that gives a vector's length, a number, or empty.
        second: name of the predicate destination in `d|p`, stem of the coordinates of an address, or empty.
        reads: whether a destination is also a source.
    """

    name: str
    kind: str
    type: str = ""
    length: str = ""
    second: str = ""
    loose: bool = False
    optional: bool = False
    reads: bool = False


@dataclass(frozen=True)
class Entry:
    """One instruction with all its spellings.

    Attributes:
        pattern: opcode, see the module's text.
        operands: operands, see the module's text.
        body: C. In a `lane` entry it computes the destinations from the sources, both plain variables; in a `warp`
            entry it sees `name_` (array of 32 lanes; mask for a predicate) and executes for the lanes of `m`.
            `<group>` stands for the spelling of a group. Or a function from the spellings to such text.
        kind: `lane`; `warp`; `none`: no effect on values, so no operand is even read; `refused`: known but not
            emulated, `note` says why.
        hints: groups without any effect on values; they do not make another handler.
        needs_lanes: C expression of the lanes that must execute this together, `FULL` or a membermask operand's.
        arch: lowest architecture number that has it.
        last_arch: highest architecture number that has it.
        derived: further spellings by name, computed from those of the groups: lengths of vectors, parameters of `body`.
        flow: `""`, `jump` (ends a basic block) or `exit`.
        note: for the documentation.
    """

    pattern: str
    operands: str
    body: Body = ""
    kind: str = "lane"
    hints: tuple[str, ...] = ()
    needs_lanes: str = ""
    arch: int = 0
    last_arch: int = 999
    derived: Callable[[Mods], Mods] | None = None
    flow: str = ""
    may_park: bool = False
    note: str = ""

    @cached_property
    def base(self) -> str:
        """The name in front of the modifiers."""
        return self.pattern.split()[0]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The places for modifiers, in order."""
        found = []
        for word in self.pattern.split()[1:]:
            name, _, choices = word.partition("=")
            optional = name.endswith("?")
            name = name.removesuffix("?")
            found.append(Group(name, tuple(choices.split("|")) if choices else (name,), optional))
        return tuple(found)

    @cached_property
    def specs(self) -> tuple[OperandSpec, ...]:
        """The operands, in order."""
        return tuple(_operand(word) for word in self.operands.split())

    @cached_property
    def opcode(self) -> re.Pattern[str]:
        """All spellings as a regular expression; group `g<n>` is the n-th place."""
        text = re.escape(self.base)
        for number, group in enumerate(self.groups):
            choices = "|".join(".+" if choice == "*" else re.escape(choice) for choice in group.choices)
            text += rf"(?:\.(?P<g{number}>{choices}))" + ("?" if group.optional else "")
        return re.compile(text)

    @cached_property
    def measured(self) -> bool:
        """Whether its results were compared with hardware, an H200; what only moves data needs no comparison."""
        moves = self.base in _MOVES or (self.base == "tcgen05" and "mma" not in self.pattern.split())
        return self.arch < _BLACKWELL or self.kind in {"none", "refused"} or moves

    def match(self, opcode: str) -> dict[str, str] | None:
        """The spelling of every group (empty if absent), or None."""
        found = self.opcode.fullmatch(opcode)
        if found is None:
            return None
        mods = {group.name: found[f"g{number}"] or "" for number, group in enumerate(self.groups)}
        return mods if self.derived is None else {**mods, **self.derived(mods)}

    def text(self, mods: Mods) -> str:
        """The C body for these spellings."""
        body = self.body if isinstance(self.body, str) else self.body(mods)
        return re.sub(r"<(\w+)>", lambda found: mods[found[1]], body)

    def resolve(self, type_or_group: str, mods: Mods) -> str:
        """The PTX type, space or length that an operand names directly or through a group."""
        return mods.get(type_or_group, type_or_group)


def _operand(word: str) -> OperandSpec:
    optional, word = word.endswith("?"), word.removesuffix("?")
    loose, word = word.endswith("~"), word.removesuffix("~")
    if word.startswith("["):
        name, _, space = word[1:].partition("]:")
        space, _, length = space.partition("*")
        name, _, second = name.partition(",")
        return OperandSpec(name, "address", space, length, second, optional=optional)
    if word.startswith("-"):
        name, _, type_name = word[1:].partition(":")
        return OperandSpec(name, "ignored", type_name, optional=optional)
    separator = "=" if "=" in word else ":"
    name, _, type_name = word.partition(separator)
    reads, name = name.endswith("+"), name.removesuffix("+")
    type_name, _, length = type_name.partition("*")
    name, _, second = name.partition("|")
    if separator == ":" and type_name in {"imm", "count", "label", "table", "clock"}:
        return OperandSpec(name, type_name, optional=optional)
    kind = "out" if separator == "=" else "in"
    return OperandSpec(name, kind, type_name, length, second, loose, optional, reads)


class Table:
    """All entries, by base name."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self.by_base: dict[str, list[Entry]] = {}
        for entry in entries:
            self.by_base.setdefault(entry.base, []).append(entry)

    def candidates(self, opcode: str) -> list[tuple[Entry, dict[str, str]]]:
        """Every entry whose pattern the whole opcode matches, with the spellings; operands decide between them."""
        found = []
        for entry in self.by_base.get(opcode.partition(".")[0], ()):
            mods = entry.match(opcode)
            if mods is not None:
                found.append((entry, mods))
        return found

    def why_not(self, opcode: str) -> str:
        """What is wrong with an opcode that has no candidate: the first part that no entry can read."""
        base, *parts = opcode.split(".")
        if base not in self.by_base:
            return f"unknown instruction `{base}`"
        best = max(_understood(entry, parts) for entry in self.by_base[base])
        if best == len(parts):
            return "a required modifier is missing"
        return f"modifier `.{parts[best]}` is not known here"


def _understood(entry: Entry, parts: list[str]) -> int:
    """How many leading modifiers of `parts` the entry can read."""
    count = 0
    for group in entry.groups:
        if count < len(parts) and parts[count] in group.choices:
            count += 1
        elif not group.optional:
            break
    return count
