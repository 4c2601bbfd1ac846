"""What ptxas does to floating-point arithmetic by itself, done ahead of it: so that nothing is left for it to decide.

ptxas (with its default, -fmad=true) fuses a product and a sum into one `fma` unless one of them says `.rn`. The rule was
found with probes and random programs against the SASS of ptxas 12.9.86 (sm_90a) and 13.3.33 (sm_90a, sm_100a); every
statement of it is a test of `tests/emulator/test_contraction.py`:

* A *product* is an unmarked `mul`, or the last multiply inside `div.full`, `div.approx` and `rcp.approx` (not `.ftz`), with
  no guard. `x * 1` and `x * -1` are no products: they are removed before. A *sum* is an unmarked `add` or `sub`.
* A product is followed through register `mov` and through `neg`.
* It may be fused into a sum if every use that it still has is a sum of the same type and the same `.ftz` in its own basic
  block, and no sum adds it to itself. Nothing may be live at the end of the block. A guard on the sum does not matter.
* Products with one use come first, all others in a second round; each round visits the sums in order and takes the
  operand with fewer uses, at equality the first. The other operand, if it is a product too, is now used by an `fma`, so
  it can be fused no further. Uses by dead code do not count.
* The same for f32, f64, f16, bf16 and the packed f16x2, bf16x2, f32x2 (the latter with ptxas 13; 12.9 fuses packed f32
  even against `.rn`, so its sm_100 code cannot be vouched for).

Ahead of that, constants (`equiv.emulator.constants`): an approximate function of a constant is computed by ptxas in double
and rounded, which is not what the instruction would return; a division by a constant becomes a multiplication by its
rounded reciprocal.

`contract` rewrites fused sums as `fma.rn` and marks other sums of products with `.rn`. `equiv.emulator.vouch` shows for each
kernel that ptxas makes the same SASS of the result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from equiv.emulator import constants
from equiv.emulator.dataflow import Block, blocks, read, written
from equiv.emulator.ptx import Immediate, Instruction, Kernel, Operand, Register

_TYPES = frozenset({"f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})
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
_MOVES = frozenset({"mov.b16", "mov.b32", "mov.b64", "mov.f32", "mov.f64", "mov.u16", "mov.u32", "mov.u64"})
_ONES = frozenset({0x3F80_0000, 0xBF80_0000})


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
    for block in blocks(folded):
        _contract_block(rewrite, block)
    contracted = rewrite.kernel()
    return contracted, tuple(sorted(done + rewrite.done, key=lambda one: one.line))


@dataclass(slots=True)
class _Product:
    """A product of the block at hand: where it is computed and who uses it."""

    index: int
    type: str
    ftz: bool
    uses: list[_Use] = field(default_factory=list)
    escapes: bool = False


@dataclass(frozen=True, slots=True)
class _Use:
    """A use of a product by the instruction `index` in operand `position`, through `negations` negations."""

    index: int
    position: int
    negative: bool


def _parts(opcode: str) -> tuple[str, str, frozenset[str]]:
    """(`mul`, `f32`, modifiers between) of `mul.ftz.f32`."""
    head, *modifiers = opcode.split(".")
    return head, modifiers[-1] if modifiers else "", frozenset(modifiers[:-1])


def _product_type(instruction: Instruction) -> tuple[str, bool] | None:
    """(type, ftz) if the instruction computes a product that may be fused."""
    head, kind, modifiers = _parts(instruction.opcode)
    if instruction.guard is not None or kind not in _TYPES:
        return None
    ftz = "ftz" in modifiers
    if head == "mul" and modifiers <= {"ftz"}:
        factors = instruction.operands[1:]
        if ftz and any(isinstance(one, Immediate) and one.bits in _ONES for one in factors):
            return None  # removed before; without .ftz it is a move already
        return kind, ftz
    approximate = kind == "f32" and modifiers - {"ftz"} in ({"full"}, {"approx"})
    return (kind, ftz) if approximate and (head == "div" or (head == "rcp" and not ftz)) else None


def _is_sum(instruction: Instruction) -> bool:
    head, kind, modifiers = _parts(instruction.opcode)
    return head in {"add", "sub"} and kind in _TYPES and modifiers <= {"ftz", "sat"}


def _contract_block(rewrite: _Rewrite, block: Block) -> None:
    instructions = rewrite.original.instructions
    by_sum: dict[int, list[tuple[_Product, _Use]]] = {}
    for product in _products(rewrite, block):
        for use in product.uses:
            if _is_sum(instructions[use.index]):
                by_sum.setdefault(use.index, []).append((product, use))
    fused: set[int] = set()
    for several in (False, True):
        for index in sorted(by_sum.keys() - fused):
            candidates = [
                (len(product.uses), use.position, product, use)
                for product, use in by_sum[index]
                if (len(product.uses) > 1) is several and _fusable(instructions, product)
            ]
            if not candidates:
                continue
            *_, product, use = min(candidates, key=lambda candidate: candidate[:2])
            fused.add(index)
            rewrite.fuse(product.index, index, use.position, negative=use.negative)
            for other, other_use in by_sum[index]:
                if other_use is not use:
                    other.escapes = True  # an fma adds it now
    for index in block.indices:
        if (
            index not in fused
            and _is_sum(instructions[index])
            and not rewrite.suspects.isdisjoint(read(instructions[index]))
        ):
            rewrite.mark(index)


def _suspects(kernel: Kernel) -> set[str]:
    """Registers that could hold a product if the rule above were wrong: through any block, guard, selection or bit mask.

    A sum of one is marked, so that a wrong rule shows. Not all sums are: `.rn` also keeps ptxas from knowing their range,
    and then it makes other, equivalent code of the divisions behind them.
    """
    found: set[str] = set()
    size = -1
    while size != len(found):
        size = len(found)
        for one in kernel.instructions:
            head, _, modifiers = _parts(one.opcode)
            if head in {"mul", "div", "rcp"} and "rn" not in modifiers:
                found.update(written(one))
            elif head in {"mov", "neg", "abs", "selp", "xor", "and", "or"} and not found.isdisjoint(read(one)):
                found.update(written(one))
    return found


def _fusable(instructions: tuple[Instruction, ...], product: _Product) -> bool:
    if product.escapes:
        return False
    sums: set[int] = set()
    for use in product.uses:
        one = instructions[use.index]
        _, kind, modifiers = _parts(one.opcode)
        if not _is_sum(one) or kind != product.type or ("ftz" in modifiers) != product.ftz or use.index in sums:
            return False
        sums.add(use.index)
    return True


def _products(rewrite: _Rewrite, block: Block) -> list[_Product]:
    """The products of a block with all their uses, but for those by dead code."""
    found: list[_Product] = []
    holds: dict[str, tuple[_Product, bool]] = {}  # register -> the product that it holds, negated or not
    for index in block.indices:
        if index in block.dead:
            continue
        one = rewrite.original.instructions[index]
        copied = _copied(one, holds)
        if copied is None:
            _record_uses(one, index, holds)
        targets = written(one)
        for name in targets:
            held = holds.get(name)
            if held is not None and one.guard is not None:
                held[0].escapes = True  # the register now holds one value or the other
            holds.pop(name, None)
        product_type = _product_type(one)
        if product_type is not None:
            product = _Product(index, *product_type)
            found.append(product)
            holds[targets[0]] = (product, False)
        elif copied is not None:
            holds[targets[0]] = copied
    for name, (product, _) in holds.items():
        if name in block.live_out:
            product.escapes = True
    return found


def _copied(one: Instruction, holds: dict[str, tuple[_Product, bool]]) -> tuple[_Product, bool] | None:
    """The product that the instruction copies or negates, if that is all it does."""
    sources = [operand.name for operand in one.operands[1:] if isinstance(operand, Register)]
    held = holds.get(sources[0]) if len(sources) == 1 and one.guard is None else None
    if held is None:
        return None
    product, negative = held
    head, kind, modifiers = _parts(one.opcode)
    if one.opcode in _MOVES:
        return held
    if kind == product.type and head == "neg" and not modifiers:
        return product, not negative
    return None


def _record_uses(one: Instruction, index: int, holds: dict[str, tuple[_Product, bool]]) -> None:
    direct: set[str] = set()
    for position, operand in enumerate(one.operands[1:], start=1):
        if isinstance(operand, Register) and operand.name in holds:
            product, negative = holds[operand.name]
            product.uses.append(_Use(index, position, negative))
            direct.add(operand.name)
    for name in read(one):
        if name in holds and name not in direct:
            holds[name][0].escapes = True  # inside an address or a vector, or a first operand that is read


class _Rewrite:
    """Collects what each instruction of `original` becomes."""

    def __init__(self, original: Kernel) -> None:
        self.original = original
        self.becomes: dict[int, list[Instruction]] = {}
        self.factors: dict[int, tuple[Operand, Operand]] = {}  # product -> what the fma multiplies
        self.registers = dict(original.registers)
        self.fresh = 0
        self.done: list[Contraction] = []
        self.suspects = _suspects(original)
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
        head, kind, modifiers = _parts(one.opcode)
        target, *operands = one.operands
        addend = operands[2 - position]
        first, second = self._factors(product)
        new: list[Instruction] = []
        if head == "sub":
            if position == 1:
                addend = self._negated(new, one, kind, addend)
            else:
                negative = not negative
        if negative and isinstance(second, Immediate):
            second = self._negated(new, one, kind, second)
        elif negative:
            first = self._negated(new, one, kind, first)
        opcode = ".".join(["fma", "rn", *(part for part in ("ftz", "sat") if part in modifiers), kind])
        new.append(replace(one, opcode=opcode, operands=(target, first, second, addend)))
        self.becomes[index] = new
        original = self.original.instructions[product]
        self.done.append(
            Contraction("fused", one.line, original.line, f"{original.opcode} {one.opcode}", opcode, one.source)
        )

    def _negated(self, new: list[Instruction], like: Instruction, kind: str, operand: Operand) -> Operand:
        if isinstance(operand, Immediate):
            return Immediate(operand.bits ^ _SIGN_BITS[kind], operand.kind)
        result = self.new_register(_REGISTER_TYPE[kind])
        flip = replace(like, opcode=f"neg.{kind}", operands=(result, operand), guard=None, guard_negated=False)
        if kind == "f32x2":  # PTX has no packed neg
            flip = replace(flip, opcode="xor.b64", operands=(result, operand, Immediate(_SIGN_BITS[kind], "int")))
        new.append(flip)
        return result

    def _factors(self, product: int) -> tuple[Operand, Operand]:
        """The two factors, in registers or constants that still hold at the sum."""
        if product not in self.factors:
            one = self.original.instructions[product]
            head, _, modifiers = _parts(one.opcode)
            group: list[Instruction] = []
            if head == "mul":
                first, second = one.operands[1:]
                kind = _REGISTER_TYPE[_parts(one.opcode)[1]]
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
        """What ptxas makes of an approximate division up to its last multiply: scaling into the range of the reciprocal."""
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
        for index in reversed(range(len(groups))):
            one = self.original.instructions[index]
            carries = one.opcode in _MOVES or one.opcode.startswith("neg.")
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
