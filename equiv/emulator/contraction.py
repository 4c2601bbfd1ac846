"""What ptxas does to floating-point arithmetic by itself, done ahead of it: so that nothing is left for it to decide.

Two things: approximate functions of constants and divisions by constants (`equiv.emulator.constants`), and fusing
products into sums (the rule is in `equiv.emulator.products`). `contract` rewrites a fused sum as `fma.rn` and marks the
other sums of products with `.rn`. `equiv.emulator.vouch` shows for each kernel that ptxas makes the same SASS of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from equiv.emulator import constants
from equiv.emulator.dataflow import read, written
from equiv.emulator.products import MOVES, fusions, is_sum, parts, suspects
from equiv.emulator.ptx import Immediate, Instruction, Kernel, Module, Operand, Register, Vector

_SIGN_BITS = {"f32": 1 << 31, "f64": 1 << 63, "f32x2": 1 << 63 | 1 << 31}
_REGISTER_TYPE = {
    "f32": "f32",
    "f64": "f64",
    "f16": "b16",
    "bf16": "b16",
    "f16x2": "b32",
    "bf16x2": "b32",
    "f32x2": "b64",
}


@dataclass(frozen=True, slots=True)
class Contraction:
    """One thing done to a kernel.

    Attributes:
        kind: `fused` (a product into a sum) or `constant` (a function of, or a division by, a constant).
        line: one-based PTX line of the sum, or of the instruction with the constant.
        product_line: PTX line of the product; 0 for a constant.
        was: opcode before; now: opcode after.
        source: (file, line) of the kernel's source, if known.
    """

    kind: str
    line: int
    product_line: int
    was: str
    now: str
    source: tuple[str, int] | None


def contract(kernel: Kernel) -> tuple[Kernel, tuple[Contraction, ...]]:
    """The kernel as ptxas will compile it, and what was done to it, in order of the PTX lines."""
    folded, changes = constants.fold(kernel)
    done = [Contraction("constant", old.line, 0, old.opcode, new.opcode, old.source) for old, new in changes]
    rewrite = _Rewrite(folded)
    fused = set()
    for product, use in fusions(folded):
        rewrite.fuse(product.index, use.index, use.position, negative=use.negative)
        fused.add(use.index)
    # Marked is what a wrong rule could get wrong, so that it shows. Other sums are not: `.rn` also keeps ptxas from
    # knowing their range, and then it makes other, equivalent code of the divisions behind them.
    doubtful = suspects(folded)
    for index, one in enumerate(folded.instructions):
        if index not in fused and is_sum(one) and not doubtful.isdisjoint(read(one)):
            rewrite.mark(index)
    return rewrite.kernel(), tuple(sorted(done + rewrite.done, key=lambda entry: entry.line))


def contract_all(module: Module, kernel: str) -> Module:
    """The module with that kernel and all functions contracted, and without its other kernels."""
    functions = {
        name: one if one.body is None else replace(one, body=contract(one.body)[0])
        for name, one in module.functions.items()
    }
    return replace(module, kernels={kernel: contract(module.kernels[kernel])[0]}, functions=functions)


class _Rewrite:
    """Collects what each instruction of `original` becomes."""

    def __init__(self, original: Kernel) -> None:
        self.original = original
        self.becomes: dict[int, list[Instruction]] = {}
        self.factors: dict[int, tuple[Operand, Operand]] = {}  # product -> what the fma multiplies
        self.registers = dict(original.registers)
        self.fresh = 0
        self.done: list[Contraction] = []
        self.times_written = Counter(name for one in original.instructions for name in written(one))

    def new_register(self, kind: str) -> Register:
        name = f"%contract{self.fresh}"
        self.fresh += 1
        self.registers[name] = kind
        return Register(name)

    def mark(self, index: int) -> None:
        """Keep ptxas from fusing the sum."""
        one = self.original.instructions[index]
        head, *rest = one.opcode.split(".")
        self.becomes[index] = [replace(one, opcode=".".join([head, "rn", *rest]))]

    def fuse(self, product: int, index: int, position: int, *, negative: bool) -> None:
        """Turn the sum `index`, whose operand `position` is the (negated) product, into an `fma`."""
        one = self.original.instructions[index]
        head, kind, modifiers = parts(one.opcode)
        target, *operands = one.operands
        addend = operands[2 - position]
        first, second = self._factors(product)
        new: list[Instruction] = []
        if head == "sub":
            if position == 1:
                addend = self._negated(new, one, kind, addend)
            else:
                negative = not negative
        was = self.original.instructions[product].opcode
        if negative and (isinstance(second, Immediate) or not was.startswith("mul")):
            second = self._negated(new, one, kind, second)
        elif negative:
            first = self._negated(new, one, kind, first)
        opcode = ".".join(["fma", "rn", *(part for part in ("ftz", "sat") if part in modifiers), kind])
        new.append(replace(one, opcode=opcode, operands=(target, first, second, addend)))
        self.becomes[index] = new
        line = self.original.instructions[product].line
        self.done.append(Contraction("fused", one.line, line, f"{was} {one.opcode}", opcode, one.source))

    def _negated(self, new: list[Instruction], like: Instruction, kind: str, operand: Operand) -> Operand:
        if isinstance(operand, Immediate):
            return Immediate(operand.bits ^ _SIGN_BITS[kind], operand.kind)
        result = self.new_register(_REGISTER_TYPE[kind])
        pairs: list[tuple[str, tuple[Operand, ...]]] = [(f"neg.{kind}", (result, operand))]
        if kind == "f32x2":  # PTX has no packed neg; ptxas sees through this
            low, high = self.new_register("f32"), self.new_register("f32")
            halves = Vector((low, high))
            pairs = [("mov.b64", (halves, operand)), ("neg.f32", (low, low)), ("neg.f32", (high, high))]
            pairs.append(("mov.b64", (result, halves)))
        new += [replace(like, opcode=op, operands=to, guard=None, guard_negated=False) for op, to in pairs]
        return result

    def _factors(self, product: int) -> tuple[Operand, Operand]:
        """The two factors, in registers or constants that still hold at the sum."""
        if product not in self.factors:
            one = self.original.instructions[product]
            head, _, modifiers = parts(one.opcode)
            group: list[Instruction] = []
            if head == "mul":
                first, second = one.operands[1:]
                kind = _REGISTER_TYPE[parts(one.opcode)[1]]
                factors = (self._kept(group, one, kind, first), self._kept(group, one, kind, second))
            else:
                factors = self._split_division(group, one, head, modifiers)
                multiply = "mul.ftz.f32" if "ftz" in modifiers else "mul.f32"
                one = replace(one, opcode=multiply, operands=(one.operands[0], *factors))
            self.factors[product] = factors
            self.becomes[product] = [*group, one]
        return self.factors[product]

    def _kept(self, group: list[Instruction], product: Instruction, kind: str, operand: Operand) -> Operand:
        """The operand, or a copy of it taken at the product if its register is written more than once."""
        if not isinstance(operand, Register) or self.times_written[operand.name] <= 1:
            return operand
        copy = self.new_register(kind)
        group.append(replace(product, opcode=f"mov.{kind}", operands=(copy, operand)))
        return copy

    def _split_division(
        self, group: list[Instruction], one: Instruction, head: str, modifiers: frozenset[str]
    ) -> tuple[Operand, Operand]:
        """What ptxas makes of an approximate division up to its last multiply: scaled into the reciprocal's range."""
        ftz = ".ftz" if "ftz" in modifiers else ""
        divisor = one.operands[-1]

        def emit(opcode: str, *operands: Operand, guard: Register | None = None, negated: bool = False) -> None:
            name = None if guard is None else guard.name
            group.append(replace(one, opcode=opcode, operands=operands, guard=name, guard_negated=negated))

        size, reciprocal = self.new_register("f32"), self.new_register("f32")
        large, normal = self.new_register("pred"), self.new_register("pred")
        emit(f"abs{ftz}.f32", size, divisor)
        emit(f"setp.gt{ftz}.f32", large, size, _F32_2_126)
        if not ftz:
            emit("setp.geu.f32", normal, size, _F32_MIN_NORMAL)
        if head == "rcp":
            scale, halved = self.new_register("f32"), self.new_register("f32")
            product, small = self.new_register("f32"), self.new_register("pred")
            emit("not.pred", small, normal)
            emit("selp.f32", scale, _F32_2_24, _F32_ONE, small)
            emit("selp.f32", halved, _F32_QUARTER, scale, large)
            emit("mul.rn.f32", product, divisor, halved)
            emit("rcp.approx.ftz.f32", reciprocal, product)
            return halved, reciprocal
        dividend = one.operands[1]
        if "approx" in modifiers and ftz:
            group.clear()
            emit("rcp.approx.ftz.f32", reciprocal, divisor)
            return self._kept(group, one, "f32", dividend), reciprocal
        # The order decides how ptxas orders the factors; this one gives the order that it makes by itself.
        below, above = self.new_register("f32"), self.new_register("f32")
        emit("mov.f32", below, divisor)
        emit("mov.f32", above, dividend)
        if "full" in modifiers:
            emit(f"mul.rn{ftz}.f32", below, below, _F32_QUARTER, guard=large)
            if not ftz:
                emit("mul.rn.f32", above, above, _F32_QUARTER, guard=large)
        if not ftz:
            emit("mul.rn.f32", below, below, _F32_2_24, guard=normal, negated=True)
        emit("rcp.approx.ftz.f32", reciprocal, below)
        if ftz:
            emit("mul.rn.ftz.f32", above, above, _F32_QUARTER, guard=large)
        else:
            emit("mul.rn.f32", above, above, _F32_2_24, guard=normal, negated=True)
        return reciprocal, above

    def kernel(self) -> Kernel:
        """The rewritten kernel, without the instructions whose results nobody needs any more."""
        groups = [self.becomes.get(index, [one]) for index, one in enumerate(self.original.instructions)]
        self._drop_dead(groups)
        first: list[int] = [0]
        for group in groups:
            first.append(first[-1] + len(group))
        return replace(
            self.original,
            instructions=tuple(one for group in groups for one in group),
            labels={label: first[index] for label, index in self.original.labels.items()},
            registers=self.registers,
        )

    def _drop_dead(self, groups: list[list[Instruction]]) -> None:
        """Remove fused products, and the moves and negations that carried them, once nothing reads them."""
        suspects = set(self.factors)
        readers = Counter(name for group in groups for one in group for name in read(one))
        readers.update(self.original.results)
        for index in reversed(range(len(groups))):
            one = self.original.instructions[index]
            carries = one.opcode in MOVES or one.opcode.startswith("neg.")
            if not groups[index] or not (index in suspects or carries) or not self.factors:
                continue
            target = written(one)
            if (index in suspects and not readers.get(target[0])) or (
                carries and index not in suspects and len(target) == 1 and not readers.get(target[0])
            ):
                readers.subtract(read(groups[index].pop()))


_F32_2_126 = Immediate(0x7E80_0000, "f32")
_F32_MIN_NORMAL = Immediate(0x0080_0000, "f32")
_F32_QUARTER = Immediate(0x3E80_0000, "f32")
_F32_2_24 = Immediate(0x4B80_0000, "f32")
_F32_ONE = Immediate(0x3F80_0000, "f32")
