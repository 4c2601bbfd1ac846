"""Calls of functions, made part of the kernel that calls them: the engines know no stack of return addresses.

Each call becomes a copy of the function's body, at the place of the call, with registers and labels of its own; `ret`
becomes a branch behind it. What is passed in `.param` space lies in local memory: a parameter of the function is the
variable that its caller stored the argument in. Without recursion a function is active once a lane at most, so that its
variables exist once, however often it is called.

Refused by name: calls through a register, recursion, functions without a body (such as `vprintf`), and addresses in
parameter space that a function computes. Lanes that call a function from several places do not meet inside it, which
matters only to a function that expects lanes of other callers in a `.sync` instruction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from equiv.emulator.ptx import (
    Address,
    Formal,
    Function,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Variable,
    Vector,
)
from equiv.errors import UnknownInstructionError

MOST_INSTRUCTIONS = 1 << 20
"""A kernel that would become longer is refused: calls of functions that call twice grow as powers of two."""
_PARAM = frozenset({"param", "param::func"})


def inline(module: Module, kernel: Kernel) -> Kernel:
    """The kernel without calls; itself if it has none. The result has no text, so it cannot be emitted.

    Args:
        module: has the functions; contracted already where the assembler would.
        kernel: one of its kernels.

    Raises:
        UnknownInstructionError: a call that is refused, with its line.
    """
    if not any(_is_call(one) for one in kernel.instructions):
        return kernel
    made = _Inliner(module)
    made.body(kernel, _Frame("", (), {}))
    return replace(
        kernel,
        instructions=tuple(made.instructions),
        labels=made.labels,
        registers=made.registers,
        variables=tuple(made.variables.values()),
        branch_targets=made.branch_targets,
    )


def _is_call(instruction: Instruction) -> bool:
    return instruction.opcode in {"call", "call.uni"}


@dataclass(frozen=True, slots=True)
class _Frame:
    """One copy of a body.

    Attributes:
        suffix: behind its registers and labels; empty for the kernel.
        active: names of the functions that are active in it, the innermost last.
        symbols: its names of labels, variables and parameters -> their names in the kernel.
        local: those of them that are `.param` in the text and lie in local memory here.
    """

    suffix: str
    active: tuple[str, ...]
    symbols: dict[str, str]
    local: set[str] = field(default_factory=set)

    def operand(self, operand: Operand) -> Operand:
        """An operand under its names in the kernel."""
        match operand:
            case Register(name):
                return Register(name + self.suffix)
            case Symbol(name):
                return Symbol(self.symbols.get(name, name))
            case Negated(Register(name)):
                return Negated(Register(name + self.suffix))
            case Vector(items):
                return Vector(tuple(self.operand(item) for item in items))
            case Pair(first, second):
                return Pair(self.operand(first), self.operand(second))
            case Address(base, offset, extra):
                renamed = self.operand(base)
                assert isinstance(renamed, Register | Symbol | Immediate)
                return Address(renamed, offset, tuple(self.operand(item) for item in extra))
            case _:
                return operand

    def guard(self, instruction: Instruction) -> str | None:
        """The guard under its name in the kernel."""
        return None if instruction.guard is None else instruction.guard + self.suffix

    def instruction(self, one: Instruction) -> Instruction:
        """An instruction under its names in the kernel, in local memory where it was a call's parameter."""
        head, *modifiers = one.opcode.split(".")
        opcode = one.opcode
        if not _PARAM.isdisjoint(modifiers):
            bases = [operand.base for operand in one.operands if isinstance(operand, Address)]
            symbols = [base.name for base in bases if isinstance(base, Symbol)]
            if head in {"ld", "st"} and (not self.local.isdisjoint(symbols) or self.active):
                opcode = ".".join([head, *("local" if part in _PARAM else part for part in modifiers)])
            elif self.active:
                raise UnknownInstructionError(one.opcode, "not inside a function that is called", one.line)
        operands = tuple(self.operand(operand) for operand in one.operands)
        return replace(one, opcode=opcode, operands=operands, guard=self.guard(one))


