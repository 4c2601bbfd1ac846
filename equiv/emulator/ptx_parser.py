"""Reads PTX text into the records of `equiv.emulator.ptx`: a recursive-descent parser over the tokens.

Read in full: entries with their parameters and directives, variables of every space with number initialisers,
registers, nested scopes, every operand form of those records. Refused by name: functions with a body and calls (the
kernels this package verifies are inlined entirely), texture and sampler variables, initialisers that hold addresses.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

from equiv.emulator.ptx import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Negated,
    Operand,
    Pair,
    Param,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from equiv.emulator.ptx_tokens import END, Tokens, tokenize
from equiv.errors import PtxSyntaxError, UnknownInstructionError

TYPE_BYTES = {"pred": 1, "f16": 2, "bf16": 2, "f32": 4, "f16x2": 4, "bf16x2": 4, "f64": 8, "f32x2": 8, "b128": 16}
TYPE_BYTES |= {f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)}
_VECTOR_SPECIALS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SCALAR_SPECIALS = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "is_explicit_cluster", "cluster_ctarank",
    "cluster_nctarank", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt", "clock",
    "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi", "total_smem_size", "aggr_smem_size",
    "dynamic_smem_size", "reserved_smem_offset_begin", "reserved_smem_offset_end", "reserved_smem_offset_cap",
    "reserved_smem_offset_0", "reserved_smem_offset_1", "current_graph_exec")  # fmt: skip
_SPECIALS = frozenset(
    [f"%{name}{part}" for name in _VECTOR_SPECIALS for part in (".x", ".y", ".z", ".w")]
    + [f"%{name}" for name in _SCALAR_SPECIALS]
    + [f"%envreg{number}" for number in range(32)]
)
_LINKAGE = frozenset({".extern", ".visible", ".weak", ".common"})
_SPACES = frozenset({".shared", ".local", ".global", ".const"})


def parse(text: str) -> Module:
    """Read a PTX text; a trailing NUL, which some compilers leave behind it, is dropped.

    Raises:
        PtxSyntaxError: what stands there is not PTX that this parser reads; the line is one-based.
        UnknownInstructionError: valid PTX that the emulator has no use for: calls, function bodies, textures.
    """
    return _Parser(tokenize(text.rstrip("\0"))).module()


class _Parser:
    """A cursor over the tokens. Only `module` is called from outside, once."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.kinds = tokens.kinds
        self.values = tokens.values
        self.at = 0
        self.globals: dict[str, Operand] = {}
        self.immediates: dict[str, Immediate] = {}

    def fail(self, problem: str, at: int | None = None) -> PtxSyntaxError:
        return PtxSyntaxError(problem, self.tokens.line(self.at if at is None else at))

    def take(self, value: str) -> None:
        if self.values[self.at] != value:
            raise self.fail(f"expected {value!r}, found {self.values[self.at]!r}")
        self.at += 1

    def accept(self, value: str) -> bool:
        if self.values[self.at] != value:
            return False
        self.at += 1
        return True

    def word(self, what: str) -> str:
        if self.kinds[self.at] != "word":
            raise self.fail(f"expected {what}, found {self.values[self.at]!r}")
        self.at += 1
        return self.values[self.at - 1]

    def integer(self) -> int:
        negative = self.accept("-")
        if self.kinds[self.at] != "number":
            raise self.fail(f"expected an integer, found {self.values[self.at]!r}")
        immediate = self.immediate(self.values[self.at])
        if immediate.kind != "int":
            raise self.fail(f"expected an integer, found {self.values[self.at]!r}")
        self.at += 1
        return -immediate.bits if negative else immediate.bits

    def skip_statement(self) -> None:
        while self.values[self.at] != ";":
            if self.kinds[self.at] == END:
                raise self.fail("the text ends inside a statement")
            self.at += 1
        self.at += 1

    def module(self) -> Module:
        version = target = ""
        kernels: dict[str, Kernel] = {}
        variables: list[Variable] = []
        while self.kinds[self.at] != END:
            start, word = self.at, self.word("a directive")
            while word in _LINKAGE:
                word = self.word("a directive")
            if word == ".version":
                version = self.values[self.at]
                self.at += 1
            elif word == ".target":
                target = self.word("a target")
                while self.accept(","):
                    self.word("a target option")
            elif word == ".address_size":
                if self.integer() != 64:
                    raise self.fail("only 64-bit addresses are supported", start)
            elif word == ".pragma":
                self.skip_statement()
            elif word == ".section":
                self.word("a section name")
                self.skip_block()
            elif word == ".entry":
                kernel = self.entry()
                kernels[kernel.name] = kernel
            elif word == ".func":
                self.function()
            elif word in _SPACES:
                for variable in self.variable(word[1:], extern=".extern" in self.values[start : self.at]):
                    self.globals[variable.name] = Symbol(variable.name)
                    variables.append(variable)
            else:
                raise self.fail(f"unknown directive {word!r}", start)
        if not version or not target:
            raise PtxSyntaxError("no .version and .target", 1)
        return Module(version, target, kernels, tuple(variables), self.tokens.text)

    def skip_block(self) -> None:
        if self.values[self.at] != "{":
            raise self.fail(f"expected '{{', found {self.values[self.at]!r}")
        self.at = self.tokens.closing[self.at] + 1

    def function(self) -> None:
        """A declaration is skipped (nothing can call it, since calls are refused); a body is refused."""
        start = self.at
        while self.values[self.at] not in {";", "{"}:
            if self.kinds[self.at] == END:
                raise self.fail("the text ends inside a .func", start)
            self.at += 1
        if self.values[self.at] == "{":
            raise UnknownInstructionError(".func", "functions with a body are not supported", self.tokens.line(start))
        self.at += 1

    def variable(self, space: str, *, extern: bool) -> list[Variable]:
        """What follows the space of a variable statement: `.align 16 .b8 name[4] = {1, 2}, other;`."""
        align, vector, element = 0, 1, ""
        while self.kinds[self.at] == "word" and self.values[self.at].startswith("."):
            word = self.values[self.at]
            self.at += 1
            if word == ".align":
                align = self.integer()
            elif word in {".v2", ".v4", ".v8"}:
                vector = int(word[2:])
            elif word[1:] in TYPE_BYTES:
                element = word[1:]
            else:
                raise UnknownInstructionError(
                    f".{space} {word}", "no such variable type here", self.tokens.line(self.at - 1)
                )
        if not element:
            raise self.fail(f"a .{space} variable without a type")
        size = TYPE_BYTES[element]
        found = []
        while True:
            name, total, unsized = self.word("a variable name"), size * vector, False
            while self.accept("["):
                if self.accept("]"):
                    unsized = True
                else:
                    total *= self.integer()
                    self.take("]")
            initial = self.initial(element) if self.accept("=") else b""
            if unsized:
                total = len(initial)
            if len(initial) > total:
                raise self.fail(f"the initialiser of {name} has {len(initial)} bytes, the variable {total}")
            found.append(
                Variable(
                    name, space, total, align or size * vector, extern, initial.ljust(total, b"\0") if initial else b""
                )
            )
            if not self.accept(","):
                break
        self.take(";")
        return found

    def initial(self, element: str) -> bytes:
        if self.accept("{"):
            parts = [self.initial(element)]
            while self.accept(","):
                parts.append(self.initial(element))
            self.take("}")
            return b"".join(parts)
        operand = self.operand_number()
        if operand.kind != "int" and {"f32": 4, "f64": 8}[operand.kind] != TYPE_BYTES[element]:
            raise self.fail(f"a {operand.kind} constant in an initialiser of type {element}")
        size = TYPE_BYTES[element]
        return (operand.bits & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    def entry(self) -> Kernel:
        name = self.word("a kernel name")
        params: list[Param] = []
        if self.accept("("):
            while not self.accept(")"):
                params.append(self.param(params))
                self.accept(",")
        directives: dict[str, tuple[int, ...]] = {}
        while not self.accept("{"):
            word = self.word("a kernel directive")
            if word == ".pragma":
                self.skip_statement()
                continue
            numbers = []
            while self.kinds[self.at] == "number":
                numbers.append(self.integer())
                self.accept(",")
            directives[word[1:]] = tuple(numbers)
        return _Body(self, name, tuple(params), directives).kernel()

    def param(self, before: list[Param]) -> Param:
        self.take(".param")
        align, size = 0, 0
        while self.values[self.at].startswith("."):
            word = self.word("a parameter attribute")
            if word == ".align":
                align = self.integer()
            elif word[1:] in TYPE_BYTES:
                size = TYPE_BYTES[word[1:]]
                align = align or size
            elif word == ".ptr":  # space and alignment of what the pointer points to, not of the parameter
                while self.values[self.at] in {".global", ".shared", ".const", ".local", ".param", ".align"}:
                    if self.word("a pointer attribute") == ".align":
                        self.integer()
            else:
                raise self.fail(f"unknown parameter attribute {word!r}", self.at - 1)
        name = self.word("a parameter name")
        if self.accept("["):
            size *= self.integer()
            self.take("]")
        if not size:
            raise self.fail(f"parameter {name} has no type or no size")
        end = before[-1].offset + before[-1].size if before else 0
        return Param(name, size, align, (end + align - 1) // align * align)

    def immediate(self, spelt: str) -> Immediate:
        known = self.immediates.get(spelt)
        if known is None:
            known = self.immediates[spelt] = _read_number(spelt)
            if known.bits >> 64:
                raise self.fail(f"{spelt} does not fit 64 bits")
        return known

    def operand_number(self) -> Immediate:
        negative = self.accept("-")
        if self.kinds[self.at] != "number":
            raise self.fail(f"expected a number, found {self.values[self.at]!r}")
        value = self.immediate(self.values[self.at])
        self.at += 1
        if not negative:
            return value
        if value.kind == "int":
            return Immediate(-value.bits & 0xFFFF_FFFF_FFFF_FFFF, "int")
        return Immediate(value.bits ^ (1 << (31 if value.kind == "f32" else 63)), value.kind)


class _Body:
    """The statements between a kernel's braces, in the text of `parser`."""

    def __init__(
        self, parser: _Parser, name: str, params: tuple[Param, ...], directives: dict[str, tuple[int, ...]]
    ) -> None:
        self.parser = parser
        self.name = name
        self.params = params
        self.directives = directives
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.registers: dict[str, str] = {}
        self.variables: list[Variable] = []
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.scopes: list[dict[str, Operand]] = [parser.globals, {param.name: Symbol(param.name) for param in params}]
        self.suffixes = [""]
        self.scope_count = 0
        locations = parser.tokens.locations
        self.next_location = bisect_left(locations, parser.at, key=lambda location: location.at)
        self.source: tuple[str, int] | None = None

    def kernel(self) -> Kernel:
        parser, tokens = self.parser, self.parser.tokens
        opening = parser.at - 1
        self.declare_labels(opening)
        while True:
            value = parser.values[parser.at]
            if value == "{":
                self.scope_count += 1
                self.suffixes.append(f"@{self.scope_count}")
                self.scopes.append({})
                self.declare_labels(parser.at)
                parser.at += 1
            elif value == "}":
                parser.at += 1
                self.suffixes.pop()
                if not self.suffixes:
                    break
                self.scopes.pop()
            elif value == ";":
                parser.at += 1
            else:
                self.statement(value)
        body = (tokens.starts[opening] + 1, tokens.starts[parser.at - 1])
        return Kernel(
            self.name,
            self.params,
            tuple(self.instructions),
            self.labels,
            self.registers,
            tuple(self.variables),
            self.directives,
            self.branch_targets,
            body,
        )

    def declare_labels(self, brace: int) -> None:
        # Ahead of the statements, because a branch may go forward.
        for label in self.parser.tokens.labels[brace]:
            self.scopes[-1][label] = Symbol(label + self.suffixes[-1])

    def resolve(self, name: str, at: int) -> Operand:
        for scope in reversed(self.scopes):
            found = scope.get(name)
            if found is not None:
                return found
        if name in _SPECIALS:
            return Special(name)
        if name == "WARP_SZ":
            return Immediate(32, "int")
        raise self.parser.fail(f"{name} is not declared", at)

    def statement(self, value: str) -> None:
        parser = self.parser
        if parser.values[parser.at + 1] == ":":
            self.label()
        elif value[0] != ".":
            self.instruction()
        elif value == ".reg":
            parser.at += 1
            self.declare_registers()
        elif value in _SPACES or value == ".param":
            parser.at += 1
            for variable in parser.variable(value[1:], extern=False):
                renamed = variable.name + self.suffixes[-1]
                self.scopes[-1][variable.name] = Symbol(renamed)
                self.variables.append(
                    Variable(
                        renamed, variable.space, variable.size, variable.align, extern=False, initial=variable.initial
                    )
                )
        elif value == ".pragma":
            parser.skip_statement()
        else:
            raise parser.fail(f"unknown directive {value!r}")

    def label(self) -> None:
        parser = self.parser
        name = self.label_name(parser.at)
        parser.at += 2
        following = parser.values[parser.at]
        if following == ".branchtargets":
            targets = []
            while not parser.accept(";"):
                parser.at += 1
                targets.append(self.label_name(parser.at))
                parser.at += 1
            self.branch_targets[name] = tuple(targets)
        elif following in {".calltargets", ".callprototype"}:
            raise UnknownInstructionError(following, "calls are not supported", parser.tokens.line(parser.at))
        elif name in self.labels:
            raise parser.fail(f"label {name} stands twice", parser.at - 2)
        else:
            self.labels[name] = len(self.instructions)

    def label_name(self, at: int) -> str:
        found = self.resolve(self.parser.values[at], at)
        if not isinstance(found, Symbol):
            raise self.parser.fail(f"{self.parser.values[at]!r} is not a label", at)
        return found.name

    def declare_registers(self) -> None:
        parser, scope, suffix = self.parser, self.scopes[-1], self.suffixes[-1]
        kind = parser.word("a register type")[1:]
        if kind not in TYPE_BYTES:
            raise parser.fail(f"unknown register type .{kind}", parser.at - 1)
        while True:
            name = parser.word("a register name")
            names = [name]
            if parser.accept("<"):
                names = [f"{name}{number}" for number in range(parser.integer())]
                parser.take(">")
            for one in names:
                scope[one] = Register(one + suffix)
                self.registers[one + suffix] = kind
            if not parser.accept(","):
                break
        parser.take(";")

    def instruction(self) -> None:
        parser, tokens = self.parser, self.parser.tokens
        start = parser.at
        locations = tokens.locations
        while self.next_location < len(locations) and locations[self.next_location].at <= start:
            location = locations[self.next_location]
            if location.file not in tokens.files:
                raise parser.fail(f".loc names file {location.file}, which no .file declares", start)
            self.source = (tokens.files[location.file], location.line)
            self.next_location += 1
        guard, negated = None, False
        if parser.accept("@"):
            negated = parser.accept("!")
            register = self.operand()
            if not isinstance(register, Register):
                raise parser.fail(f"the guard {parser.values[parser.at - 1]!r} is not a register", start)
            guard = register.name
        opcode = parser.word("an opcode")
        if opcode == "call" or opcode.startswith("call."):
            raise UnknownInstructionError(opcode, "calls are not supported", tokens.line(start))
        operands = []
        if not parser.accept(";"):
            operands.append(self.operand())
            while parser.accept(","):
                operands.append(self.operand())
            parser.take(";")
        span = (tokens.starts[start], tokens.starts[parser.at - 1] + 1)
        self.instructions.append(
            Instruction(opcode, tuple(operands), guard, negated, tokens.line(start), self.source, span)
        )

    def operand(self) -> Operand:
        parser = self.parser
        at = parser.at
        kind, value = parser.kinds[at], parser.values[at]
        if kind == "word":
            parser.at += 1
            found: Operand = Sink() if value == "_" else self.resolve(value, at)
            return Pair(found, self.operand()) if parser.accept("|") else found
        if kind == "number" or value == "-":
            return parser.operand_number()
        if value == "[":
            parser.at += 1
            return self.address()
        if value == "{":
            parser.at += 1
            items = [self.operand()]
            while parser.accept(","):
                items.append(self.operand())
            parser.take("}")
            return Vector(tuple(items))
        if value == "!":
            parser.at += 1
            register = self.operand()
            if isinstance(register, Register):
                return Negated(register)
        raise parser.fail(f"expected an operand, found {value!r}", at)

    def address(self) -> Address:
        parser = self.parser
        at = parser.at
        base = self.operand()
        if not isinstance(base, Register | Symbol | Immediate):
            raise parser.fail(f"{parser.values[at]!r} cannot be the base of an address", at)
        offset = 0
        while parser.values[parser.at] in {"+", "-"}:
            sign = -1 if parser.values[parser.at] == "-" else 1
            parser.at += 1
            offset += sign * parser.integer()
        extra = []
        while parser.accept(","):
            extra.append(self.operand())
        parser.take("]")
        return Address(base, offset, tuple(extra))


def _read_number(spelt: str) -> Immediate:
    head = spelt[:2].lower()
    if head == "0f":
        return Immediate(int("0x" + spelt[2:], 0), "f32")
    if head == "0d":
        return Immediate(int("0x" + spelt[2:], 0), "f64")
    digits = spelt.rstrip("U")
    if head in {"0x", "0b"}:
        return Immediate(int(digits, 0), "int")
    if digits.isdecimal():
        octal = len(digits) > 1 and digits[0] == "0"
        return Immediate(int(digits, 8 if octal else 10), "int")
    return Immediate(int.from_bytes(struct.pack("<d", float(digits)), "little"), "f64")
