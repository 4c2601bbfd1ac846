"""From a parsed kernel to byte code: the handler each instruction needs, where its operands lie, how a warp starts.

Every operand is checked against the instruction table: its form, and its width against the declared register.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from equiv.emulator.assignment import Tracking, tracked
from equiv.emulator.bytecode import ByteCode, Decoded, Place
from equiv.emulator.isa import TABLE
from equiv.emulator.isa.table import FLOAT_TYPES, TYPE_BITS, Entry, OperandSpec
from equiv.emulator.layout import LANES, Layout, assign_registers
from equiv.emulator.ptx import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from equiv.emulator.shapes import Shape, Slot
from equiv.emulator.variables import place
from equiv.errors import UnknownInstructionError

# In the order of SpecialKind in csrc/engine.c.
SPECIALS = (
    "tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x", "nctaid.y",
    "nctaid.z", "laneid", "warpid", "nwarpid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt",
    "lanemask_ge",
    "clusterid.x", "clusterid.y", "clusterid.z", "nclusterid.x", "nclusterid.y", "nclusterid.z", "cluster_ctaid.x",
    "cluster_ctaid.y", "cluster_ctaid.z", "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z", "cluster_ctarank",
    "cluster_nctarank", "smid", "nsmid", "gridid", "dynamic_smem_size", "total_smem_size", "zero", "shared address",
    "always",
)  # fmt: skip
_SPECIAL_NUMBER = {name: number for number, name in enumerate(SPECIALS)}
_SHARED_ADDRESS = _SPECIAL_NUMBER["shared address"]
_ALWAYS = _SPECIAL_NUMBER["always"]
_ZERO = _SPECIAL_NUMBER["zero"]
_CLOCKS = {
    "%clock": (32, 0), "%clock_hi": (32, 32), "%clock64": (64, 0),
    "%globaltimer": (64, 0), "%globaltimer_lo": (32, 0), "%globaltimer_hi": (32, 32),
}  # fmt: skip
"""Counters of a warp's instructions: bits, and which of the 64."""
_ZERO_SPECIALS = frozenset({"tid.w", "ctaid.w", "clusterid.w", "cluster_ctaid.w"})
ARCHITECTURES = {"sm_90a": 90, "sm_90": 90, "sm_100a": 100, "sm_100": 100}


class _MisfitError(Exception):
    """The operands are not those of the entry that was tried; another may fit."""


@dataclass
class _Operands:
    """Slots and places of one instruction while it is decoded."""

    slots: list[Slot] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    outputs: set[str] = field(default_factory=set)
    inputs: set[str] = field(default_factory=set)

    def add(self, slot: Slot, place: Place | None = None) -> None:
        self.slots.append(slot)
        if place is not None:
            self.places.append(place)
            if place.kind == "register":
                (self.outputs if slot.out else self.inputs).add(place.name)


