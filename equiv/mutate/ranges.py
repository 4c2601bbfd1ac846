"""What is known of a register's bits whatever the inputs are, and the mutants that this proves to be equivalent.

Looks through instructions without a guard; a register that several write has the zeros that all of them leave. Proofs:

* a comparison (`eq`, `ne`) that comes out as before: of constants, or with a constant that has a bit the register
  never has; a bound moved past a value the register never has; a `selp` of constants of which only whether it is zero
  is read;
* an `and` whose constant differs only in bits that are zero in its other operand, as the low half of a widened bf16;
* an addition in the place of a subtraction, or the reverse, of a multiple of 2^k, where all that is made of the result
  depends on its low k + 1 bits alone, as the phase of a barrier on a count;
* a `prmt` whose selector differs only in which bytes of zeros it takes;
* another rounding of a product with a power of two, where all that is made of it is a saturating conversion to 8 bits
  or fewer: the product is exact but for what is below 2^-126, which becomes a zero of the same sign either way, and
  beyond 2^127, which saturates either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator.dataflow import written
from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.ptx import Immediate, Instruction, Operand, Register, Special, Symbol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.emulator.ptx import Kernel

ALL = (1 << 64) - 1
MANTISSA = (1 << 23) - 1
_NARROW = ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2")
_UPWARDS = ("add", "sub", "mul.lo", "mov", "and", "or", "xor")
"""Operations whose low bits depend on low bits alone."""
_INTEGER_TESTS = ("eq", "ne")
_DEEP = 24
"""Instructions that are looked through."""


class Ranges:
    """Facts about one kernel. `makers`, `readers`: as of a `Target`; `aligned`: of variables."""

    def __init__(
        self,
        kernel: Kernel,
        makers: Mapping[str, Instruction],
        readers: Mapping[str, Sequence[int]],
        aligned: Mapping[str, int] | None = None,
    ) -> None:
        self._kernel = kernel
        self._makers = makers
        self._aligned = aligned or {}
        self._readers = readers
        writers: dict[str, list[Instruction]] = {}
        for one in kernel.instructions:
            for name in written(one):
                writers.setdefault(name, []).append(one)
        self._zeros = self._all_zeros(writers)

    def _all_zeros(self, writers: Mapping[str, list[Instruction]]) -> dict[str, int]:
        """Register -> bits that are zero after each instruction that writes it: the greatest solution, for loops."""
        self._zeros = {name: ALL if any(one.guard is None for one in ones) else 0 for name, ones in writers.items()}
        changed = True
        while changed:
            changed = False
            for name, ones in writers.items():
                known = self._zeros[name]
                for one in ones if known else ():
                    known &= self._made(one) if one.operands[0] == Register(name) else 0
                if known != self._zeros[name]:
                    self._zeros[name], changed = known, True
        return self._zeros

    def equivalent(self, one: Instruction, after: Instruction) -> str:
        """Why a change cannot matter, or ""."""
        words = one.opcode.split(".")
        if words[0] == "setp" and words[1] in _INTEGER_TESTS and after.opcode == one.opcode:
            both = [self._compared(words, made) for made in (one, after)]
            if both[0] is not None and both[0] == both[1]:
                return "constants that compare as before"
        if words[0] == "setp" and after.opcode == one.opcode and self._beside(words, one, after):
            return "no value that the register can have decides otherwise"
        if words[0] == "selp" and after.opcode == one.opcode and self._only_tested(one.operands[0]):
            width = (1 << TYPE_BITS[words[-1]]) - 1
            was_zero, is_zero = (
                [isinstance(x, Immediate) and x.bits & width == 0 for x in made.operands[1:3]] for made in (one, after)
            )
            constants = all(isinstance(x, Immediate) for made in (one, after) for x in made.operands[1:3])
            if constants and was_zero == is_zero:
                return "whether it is zero is all that is read of it"
        if words[0] == "and" and one.opcode == after.opcode and one.operands[:2] == after.operands[:2]:
            was, now = one.operands[2], after.operands[2]
            if isinstance(was, Immediate) and isinstance(now, Immediate):
                width = (1 << TYPE_BITS[words[-1]]) - 1
                if not (was.bits ^ now.bits) & width & ~self.zeros(one.operands[1]):
                    return "the bits that the constant differs in are zero"
        if {words[0], after.opcode.partition(".")[0]} == {"add", "sub"} and words[-1][0] in "us":
            made = one.operands[0]
            common = ~self.zeros(one.operands[2]) & (1 << TYPE_BITS[words[-1]]) - 1
            bits = (common & -common).bit_length()  # twice the second operand is a multiple of two to the power of it
            if one.operands == after.operands and isinstance(made, Register) and self._low(made.name, bits, set()):
                return "it differs in high bits that nothing made of it depends on"
        if one.opcode == after.opcode == "prmt.b32" and one.operands[:3] == after.operands[:3]:
            taken, instead = (self._bytes(made) for made in (one, after))
            if taken is not None and taken == instead:
                return "the bytes that it takes instead are zero, too"
        if words in (["mul", "f32"], ["mul", "rn", "f32"]) and after.opcode in {"mul.rz.f32", "mul.rp.f32"}:
            power = any(self.zeros(factor) & MANTISSA == MANTISSA for factor in one.operands[1:])
            if power and self._only_narrowed(one.operands[0]):
                return "a product with a power of two, of which 8 bits are kept"
        return ""

    def zeros(self, operand: Operand) -> int:
        """Bits (of 64) that are zero in an operand whenever it is read."""
        if isinstance(operand, Immediate):
            return ~operand.bits & ALL
        if isinstance(operand, Special):
            return self._special(operand.name)
        if isinstance(operand, Symbol):
            return self._aligned.get(operand.name, 1) - 1
        return self._zeros.get(operand.name, 0) if isinstance(operand, Register) else 0

    def _special(self, name: str) -> int:
        threads = self._kernel.directives.get("reqntid")
        axis = {"%tid.x": 0, "%tid.y": 1, "%tid.z": 2}.get(name)
        if axis is None or threads is None:
            return ALL & ~31 if name == "%laneid" else 0
        most = (*threads, 1, 1)[axis] - 1
        return ALL & ~((1 << most.bit_length()) - 1)

    def _made(self, maker: Instruction) -> int:
        words = maker.opcode.split(".")
        base, kind = words[0], words[-1]
        if base == "cvt" and words[1:] == ["f32", "bf16"]:
            return 0xFFFF
        if kind not in TYPE_BITS or len(maker.operands) < 2:
            return 0
        bits = TYPE_BITS[kind]
        wide = ALL & ~((1 << bits) - 1)
        given = [self.zeros(one) for one in maker.operands[1:]]
        count = maker.operands[2] if len(maker.operands) > 2 else None
        if base == "mov" and len(given) == 1:
            return given[0] | wide
        if base == "cvt" and words[-2][0] == "u" and kind[0] == "u":
            return given[0] | (ALL & ~((1 << min(bits, TYPE_BITS[words[-2]])) - 1))
        if base == "and":
            return given[0] | given[1] | wide
        if base in {"or", "xor"} or (base in {"max", "min"} and kind[0] in "us"):
            return (given[0] & given[1]) | wide
        if base == "shfl" or (base == "redux" and words[2] in {"max", "min", "or"}):
            return given[0] | wide
        if base in {"shl", "shr"} and isinstance(count, Immediate) and count.bits < bits and kind[0] != "s":
            if base == "shl":
                return (given[0] << count.bits & ALL) | ((1 << count.bits) - 1) | wide
            return (given[0] & (1 << bits) - 1) >> count.bits | (ALL & ~((1 << (bits - count.bits)) - 1))
        if base in {"add", "sub"} and kind[0] in "us":
            low = given[0] & given[1]
            return ((low ^ (low + 1)) >> 1) | wide  # trailing zeros of both stay; nothing is carried out of them
        return 0

    def _compared(self, words: list[str], one: Instruction) -> bool | None:
        """How an integer comparison comes out: of two constants, or of what has no bit of the other side's."""
        left, right = one.operands[1:3]
        if not isinstance(right, Immediate) or len(one.operands) != 3:
            return None
        if words[-1][0] not in "usb" or words[-1] == "bf16":  # floats: zeros are equal, a NaN is not
            return None
        if isinstance(left, Immediate):
            mask = (1 << TYPE_BITS[words[-1]]) - 1
            return (left.bits & mask == right.bits & mask) == (words[1] == "eq")
        if right.bits & self.zeros(left) & (1 << TYPE_BITS[words[-1]]) - 1:
            return words[1] == "ne"
        return None

    def _beside(self, words: list[str], one: Instruction, after: Instruction) -> bool:
        """Whether constants one apart decide alike, as the one value between has bits that the register never has."""
        was, now = one.operands[2], after.operands[2]
        if one.operands[:2] != after.operands[:2] or not (isinstance(was, Immediate) and isinstance(now, Immediate)):
            return False
        if words[-1][0] not in "us" or abs(was.bits - now.bits) != 1 or len(one.operands) != 3:
            return False
        between = {"gt": max, "le": max, "ge": min, "lt": min}.get(words[1])
        width = (1 << TYPE_BITS[words[-1]]) - 1
        signs = ~width | (width ^ width >> 1 if words[-1][0] == "s" else 0)
        if (was.bits ^ now.bits) & signs:  # one of them is the least, the other the greatest there is
            return False
        return between is not None and bool(between(was.bits, now.bits) & width & self.zeros(one.operands[1]))

    def _bytes(self, one: Instruction) -> list[int | None] | None:
        """The selector's nibbles of a `prmt`, None where the byte is zero; None for all if it is in a register."""
        selector = one.operands[3]
        if not isinstance(selector, Immediate):
            return None
        zeros = [self.zeros(operand) >> 8 * byte & 0xFF == 0xFF for operand in one.operands[1:3] for byte in range(4)]
        nibbles = [selector.bits >> 4 * place & 0xF for place in range(4)]
        return [None if zeros[nibble & 7] else nibble for nibble in nibbles]

    def _reading(self, name: str) -> list[Instruction]:
        return [self._kernel.instructions[index] for index in self._readers.get(name, ())]

    def _low(self, name: str, bits: int, seen: set[str]) -> bool:
        """Whether all that is made of a register depends on its lowest `bits` bits alone."""
        if name in seen:
            return True
        seen.add(name)
        for one in self._reading(name):
            words, made = one.opcode.split("."), one.operands[0]
            if words[-1] not in TYPE_BITS or not isinstance(made, Register):
                return False
            others = [operand for operand in one.operands[1:] if operand != Register(name)]
            masked = (
                words[0] == "and"
                and others
                and not ~self.zeros(others[0]) & (1 << TYPE_BITS[words[-1]]) - 1 >> bits << bits
            )
            carries = ".".join(words[:-1]) in _UPWARDS and words[-1][0] in "usb"
            if not masked and not (carries and self._low(made.name, bits, seen)):
                return False
        return True

    def _only_tested(self, target: Operand) -> bool:
        """Whether all that reads a register compares it with 0."""
        readers = self._reading(target.name) if isinstance(target, Register) else []
        return bool(readers) and all(
            one.opcode.startswith(("setp.ne.", "setp.eq.")) and one.operands[1:] == (target, Immediate(0, "int"))
            for one in readers
        )

    def _only_narrowed(self, target: Operand, depth: int = 0) -> bool:
        """Whether all that reads a float register is a saturating conversion to 8 bits or fewer."""
        if not isinstance(target, Register) or depth > _DEEP or target.name not in self._makers:
            return False
        readers = self._reading(target.name)
        return bool(readers) and all(
            self._only_narrowed(one.operands[0], depth + 1)
            if one.opcode in {"mov.f32", "mov.b32"} and one.guard is None and isinstance(one.operands[1], Register)
            else one.opcode.startswith("cvt.rn.satfinite.") and one.opcode.split(".")[3] in _NARROW
            for one in readers
        )
