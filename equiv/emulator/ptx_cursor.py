"""A cursor over PTX tokens, and what can stand both inside and outside a kernel: numbers and variable statements."""

from __future__ import annotations

import struct

from equiv.emulator.ptx import Immediate, Variable
from equiv.emulator.ptx_tokens import END, Tokens
from equiv.errors import PtxSyntaxError, UnknownInstructionError

TYPE_BYTES = {"pred": 1, "f16": 2, "bf16": 2, "f32": 4, "f16x2": 4, "bf16x2": 4, "f64": 8, "f32x2": 8, "b128": 16}
TYPE_BYTES |= {f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)}
SPACES = frozenset({".shared", ".local", ".global", ".const"})


class Cursor:
    """A position in the tokens; each method reads what it names and moves behind it, or raises PtxSyntaxError."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.kinds = tokens.kinds
        self.values = tokens.values
        self.at = 0
        self.immediates: dict[str, Immediate] = {}

    def fail(self, problem: str, at: int | None = None) -> PtxSyntaxError:
        """The error for what stands at the cursor, or at the token `at`."""
        return PtxSyntaxError(problem, self.tokens.line(self.at if at is None else at))

    def take(self, value: str) -> None:
        """Exactly this token."""
        if self.values[self.at] != value:
            raise self.fail(f"expected {value!r}, found {self.values[self.at]!r}")
        self.at += 1

    def accept(self, value: str) -> bool:
        """This token if it stands here; says whether it did."""
        if self.values[self.at] != value:
            return False
        self.at += 1
        return True

    def word(self, what: str) -> str:
        """A word; `what` names it in the error."""
        if self.kinds[self.at] != "word":
            raise self.fail(f"expected {what}, found {self.values[self.at]!r}")
        self.at += 1
        return self.values[self.at - 1]

    def integer(self) -> int:
        """An integer, with its sign."""
        negative = self.accept("-")
        if self.kinds[self.at] != "number":
            raise self.fail(f"expected an integer, found {self.values[self.at]!r}")
        immediate = self.immediate(self.values[self.at])
        if immediate.kind != "int":
            raise self.fail(f"expected an integer, found {self.values[self.at]!r}")
        self.at += 1
        return -immediate.bits if negative else immediate.bits

    def skip_statement(self) -> None:
        """Everything up to and including the next semicolon."""
        while self.values[self.at] != ";":
            if self.kinds[self.at] == END:
                raise self.fail("the text ends inside a statement")
            self.at += 1
        self.at += 1

    def skip_block(self) -> None:
        """A block in braces."""
        if self.values[self.at] != "{":
            raise self.fail(f"expected '{{', found {self.values[self.at]!r}")
        self.at = self.tokens.closing[self.at] + 1

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
        """The bytes of an initialiser: a number, or numbers in braces."""
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

    def immediate(self, spelt: str) -> Immediate:
        """The record of a number as spelt."""
        known = self.immediates.get(spelt)
        if known is None:
            known = self.immediates[spelt] = _read_number(spelt)
            if known.bits >> 64:
                raise self.fail(f"{spelt} does not fit 64 bits")
        return known

    def operand_number(self) -> Immediate:
        """A number with its sign, as an operand."""
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
