"""Shapes: one C handler per table entry, spelling and operand classes, and the C text of each.

A shape does not know which registers it reads, only their widths, so a few hundred shapes serve every kernel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from equiv.emulator.isa.table import MEMBERS, OUTSIDER, TYPE_BITS, Entry, c_type


@dataclass(frozen=True, slots=True)
class Slot:
    """One scalar operand of a shape.

    Attributes:
        name: its name in the C body.
        kind: `reg`, `pred`, `not` (negated predicate), `imm` (constant source), `const` (plain number),
            `sink`, `absent`, or `address` (base) and `offset` of one.
        type: PTX type that the body sees; for an address its space.
        bits: width of the register; 64 for an immediate.
        out: whether the instruction writes it.
    """

    name: str
    kind: str
    type: str
    bits: int
    out: bool = False


@dataclass(frozen=True)
class Shape:
    """A table entry with its spellings fixed (`mods`, hints left out) and its operands classified."""

    entry: Entry
    mods: tuple[tuple[str, str], ...]
    slots: tuple[Slot, ...]

    @cached_property
    def title(self) -> str:
        """The opcode without hints and the operand classes, for people."""
        parts = [self.entry.base, *(spelling for _, spelling in self.mods if spelling)]
        operands = [
            f"{slot.name}:{slot.kind}{slot.bits if slot.kind in {'reg', 'address'} else ''}" for slot in self.slots
        ]
        return ".".join(parts) + " " + " ".join(operands)

    @cached_property
    def body(self) -> str:
        """The C function body; two shapes with equal bodies are one handler."""
        return _function_body(self)

    @cached_property
    def name(self) -> str:
        """Name of the handler: a hash of its body."""
        return "h_" + hashlib.sha256(self.body.encode()).hexdigest()[:20]

    @cached_property
    def source(self) -> str:
        """The C function."""
        return f"/* {self.title} */\nstatic int {self.name}(Warp *w, const Op *o, uint32_t m) {{\n{self.body}}}\n"


def _function_body(shape: Shape) -> str:
    mods = dict(shape.mods)
    for slot in shape.slots:
        if slot.kind == "address":
            mods[f"{slot.name}@"] = "uniform" if slot.bits == 0 else "lanes"
        elif slot.out:
            mods[f"{slot.name}@"] = slot.kind
    text = shape.entry.text(mods)
    lines: list[str] = []
    after: list[str] = []
    load: list[str] = []
    store: list[str] = []
    lane = shape.entry.kind == "lane"
    number = 0
    for slot in shape.slots:
        _declare(slot, number, lane=lane, lines=lines, load=load, store=store, after=after)
        if slot.kind not in {"sink", "absent"}:
            number += 1
    head: list[str] = []
    outcome = "NEXT"
    if shape.entry.may_park:
        head.append("int outcome = NEXT;")
        outcome = "outcome"
    if shape.entry.needs_lanes == MEMBERS:
        lines.append(OUTSIDER)
    if shape.entry.needs_lanes:
        # The operands are read before and after the gathering, which may bring lanes in.
        head.append("uint32_t missing_;")
        lines.append(f"missing_ = ({shape.entry.needs_lanes}) & w->live & ~m;")
        lines.append(f"if (missing_) {{ m = gather_lanes(w, o, m, {shape.entry.needs_lanes}); if (!m) return JUMP; }}")
    if lane:
        loop = ['_Pragma("GCC ivdep")', "LANES(l) {", *load, text, *store, "}"]
        lines += loop
    else:
        lines.append(text)
    return "\n".join(["(void)w; (void)o; (void)m;", *head, *lines, *after, f"return {outcome};", ""])


def _declare(
    slot: Slot, number: int, *, lane: bool, lines: list[str], load: list[str], store: list[str], after: list[str]
) -> None:
    """C that makes one operand available to the body, and that writes it back."""
    name = slot.name
    if slot.kind == "address":
        _declare_address(slot, number, lines)
        return
    if slot.kind == "offset":
        return
    if slot.kind == "const":
        lines.append(f"const uint64_t {name} = IMM({number});")
        return
    lane_type = c_type(slot.type)
    if slot.type == "pred":
        if slot.out:
            lines.append(f"uint32_t {name}_ = 0;")
            if slot.kind == "pred":
                after.append(f"PRED({number}) = (PRED({number}) & ~m) | ({name}_ & m);")
            load.append(f"uint32_t {name};")
            store.append(f"{name}_ |= (uint32_t)({name} & 1) << l;")
            if slot.kind == "sink":
                after.append(f"(void){name}_;")
            return
        value = {
            "pred": f"PRED({number})",
            "not": f"~PRED({number})",
            "imm": f"(IMM({number}) ? FULL : 0)",
            "absent": "FULL",
        }[slot.kind]
        lines.append(f"const uint32_t {name}_ = {value};")
        load.append(f"const uint32_t {name} = {name}_ >> l & 1;")
        return
    register = f"uint{slot.bits}_t"
    if slot.out:
        if slot.kind == "sink":
            if lane:
                load.append(f"{lane_type} {name};")
                store.append(f"(void){name};")
            else:
                lines.append(f"{register} {name}_[32];")
            return
        lines.append(f"{register} *{name}_ = REG({register}, {number});")
        load.append(f"{lane_type} {name};")
        store.append(f"{name}_[l] = HAS(l) ? ({register}){name} : {name}_[l];")
        return
    if slot.kind == "reg":
        lines.append(f"const {register} *{name}_ = REG(const {register}, {number});")
        load.append(f"const {lane_type} {name} = ({lane_type}){name}_[l];")
        return
    value = "0" if slot.kind == "absent" else f"IMM({number})"
    if lane:
        lines.append(f"const {lane_type} {name} = ({lane_type}){value};")
    else:
        lines.append(f"{lane_type} {name}_[32]; LANES(l) {name}_[l] = ({lane_type}){value};")


def _declare_address(slot: Slot, number: int, lines: list[str]) -> None:
    """`Addresses name`: base and offset added as the space's addresses wrap (32 bits in shared and local memory)."""
    name, offset = slot.name, f"IMM({number + 1})"
    lines.append(f"Addresses {name};")
    narrow = slot.type not in {"global", "generic", "const", "param"}
    cast = "(uint32_t)" if narrow else ""
    if slot.bits == 0:
        lines.append(f"{{ const uint64_t base_ = {cast}(IMM({number}) + {offset}); LANES(l) {name}.at[l] = base_; }}")
    else:
        register = f"uint{slot.bits}_t"
        lines.append(
            f"{{ const {register} *base_ = REG(const {register}, {number}); const uint64_t offset_ = {offset};"
            f" LANES(l) {name}.at[l] = {cast}(base_[l] + offset_); }}"
        )


def type_bits(type_name: str) -> int:
    """Width of a register of a PTX type; 0 for one the emulator has no registers for."""
    return TYPE_BITS.get(type_name, 0)