class Decoder:
    """Decodes the instructions of one kernel.

    Args:
        symbols: variable or parameter name -> (space, address): an offset in shared, local or parameter space, or a
            host address in global and constant space.
    """

    def __init__(self, kernel: Kernel, architecture: int, symbols: dict[str, tuple[str, int]]) -> None:
        self.kernel = kernel
        self.architecture = architecture
        self.symbols = symbols

    def decode(self, instruction: Instruction) -> Decoded:
        """Find the table entry of an instruction and resolve its operands.

        Raises:
            UnknownInstructionError: no entry has this opcode, operands and architecture.
        """
        candidates = TABLE.candidates(instruction.opcode)
        if not candidates:
            raise self.unknown(instruction, TABLE.why_not(instruction.opcode))
        problems = []
        refusals = [entry.note for entry, _ in candidates if entry.kind == "refused"]
        for entry, mods in candidates:
            if entry.kind == "refused":
                continue
            if not entry.arch <= self.architecture <= entry.last_arch:
                last = self.architecture > entry.last_arch
                problems.append(f"ends with sm_{entry.last_arch}" if last else f"needs sm_{entry.arch} or higher")
                continue
            try:
                return self._with_entry(entry, mods, instruction.operands)
            except _MisfitError as error:
                problems.append(str(error))
        raise self.unknown(instruction, "; or ".join(dict.fromkeys(problems or refusals)))

    @staticmethod
    def unknown(instruction: Instruction, reason: str) -> UnknownInstructionError:
        """The error that names an instruction and its line."""
        return UnknownInstructionError(instruction.opcode, reason, instruction.line)

    def _with_entry(self, entry: Entry, mods: dict[str, str], operands: tuple[Operand, ...]) -> Decoded:
        specs = list(entry.specs)
        required = sum(not spec.optional for spec in specs)
        if not required <= len(operands) <= len(specs):
            raise _MisfitError(f"takes {required} operands, not {len(operands)}")
        found = _Operands()
        for number, spec in enumerate(specs):
            if number < len(operands):
                self._operand(entry, spec, mods, operands[number], found)
            elif spec.kind == "in":
                found.add(Slot(spec.name, "absent", entry.resolve(spec.type, mods), 64))
        shape = None
        if entry.kind != "none":
            kept = tuple((name, "" if name in entry.hints else spelling) for name, spelling in mods.items())
            shape = Shape(entry, kept, tuple(found.slots))
        places = tuple(found.places) if shape else ()
        return Decoded(shape, places, frozenset(found.outputs), frozenset(found.inputs), entry.flow)

    def _operand(
        self, entry: Entry, spec: OperandSpec, mods: dict[str, str], operand: Operand, found: _Operands
    ) -> None:
        type_name = entry.resolve(spec.type, mods)
        if spec.kind == "address":
            self._address(spec, type_name, operand, found)
            self._coordinates(spec, entry.resolve(spec.length, mods), operand, found)
        elif spec.kind == "label":
            if not isinstance(operand, Symbol) or operand.name not in self.kernel.labels:
                raise _MisfitError(f"operand {spec.name} must be a label")
            found.add(Slot(spec.name, "const", "b64", 64), Place("label", operand.name))
        elif spec.kind == "table":
            self._table(spec, operand, found)
        elif spec.kind in {"imm", "count"}:
            if not isinstance(operand, Immediate) or operand.kind != "int":
                raise _MisfitError(f"operand {spec.name} must be an integer constant")
            if spec.kind == "count" and operand.bits >> 31:
                raise _MisfitError(f"operand {spec.name} must be a count, from 0 on")
            found.add(Slot(spec.name, "const", "b64", 64), Place("value", value=operand.bits))
        elif spec.kind == "clock":
            bits, shift = _CLOCKS.get(operand.name, (0, 0)) if isinstance(operand, Special) else (0, 0)
            if bits != TYPE_BITS[mods["type"]]:
                raise _MisfitError(f"operand {spec.name} is no counter of {TYPE_BITS[mods['type']]} bits")
            found.add(Slot(spec.name, "const", "b64", 64), Place("value", value=shift))
        elif spec.kind == "ignored":
            self._source(spec, type_name, operand, spec.name, _Operands())
        elif spec.second:
            first, second = (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())
            self._target(spec, type_name, first, spec.name, found)
            self._target(spec, "pred", second, spec.second, found)
        else:
            length = entry.resolve(spec.length, mods).lstrip("vx")
            self._values(spec, type_name, int(length or 0), operand, found)

    def _values(self, spec: OperandSpec, type_name: str, count: int, operand: Operand, found: _Operands) -> None:
        """A scalar (`count` 0) or vector source or destination."""
        one = self._target if spec.kind == "out" else self._source
        if not count:
            if spec.length and isinstance(operand, Vector) and len(operand.items) == 1:
                operand = operand.items[0]
            one(spec, type_name, operand, spec.name, found)
            return
        if count == 1 and not isinstance(operand, Vector):
            operand = Vector((operand,))
        if not isinstance(operand, Vector) or len(operand.items) != count:
            raise _MisfitError(f"operand {spec.name} must be a vector of {count}")
        for number, item in enumerate(operand.items):
            one(spec, type_name, item, f"{spec.name}{number}", found)

    def _register_bits(self, spec: OperandSpec, type_name: str, register: str) -> int:
        declared = self.kernel.registers[register]
        bits, wanted = TYPE_BITS.get(declared, 0), TYPE_BITS[type_name]
        if (declared == "pred") != (type_name == "pred"):
            raise _MisfitError(f"operand {spec.name} is {register} of type {declared}, not {type_name}")
        if bits != wanted and not (spec.loose and bits > wanted):
            raise _MisfitError(f"operand {spec.name} is {register} of type {declared}, not {type_name}")
        return bits

    def _target(self, spec: OperandSpec, type_name: str, operand: Operand, name: str, found: _Operands) -> None:
        if isinstance(operand, Sink):
            found.add(Slot(name, "sink", type_name, max(TYPE_BITS[type_name], 8), out=True))
            return
        if not isinstance(operand, Register):
            raise _MisfitError(f"operand {spec.name} must be a register")
        bits = self._register_bits(spec, type_name, operand.name)
        kind = "pred" if type_name == "pred" else "reg"
        found.add(Slot(name, kind, type_name, bits, out=True), Place("register", operand.name))
        if spec.reads:
            found.inputs.add(operand.name)

    def _source(self, spec: OperandSpec, type_name: str, operand: Operand, name: str, found: _Operands) -> None:
        predicate = type_name == "pred"
        if isinstance(operand, Negated):
            if not predicate:
                raise _MisfitError(f"operand {spec.name} cannot be negated")
            self._register_bits(spec, type_name, operand.register.name)
            found.add(Slot(name, "not", type_name, 1), Place("register", operand.register.name))
        elif isinstance(operand, Register):
            bits = self._register_bits(spec, type_name, operand.name)
            found.add(Slot(name, "pred" if predicate else "reg", type_name, bits), Place("register", operand.name))
        elif isinstance(operand, Immediate):
            found.add(Slot(name, "imm", type_name, 64), Place("value", value=_constant(spec, type_name, operand)))
        elif isinstance(operand, Special) and not predicate:
            found.add(Slot(name, "reg", type_name, TYPE_BITS[type_name]), _special(operand, type_name))
        elif isinstance(operand, Symbol) and not predicate:
            self._symbol(spec, type_name, operand, name, found)
        else:
            raise _MisfitError(f"operand {spec.name} has a form that is not supported here")

    def _symbol(self, spec: OperandSpec, type_name: str, operand: Symbol, name: str, found: _Operands) -> None:
        """The address of a variable or parameter as a value."""
        if operand.name not in self.symbols or type_name in FLOAT_TYPES or TYPE_BITS[type_name] < 32:
            raise _MisfitError(f"operand {spec.name}: {operand.name} cannot be a {type_name} value")
        space, address = self.symbols[operand.name]
        if space == "shared":
            bits = TYPE_BITS[type_name]
            found.add(
                Slot(name, "reg", type_name, bits), Place("special", value=address, bits=bits, name="shared address")
            )
        else:
            found.add(Slot(name, "imm", type_name, 64), Place("value", value=address))

    def _coordinates(self, spec: OperandSpec, length: str, operand: Operand, found: _Operands) -> None:
        """The coordinates behind an address, and whether there may be any."""
        extra = operand.extra if isinstance(operand, Address) else ()
        if not spec.second:
            if extra:
                raise _MisfitError(f"operand {spec.name} must be an address")
            return
        items = extra[0].items if len(extra) == 1 and isinstance(extra[0], Vector) else ()
        if len(items) != int(length.removesuffix("d")):
            raise _MisfitError(f"operand {spec.name} must be an address and {length.removesuffix('d')} coordinates")
        for number, item in enumerate(items):
            self._source(spec, "s32", item, f"{spec.second}{number}", found)

    def _address(self, spec: OperandSpec, space: str, operand: Operand, found: _Operands) -> None:
        if not isinstance(operand, Address):
            raise _MisfitError(f"operand {spec.name} must be an address")
        space = space or "generic"
        offset = Place("value", value=operand.offset & 0xFFFF_FFFF_FFFF_FFFF)
        base = operand.base
        if isinstance(base, Register):
            bits = TYPE_BITS.get(self.kernel.registers[base.name], 0)
            if bits != 64 and not (bits == 32 and space.startswith(("shared", "local", "param", "tensor"))):
                raise _MisfitError(f"operand {spec.name}: {base.name} is no address in {space} space")
            found.add(Slot(spec.name, "address", space, bits), Place("register", base.name))
        elif isinstance(base, Symbol):
            if base.name not in self.symbols:
                raise _MisfitError(f"operand {spec.name}: {base.name} is no variable")
            home, address = self.symbols[base.name]
            if home != space.partition("::")[0]:
                raise _MisfitError(f"operand {spec.name}: {base.name} is in {home}, not {space} space")
            if home == "shared":
                place = Place("special", name="shared address", value=address, bits=32)
                found.add(Slot(spec.name, "address", space, 32), place)
            else:
                found.add(Slot(spec.name, "address", space, 0), Place("value", value=address))
        else:
            found.add(Slot(spec.name, "address", space, 0), Place("value", value=base.bits))
        found.add(Slot(f"{spec.name}+", "offset", space, 64), offset)

    def _table(self, spec: OperandSpec, operand: Operand, found: _Operands) -> None:
        targets = self.kernel.branch_targets.get(operand.name) if isinstance(operand, Symbol) else None
        if targets is None:
            raise _MisfitError(f"operand {spec.name} must be a .branchtargets list")
        found.add(Slot(spec.name, "const", "b64", 64), Place("value", value=len(targets)))
        found.places += [Place("label", target) for target in targets]