class _Inliner:
    """Collects the kernel that comes out."""

    def __init__(self, module: Module) -> None:
        self.functions = module.functions
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.registers: dict[str, str] = {}
        self.variables: dict[str, Variable] = {}
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.calls = 0

    def body(self, body: Kernel, frame: _Frame, behind: str = "") -> None:
        """Append a copy of a body; in a function `ret` goes to the label `behind`, which the caller sets."""
        suffix = frame.suffix
        self.registers.update({name + suffix: kind for name, kind in body.registers.items()})
        frame.symbols.update({name: name + suffix for name in (*body.labels, *body.branch_targets)})
        for name, targets in body.branch_targets.items():
            self.branch_targets[name + suffix] = tuple(target + suffix for target in targets)
        for variable in body.variables:
            name = f"{variable.name}@{body.name}" if frame.active else variable.name
            frame.symbols[variable.name] = name
            if variable.space == "param":
                frame.local.add(variable.name)
            space = "local" if variable.space == "param" else variable.space
            self.variables.setdefault(name, replace(variable, name=name, space=space))
        labels: dict[int, list[str]] = {}
        for label, index in body.labels.items():
            labels.setdefault(index, []).append(label + suffix)
        last = len(body.instructions) - 1
        for index, one in enumerate(body.instructions):
            self.place(labels.get(index, []))
            if _is_call(one):
                self.call(one, frame)
            elif not behind or one.opcode not in {"ret", "ret.uni"}:
                self.append(frame.instruction(one))
            elif index != last or one.guard is not None:
                self.append(replace(one, opcode="bra", operands=(Symbol(behind),), guard=frame.guard(one)))
        self.place(labels.get(last + 1, []))

    def append(self, instruction: Instruction) -> None:
        """Add an instruction."""
        if len(self.instructions) == MOST_INSTRUCTIONS:
            raise UnknownInstructionError("call", f"inlined, the kernel exceeds {MOST_INSTRUCTIONS} instructions")
        self.instructions.append(instruction)

    def place(self, labels: list[str]) -> None:
        """Set labels to what is added next."""
        self.labels.update(dict.fromkeys(labels, len(self.instructions)))

    def call(self, one: Instruction, frame: _Frame) -> None:
        """Append what a call does."""
        function, results, arguments = self.callee(one, frame)
        assert function.body is not None
        self.calls += 1
        suffix = f"@call{self.calls}"
        inner = _Frame(suffix, (*frame.active, function.name), {})
        behind, around = f"return{suffix}", f"around{suffix}"
        if one.guard is not None:
            jump = replace(frame.instruction(one), opcode="bra", operands=(Symbol(around),))
            self.append(replace(jump, guard_negated=not one.guard_negated))
        plain = replace(one, guard=None, guard_negated=False)
        for formal, actual in zip(function.params, arguments, strict=True):
            self.copy(plain, formal, self.bind(one, function, formal, actual, inner), actual)
        sources = [
            self.bind(one, function, formal, actual, inner)
            for formal, actual in zip(function.returns, results, strict=True)
        ]
        self.body(function.body, inner, behind)
        self.place([behind])
        for formal, actual, source in zip(function.returns, results, sources, strict=True):
            if not isinstance(actual, Sink):
                self.copy(plain, formal, actual, source)
        self.place([around])

    def callee(self, one: Instruction, frame: _Frame) -> tuple[Function, list[Operand], list[Operand]]:
        """The function that is called, and what it returns to and is given, under their names in the kernel."""
        returns, callee, arguments, *targets = one.operands
        assert isinstance(returns, Vector)
        assert isinstance(arguments, Vector)
        if not isinstance(callee, Symbol) or targets:
            raise UnknownInstructionError(one.opcode, "calls through a register are not supported", one.line)
        function = self.functions.get(callee.name)
        spelt = f"{one.opcode} {callee.name}"
        if function is None:
            raise UnknownInstructionError(spelt, "not a function", one.line)
        if function.body is None:
            raise UnknownInstructionError(spelt, "the function has no body in the PTX", one.line)
        if function.name in frame.active:
            path = " > ".join((*frame.active, function.name))
            raise UnknownInstructionError(spelt, f"recursion is not supported: {path}", one.line)
        for what, actual, formal in (("results", returns, function.returns), ("arguments", arguments, function.params)):
            if len(actual.items) != len(formal):
                raise UnknownInstructionError(
                    spelt, f"{len(actual.items)} {what}, the function has {len(formal)}", one.line
                )
        given = [frame.operand(item) for item in arguments.items]
        return function, [frame.operand(item) for item in returns.items], given

    def bind(self, one: Instruction, function: Function, formal: Formal, actual: Operand, inner: _Frame) -> Operand:
        """Where the called function finds a parameter or leaves a result: a register, or a variable in local memory."""
        if formal.space == "reg":
            return Register(formal.name + inner.suffix)
        name = f"{formal.name}@{function.name}"
        if isinstance(actual, Symbol):
            name = actual.name
            given = self.variables.get(name)
            if given is None or given.size != formal.size:
                problem = f"{formal.name} has {formal.size} bytes, the variable passed for it {given and given.size}"
                raise UnknownInstructionError(f"{one.opcode} {function.name}", problem, one.line)
        else:
            self.variables.setdefault(name, Variable(name, "local", formal.size, formal.size))
        inner.symbols[formal.name] = name
        inner.local.add(formal.name)
        return Symbol(name)

    def copy(self, like: Instruction, formal: Formal, target: Operand, source: Operand) -> None:
        """Append the copy of a parameter or result, if it is not the same variable already."""
        bits = 8 * formal.size
        if isinstance(target, Symbol) and isinstance(source, Symbol):
            return
        if isinstance(target, Symbol):
            self.append(replace(like, opcode=f"st.local.b{bits}", operands=(Address(target), source)))
        elif isinstance(source, Symbol):
            self.append(replace(like, opcode=f"ld.local.b{bits}", operands=(target, Address(source))))
        else:
            self.append(replace(like, opcode=f"mov.b{bits}", operands=(target, source)))
