"""PTX text as records: modules, kernels, instructions, operands.

The records keep PTX's own spelling; what an instruction *means* is the instruction table's business. Inline-assembly
scopes (`{ .reg ...; label: }`) are flattened by renaming, so a kernel is one flat list of instructions with unique
names: what is local to the n-th scope of a kernel has `@n` behind its name. `equiv.emulator.ptx_parser.parse` makes
these records, `equiv.emulator.ptx_emitter.emit` writes a changed kernel back as text.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register, renamed if it was local to a scope; its type is `Kernel.registers[name]`."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only special register such as `%tid.x` or `%cluster_ctarank`."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. `bits`: its two's-complement or IEEE pattern, at most 64 bits; `kind`: `int`, `f32` or `f64`."""

    bits: int
    kind: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name of a parameter, a shared/global/local variable, or a label used as an operand."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; `extra` holds what else stood in the brackets (tensor coordinates)."""

    base: Register | Symbol | Immediate
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: a destination with a second predicate destination."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a destination that is thrown away."""


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`: a negated predicate source operand."""

    register: Register


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Sink | Negated


@dataclass(frozen=True, slots=True)
class Instruction:
    """One PTX instruction.

    Attributes:
        opcode: with all its modifiers, as spelt: `ld.global.v4.b32`.
        operands: in PTX order, destination first where there is one. Of a `call` always a vector of what it returns,
            the callee, a vector of arguments, and for an indirect call its list of targets or prototype.
        guard: name of the guard predicate register, or None.
        guard_negated: True for `@!p`.
        line: one-based line of the PTX text.
        source: (file, line) of the kernel's source from the nearest `.loc` above, or None.
        span: (first, last + 1) character of it in `Module.text`, guard and semicolon included.
        near: as `source`, from the nearest `.loc` above that names a line and a column: what a compiler makes itself
            has none of its own.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: str | None = None
    guard_negated: bool = False
    line: int = 0
    source: tuple[str, int] | None = None
    span: tuple[int, int] = (0, 0)
    near: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter; offset and size in bytes within the parameter block."""

    name: str
    size: int
    align: int
    offset: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: `shared`, `local`, `global`, `const`, or `param`, which is an argument or result of a call.

    Its size is 0 for an `.extern .shared` array sized at launch.
    """

    name: str
    space: str
    size: int
    align: int
    extern: bool = False
    initial: bytes = b""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `.entry`, or the body of a function.

    Attributes:
        labels: label -> index into `instructions` (may equal their number: a label at the end).
        registers: register name -> PTX type (`pred`, `b16`, `f32`, `b64`, ...).
        directives: `reqntid`, `maxntid`, `reqnctapercluster`, `explicitcluster`, ... -> their numbers.
        branch_targets: label of a `.branchtargets` list -> its labels, in order.
        body: (first, last + 1) character in `Module.text` of what stands between the kernel's braces.
        results: registers that a function returns, so that they are live at its end.
    """

    name: str
    params: tuple[Param, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    directives: dict[str, tuple[int, ...]]
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    body: tuple[int, int] = (0, 0)
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Formal:
    """A parameter or result of a function; `space` is `param` or `reg`, its size in bytes."""

    name: str
    space: str
    size: int


@dataclass(frozen=True, slots=True)
class Function:
    """One `.func`; `body` is None where it is only declared. `equiv.emulator.inline` puts it into kernels."""

    name: str
    returns: tuple[Formal, ...]
    params: tuple[Formal, ...]
    body: Kernel | None


@dataclass(frozen=True, slots=True)
class Module:
    """One PTX text. `target` is as spelt (`sm_90a`); `version` too (`9.3`)."""

    version: str
    target: str
    kernels: dict[str, Kernel]
    variables: tuple[Variable, ...]
    text: str
    functions: dict[str, Function] = field(default_factory=dict)

    @property
    def bodies(self) -> tuple[Kernel, ...]:
        """All kernels, and the bodies of all functions."""
        return (*self.kernels.values(), *(one.body for one in self.functions.values() if one.body is not None))