def _constant(spec: OperandSpec, type_name: str, operand: Immediate) -> int:
    """Bits of a constant for an operand of a type; float constants are rounded to f32 where that is the type."""
    if operand.kind == "int":
        if type_name in FLOAT_TYPES:
            raise _MisfitError(f"operand {spec.name} is an integer constant, not {type_name}")
        if type_name == "pred":  # anything but 0 is true, for all lanes
            return 0xFFFFFFFF if operand.bits else 0
        return operand.bits
    if operand.kind == "f32":
        if TYPE_BITS[type_name] != 32:
            raise _MisfitError(f"operand {spec.name} is an f32 constant, not {type_name}")
        return operand.bits
    if type_name == "f32":
        value = struct.unpack("<d", operand.bits.to_bytes(8, "little"))[0]
        return int.from_bytes(struct.pack("<f", value), "little")
    if TYPE_BITS[type_name] != 64:
        raise _MisfitError(f"operand {spec.name} is an f64 constant, not {type_name}")
    return operand.bits


def _special(operand: Special, type_name: str) -> Place:
    name = operand.name.removeprefix("%")
    name = "zero" if name in _ZERO_SPECIALS else name
    if name not in _SPECIAL_NUMBER:
        known = "is only read by a mov of its width" if operand.name in _CLOCKS else "is not supported"
        raise _MisfitError(f"special register {operand.name} {known}")
    return Place("special", name=name, bits=TYPE_BITS[type_name])


