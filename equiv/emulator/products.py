"""Which products ptxas fuses into which sums.

ptxas (with its default, -fmad=true) fuses a product and a sum into one `fma` unless one of them says `.rn`. The rule
was found with probes and random programs against the SASS of ptxas 12.9.86 (sm_90a) and 13.3.33 (sm_90a, sm_100a); its
statements are tests of `tests/emulator/test_contraction.py`:

* A *product* is an unmarked `mul` without guard, or the last multiply inside `div.full`, `div.approx` and (not `.ftz`)
  `rcp.approx`. A *sum* is an unmarked `add` or `sub`, guarded or not. A product is followed through register `mov` and
  `neg`.
* A product may be fused if each of its uses is a sum of the same type and the same `.ftz` in the product's own basic
  block, and none adds it to itself. It may not be live at the end of the block.
* A product with a constant or a kernel parameter as factor is not held to its block: its uses may be anywhere.
* Products with one use come first, all others in a second round; each round visits the sums in order and takes the
  operand with fewer uses, at equality the first. The other operand, if it is a product too, is now used by an `fma`, so
  it can be fused no further. Uses by dead code do not count.
* The same for f32, f64, f16, bf16 and the packed f16x2, bf16x2, f32x2 (the latter with ptxas 13; 12.9 fuses packed f32
  even against `.rn`, so its sm_100 code cannot be vouched for).

Known to be outside: ptxas merges blocks when a branch is decided at compile time or two branches have one condition, it
fuses equal products after merging them, and 13.3 takes an `xor` of the sign bit for a `neg`. Vouching shows such cases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from equiv.emulator.dataflow import Block, blocks, read, written
from equiv.emulator.ptx import Address, Immediate, Instruction, Kernel, Operand, Register, Symbol

TYPES = frozenset({"f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})
MOVES = frozenset({"mov.b16", "mov.b32", "mov.b64", "mov.f32", "mov.f64", "mov.u16", "mov.u32", "mov.u64"})
_PRODUCES = frozenset({"mul", "div", "rcp"})
_CARRIES = frozenset({"mov", "neg", "abs", "selp", "xor", "and", "or"})
_ONES = frozenset({0x3F80_0000, 0xBF80_0000})


@dataclass(slots=True)
class Product:
    """A product: where it is computed and who uses it."""

    index: int
    type: str
    ftz: bool
    uses: list[Use] = field(default_factory=list)
    escapes: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a product by the instruction `index` in operand `position`, negated on the way or not."""

    index: int
    position: int
    negative: bool


_Held = tuple[Product, bool]  # a product, negated or not


def parts(opcode: str) -> tuple[str, str, frozenset[str]]:
    """(`mul`, `f32`, modifiers between) of `mul.ftz.f32`."""
    head, *modifiers = opcode.split(".")
    return head, modifiers[-1] if modifiers else "", frozenset(modifiers[:-1])


def is_sum(instruction: Instruction) -> bool:
    """An unmarked `add` or `sub` of a type that is fused."""
    head, kind, modifiers = parts(instruction.opcode)
    return head in {"add", "sub"} and kind in TYPES and modifiers <= {"ftz", "sat"}


def fusions(kernel: Kernel) -> list[tuple[Product, Use]]:
    """All fusions: at most one a sum, in the order in which they are decided."""
    instructions = kernel.instructions
    by_sum: dict[int, list[tuple[Product, Use]]] = {}
    for product in _products(kernel):
        for use in product.uses:
            if is_sum(instructions[use.index]):
                by_sum.setdefault(use.index, []).append((product, use))
    decided: dict[int, tuple[Product, Use]] = {}
    for several in (False, True):
        for index in sorted(by_sum.keys() - decided.keys()):
            candidates = [
                (len(product.uses), use.position, product, use)
                for product, use in by_sum[index]
                if (len(product.uses) > 1) is several and _fusable(instructions, product)
            ]
            if candidates:
                *_, product, use = min(candidates, key=lambda candidate: candidate[:2])
                decided[index] = product, use
                for other, other_use in by_sum[index]:
                    if other_use is not use:
                        other.escapes = True  # an fma adds it now
    return list(decided.values())


def suspects(kernel: Kernel) -> set[str]:
    """Registers that could hold a product if the rule were wrong: through any block, guard, selection or bit mask."""
    found: set[str] = set()
    size = -1
    while size != len(found):
        size = len(found)
        for one in kernel.instructions:
            head, _, modifiers = parts(one.opcode)
            product = head in _PRODUCES and "rn" not in modifiers
            if product or (head in _CARRIES and not found.isdisjoint(read(one))):
                found.update(written(one))
    return found


def _fusable(instructions: tuple[Instruction, ...], product: Product) -> bool:
    if product.escapes:
        return False
    sums: set[int] = set()
    for use in product.uses:
        one = instructions[use.index]
        _, kind, modifiers = parts(one.opcode)
        if not is_sum(one) or kind != product.type or ("ftz" in modifiers) != product.ftz or use.index in sums:
            return False
        sums.add(use.index)
    return True


