"""The statements of a kernel or function: registers, labels, nested scopes, instructions and their operands."""

from __future__ import annotations

from bisect import bisect_left

from equiv.emulator.ptx import (
    Address,
    Formal,
    Immediate,
    Instruction,
    Kernel,
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
from equiv.emulator.ptx_cursor import SPACES, TYPE_BYTES, Cursor

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


class Body:
    """The statements between a kernel's braces; `names` are those of the module's variables and functions."""

    def __init__(
        self,
        parser: Cursor,
        names: dict[str, Operand],
        name: str,
        params: tuple[Param, ...],
        directives: dict[str, tuple[int, ...]],
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
        self.results: tuple[str, ...] = ()
        self.scopes: list[dict[str, Operand]] = [names, {param.name: Symbol(param.name) for param in params}]
        self.suffixes = [""]
        self.scope_count = 0
        locations = parser.tokens.locations
        self.next_location = bisect_left(locations, parser.at, key=lambda location: location.at)
        self.source: tuple[str, int] | None = None
        self.near: tuple[str, int] | None = None

    def kernel(self) -> Kernel:
        """All statements up to the closing brace; the cursor stands behind the opening one."""
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
            self.results,
        )

    def declare_formals(self, returns: tuple[Formal, ...], params: tuple[Formal, ...], types: dict[str, str]) -> None:
        """Make a function's parameters and results known; `types` are those of the registers among them."""
        for formal in (*returns, *params):
            self.scopes[-1][formal.name] = (Symbol if formal.space == "param" else Register)(formal.name)
        self.registers.update(types)
        self.results = tuple(formal.name for formal in returns if formal.space == "reg")

    def declare_labels(self, brace: int) -> None:
        """Make the labels of the block that opens here known, ahead of its statements: a branch may go forward."""
        for label in self.parser.tokens.labels[brace]:
            self.scopes[-1][label] = Symbol(label + self.suffixes[-1])

    def resolve(self, name: str, at: int) -> Operand:
        """What a name means here, from the innermost scope outwards."""
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
        """One statement that starts with `value`."""
        parser = self.parser
        if parser.values[parser.at + 1] == ":":
            self.label()
        elif value[0] != ".":
            self.instruction()
        elif value == ".reg":
            parser.at += 1
            self.declare_registers()
        elif value in SPACES or value == ".param":
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
        """A label, or a `.branchtargets` list with its own."""
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
            parser.skip_statement()  # only indirect calls name it, and those are refused where they are made
        elif name in self.labels:
            raise parser.fail(f"label {name} stands twice", parser.at - 2)
        else:
            self.labels[name] = len(self.instructions)

    def label_name(self, at: int) -> str:
        """The name, made unique, of the label at the token `at`."""
        found = self.resolve(self.parser.values[at], at)
        if not isinstance(found, Symbol):
            raise self.parser.fail(f"{self.parser.values[at]!r} is not a label", at)
        return found.name

    def declare_registers(self) -> None:
        """`.reg .b32 a, b<4>;` behind the `.reg`."""
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
        """One instruction with its guard."""
        parser, tokens = self.parser, self.parser.tokens
        start = parser.at
        locations = tokens.locations
        while self.next_location < len(locations) and locations[self.next_location].at <= start:
            location = locations[self.next_location]
            if location.file not in tokens.files:
                raise parser.fail(f".loc names file {location.file}, which no .file declares", start)
            self.source = (tokens.files[location.file], location.line)
            if location.line and location.column:
                self.near = self.source
            self.next_location += 1
        guard, negated = None, False
        if parser.accept("@"):
            negated = parser.accept("!")
            register = self.operand()
            if not isinstance(register, Register):
                raise parser.fail(f"the guard {parser.values[parser.at - 1]!r} is not a register", start)
            guard = register.name
        opcode = parser.word("an opcode")
        operands: list[Operand] = []
        if opcode in {"call", "call.uni"}:
            operands = self.call()
        elif not parser.accept(";"):
            operands.append(self.operand())
            while parser.accept(","):
                operands.append(self.operand())
            parser.take(";")
        span = (tokens.starts[start], tokens.starts[parser.at - 1] + 1)
        self.instructions.append(
            Instruction(opcode, tuple(operands), guard, negated, tokens.line(start), self.source, span, self.near)
        )

    def call(self) -> list[Operand]:
        """What follows `call`: `(results), callee, (arguments), targets;`, of which only the callee must be there."""
        parser = self.parser
        returns = self.arguments()
        if returns:
            parser.take(",")
        operands: list[Operand] = [Vector(returns), self.operand()]
        more = parser.accept(",")
        listed = more and parser.values[parser.at] == "("
        operands.append(Vector(self.arguments() if listed else ()))
        if parser.accept(",") if listed else more:
            operands.append(self.operand())
        parser.take(";")
        return operands

    def arguments(self) -> tuple[Operand, ...]:
        """A list in parentheses, empty if none stands here."""
        parser, found = self.parser, []
        if parser.accept("("):
            while not parser.accept(")"):
                found.append(self.operand())
                parser.accept(",")
        return tuple(found)

    def operand(self) -> Operand:
        """One operand."""
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
        """What stands in square brackets, behind the opening one."""
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