def decode(module: Module, kernel: Kernel, arch: str, globals_at: dict[str, int]) -> ByteCode:
    """Decode a kernel for an architecture.

    Args:
        module: what the kernel is from; its variables are the kernel's too.
        kernel: the kernel.
        arch: `sm_90a` or `sm_100a`.
        globals_at: host address of every variable of the module or kernel in global or constant space.

    Raises:
        UnknownInstructionError: an instruction, special register, variable or architecture is not supported.
    """
    if arch not in ARCHITECTURES:
        raise UnknownInstructionError(arch, "no such architecture here: " + ", ".join(ARCHITECTURES))
    placed = place(module, kernel)
    symbols = {param.name: ("param", param.offset) for param in kernel.params} | placed.offsets
    for variable in (*module.variables, *kernel.variables):
        if variable.space in {"global", "const"}:
            symbols[variable.name] = (variable.space, globals_at[variable.name])
    decoder = Decoder(kernel, ARCHITECTURES[arch], symbols)
    known: dict[tuple[object, ...], Decoded] = {}
    instructions = []
    for instruction in (*kernel.instructions, Instruction("exit", ())):
        key = (instruction.opcode, instruction.operands)
        if key not in known:
            known[key] = decoder.decode(instruction)
        instructions.append(known[key])
    layout = assign_registers(kernel, tuple(instructions))
    tracking = tracked(kernel, instructions)
    shadows, scratch = _shadows(tracking, layout)
    arguments = tuple(tuple(_argument(place, kernel, layout) for place in one.places) for one in instructions)
    guards = [
        (layout.offset[one.guard], one.guard_negated) if one.guard else (layout.always, False)
        for one in kernel.instructions
    ]
    specials = [(_ALWAYS, layout.always, 4, 0)]
    specials += [(_SPECIAL_NUMBER[name], at, bits // 8, value) for (name, value, bits), at in layout.specials.items()]
    specials += [(_ZERO, at, 4, 0) for at in range(scratch + 256, layout.size, 4 * LANES) if shadows]
    return ByteCode(
        kernel,
        arch,
        tuple(instructions),
        arguments,
        (*guards, (layout.always, False)),
        tuple(specials),
        layout.size,
        placed.dynamic_at,
        placed.local,
        placed.shared,
        tracking,
        shadows,
        scratch,
    )


def _shadows(tracking: dict[int, Tracking], layout: Layout) -> tuple[dict[str, int], int]:
    """Where the masks of tracked registers lie, at the end of the register file, and the scratch memory before them."""
    names = sorted({name for one in tracking.values() for name in (*one.reads, *one.writes, *one.sources)})
    if not names:
        return {}, 0
    scratch = layout.take(2 * 4 * LANES)
    first = layout.take(-(-len(names) // LANES) * 4 * LANES)
    return {name: first + 4 * number for number, name in enumerate(names)}, scratch


def _argument(place: Place, kernel: Kernel, layout: Layout) -> int:
    if place.kind == "register":
        return layout.offset[place.name]
    if place.kind == "special":
        return layout.specials[place.name, place.value, place.bits]
    if place.kind == "label":
        return kernel.labels[place.name]
    return place.value