def _product(instruction: Instruction, index: int) -> Product | None:
    """The product that the instruction computes, if it may be fused."""
    head, kind, modifiers = parts(instruction.opcode)
    if instruction.guard is not None or kind not in TYPES:
        return None
    ftz = "ftz" in modifiers
    if head == "mul" and modifiers <= {"ftz"}:
        # x * 1 is removed before; without .ftz it is a move already (equiv.emulator.constants).
        one = ftz and any(isinstance(factor, Immediate) and factor.bits in _ONES for factor in instruction.operands[1:])
        return None if one else Product(index, kind, ftz)
    approximate = kind == "f32" and modifiers - {"ftz"} in ({"full"}, {"approx"})
    return Product(index, kind, ftz) if approximate and (head == "div" or (head == "rcp" and not ftz)) else None


def _products(kernel: Kernel) -> list[Product]:
    """The products of a kernel with all their uses, but for those by dead code."""
    found: list[Product] = []
    instructions = kernel.instructions
    times_written = Counter(name for one in instructions for name in written(one))
    first_read: dict[str, int] = {}
    for index, one in enumerate(instructions):
        for name in read(one):
            first_read.setdefault(name, index)
    fixed = _fixed(kernel, times_written)
    anywhere: dict[str, _Held] = {}  # registers that hold a product which may be fused across blocks
    for block in blocks(kernel):
        holds = dict(anywhere)
        for index in block.indices:
            if index in block.dead:
                continue
            one = instructions[index]
            copied = _copied(one, holds)
            if copied is None:
                _record_uses(one, index, holds)
            targets = written(one)
            for name in targets:
                held = holds.pop(name, None)
                if held is not None and one.guard is not None:
                    held[0].escapes = True  # the register now holds one value or the other
            product = _product(one, index)
            if product is not None:
                found.append(product)
                held = (product, False)
                crosses = one.opcode.startswith("mul.") and any(_is_fixed(factor, fixed) for factor in one.operands[1:])
            elif copied is not None:
                held = copied
                crosses = any(copied[0] is other for other, _ in anywhere.values())
            else:
                continue
            holds[targets[0]] = held
            if crosses and times_written[targets[0]] == 1 and first_read.get(targets[0], index) >= index:
                anywhere[targets[0]] = held
        _escape(block, holds, anywhere)
    return found


def _escape(block: Block, holds: dict[str, _Held], anywhere: dict[str, _Held]) -> None:
    for name, (product, _) in holds.items():
        if name in block.live_out and name not in anywhere:
            product.escapes = True


def _fixed(kernel: Kernel, times_written: Counter[str]) -> set[str]:
    """Registers that hold a constant or a kernel parameter, negated perhaps, wherever they are read.

    What `ld.param` reads of a function's parameters or of a call's results is neither.
    """
    found: set[str] = set()
    params = {param.name for param in kernel.params}
    for one in kernel.instructions:
        target = written(one)
        if len(target) != 1 or times_written[target[0]] != 1 or one.guard is not None or len(one.operands) != 2:
            continue
        source, head = one.operands[1], one.opcode.partition(".")[0]
        parameter = isinstance(source, Address) and one.opcode.startswith("ld.param.") and bool(params)
        if parameter and isinstance(source, Address) and isinstance(source.base, Symbol):
            parameter = source.base.name in params
        if parameter or (head in {"mov", "neg"} and _is_fixed(source, found)):
            found.add(target[0])
    return found


def _is_fixed(operand: Operand, fixed: set[str]) -> bool:
    return isinstance(operand, Immediate) or (isinstance(operand, Register) and operand.name in fixed)


def _copied(one: Instruction, holds: dict[str, _Held]) -> _Held | None:
    """The product that the instruction copies or negates, if that is all it does."""
    sources = [operand.name for operand in one.operands[1:] if isinstance(operand, Register)]
    held = holds.get(sources[0]) if len(sources) == 1 and one.guard is None else None
    if held is None:
        return None
    product, negative = held
    head, kind, modifiers = parts(one.opcode)
    if one.opcode in MOVES:
        return held
    if kind == product.type and head == "neg" and not modifiers:
        return product, not negative
    return None


def _record_uses(one: Instruction, index: int, holds: dict[str, _Held]) -> None:
    direct: set[str] = set()
    for position, operand in enumerate(one.operands[1:], start=1):
        if isinstance(operand, Register) and operand.name in holds:
            product, negative = holds[operand.name]
            product.uses.append(Use(index, position, negative))
            direct.add(operand.name)
    for name in read(one):
        if name in holds and name not in direct:
            holds[name][0].escapes = True  # inside an address or a vector, or a first operand that is read
