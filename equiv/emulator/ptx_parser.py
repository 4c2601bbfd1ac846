"""Reads PTX text into the records of `equiv.emulator.ptx`: a recursive-descent parser over the tokens.

Read in full: entries and functions with their parameters and directives, variables of every space with number
initialisers, registers, nested scopes, every operand form of those records. Refused by name: texture and sampler
variables, initialisers that hold addresses.
"""

from __future__ import annotations

from equiv.emulator.ptx import Formal, Function, Kernel, Module, Operand, Param, Symbol, Variable
from equiv.emulator.ptx_cursor import SPACES, TYPE_BYTES, Cursor
from equiv.emulator.ptx_kernel import Body
from equiv.emulator.ptx_tokens import END, Tokens, tokenize
from equiv.errors import PtxSyntaxError, UnknownInstructionError

_LINKAGE = frozenset({".extern", ".visible", ".weak", ".common"})


def parse(text: str) -> Module:
    """Read a PTX text; a trailing NUL, which some compilers leave behind it, is dropped.

    Raises:
        PtxSyntaxError: what stands there is not PTX that this parser reads; the line is one-based.
        UnknownInstructionError: valid PTX that the emulator has no use for: textures, parameters of variable length.
    """
    return _Parser(tokenize(text.rstrip("\0"))).module()


class _Parser(Cursor):
    """The module level. Only `module` is called from outside, once."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens)
        self.globals: dict[str, Operand] = {}
        self.functions: dict[str, Function] = {}

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
            elif word in SPACES:
                for variable in self.variable(word[1:], extern=".extern" in self.values[start : self.at]):
                    self.globals[variable.name] = Symbol(variable.name)
                    variables.append(variable)
            else:
                raise self.fail(f"unknown directive {word!r}", start)
        if not version or not target:
            raise PtxSyntaxError("no .version and .target", 1)
        return Module(version, target, kernels, tuple(variables), self.tokens.text, self.functions)

    def function(self) -> None:
        """A declaration, or a function with its body, behind the `.func`."""
        types: dict[str, str] = {}
        returns = self.formals(types)
        name = self.word("a function name")
        self.globals[name] = Symbol(name)
        params = self.formals(types)
        defined = self.directives("{", ";")
        body = None
        if defined is not None:
            statements = Body(self, self.globals, name, (), defined)
            statements.declare_formals(returns, params, types)
            body = statements.kernel()
        if body is not None or name not in self.functions:
            self.functions[name] = Function(name, returns, params, body)

    def formals(self, types: dict[str, str]) -> tuple[Formal, ...]:
        """Parameters or results of a function, in parentheses if any; the types of registers go into `types`."""
        found = []
        if self.accept("("):
            while not self.accept(")"):
                if self.accept(".reg"):
                    kind, name = self.word("a register type")[1:], self.word("a parameter name")
                    if kind not in TYPE_BYTES:
                        raise self.fail(f"unknown register type .{kind}", self.at - 2)
                    types[name] = kind
                    found.append(Formal(name, "reg", TYPE_BYTES[kind]))
                else:
                    param = self.param([])
                    found.append(Formal(param.name, "param", param.size))
                self.accept(",")
        return tuple(found)

    def entry(self) -> Kernel:
        name = self.word("a kernel name")
        params: list[Param] = []
        if self.accept("("):
            while not self.accept(")"):
                params.append(self.param(params))
                self.accept(",")
        return Body(self, self.globals, name, tuple(params), self.directives("{") or {}).kernel()

    def directives(self, opening: str, instead: str = "") -> dict[str, tuple[int, ...]] | None:
        """The directives in front of a body and its opening brace; None if `instead` stands there."""
        directives: dict[str, tuple[int, ...]] = {}
        while not self.accept(opening):
            if self.accept(instead):
                return None
            word = self.word("a kernel directive")
            if word == ".pragma":
                self.skip_statement()
                continue
            numbers = []
            while self.kinds[self.at] == "number":
                numbers.append(self.integer())
                self.accept(",")
            directives[word[1:]] = tuple(numbers)
        return directives

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
            if self.values[self.at] == "]":
                raise UnknownInstructionError(f".param {name}[]", "no length", self.tokens.line(self.at))
            size *= self.integer()
            self.take("]")
        if not size:
            raise self.fail(f"parameter {name} has no type or no size")
        end = before[-1].offset + before[-1].size if before else 0
        return Param(name, size, align, (end + align - 1) // align * align)
