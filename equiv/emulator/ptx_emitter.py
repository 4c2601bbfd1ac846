"""Writes a changed kernel back into its PTX text.

Everything that did not change stays as the compiler wrote it, so that ptxas sees the same text but for the changes: an
instruction is rewritten where it stood (its `span`), several with the same span stand there in order, one that is gone
leaves nothing.
"""

from __future__ import annotations

from equiv.emulator.ptx import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)


def emit(module: Module, *kernels: Kernel) -> str:
    """The module's text with the kernels and functions of those names replaced by `kernels`, changed copies of them.

    Labels, variables and directives must be the originals'. A register of a nested scope that a changed instruction
    names becomes one of the kernel, since the scopes of the text may not reach that far.

    Raises:
        ValueError: the module has no kernel of that name, or an instruction's span is none of its.
    """
    text, position = [], 0
    originals = {one.name: one for one in module.bodies}
    for kernel in sorted(kernels, key=lambda one: one.body):
        original = originals.get(kernel.name)
        if original is None:
            raise ValueError(f"the module has no kernel {kernel.name}")
        text += [module.text[position : original.body[0]], _body(module, original, kernel)]
        position = original.body[1]
    return "".join([*text, module.text[position:]])


def _body(module: Module, original: Kernel, kernel: Kernel) -> str:
    before = {one.span: one for one in original.instructions}
    after: dict[tuple[int, int], list[Instruction]] = {span: [] for span in before}
    for one in kernel.instructions:
        if one.span not in after:
            raise ValueError(f"no instruction of {kernel.name} stands at characters {one.span}")
        after[one.span].append(one)
    changed = {span for span, now in after.items() if len(now) != 1 or now[0] != before[span]}
    hoisted = {name for span in changed for one in after[span] for name in registers(one) if "@" in name}
    changed |= {span for span, one in before.items() if hoisted.intersection(registers(one))}
    fresh = [name for name in kernel.registers if name in hoisted or name not in original.registers]

    parts = [f"\n\t.reg .{kernel.registers[name]} {_name(name, hoisted)};" for name in fresh]
    position, end = original.body
    for span in sorted(changed):
        parts += [module.text[position : span[0]], "\n\t".join(_instruction(one, hoisted) for one in after[span])]
        position = span[1]
    return "".join([*parts, module.text[position:end]])


def registers(instruction: Instruction) -> list[str]:
    """Names of all registers of an instruction, guard and destinations included, in order of appearance."""
    names = [] if instruction.guard is None else [instruction.guard]
    for operand in instruction.operands:
        names += operand_registers(operand)
    return names


def operand_registers(operand: Operand) -> list[str]:
    """Names of all registers of an operand, in order of appearance."""
    match operand:
        case Register(name):
            return [name]
        case Negated(register):
            return [register.name]
        case Pair(first, second):
            return operand_registers(first) + operand_registers(second)
        case Vector(items):
            return [name for item in items for name in operand_registers(item)]
        case Address(base, _, extra):
            return operand_registers(base) + [name for item in extra for name in operand_registers(item)]
        case _:
            return []


def spelt(instruction: Instruction) -> str:
    """One instruction as text, its guard and semicolon included; names are those of the scope that it stands in."""
    return _instruction(instruction, set())


def _name(name: str, hoisted: set[str]) -> str:
    # In its scope a local name needs no number; outside, the number makes it unique. `@` is no letter of PTX names.
    return name.replace("@", "$scope") if name in hoisted else name.partition("@")[0]


def _instruction(one: Instruction, hoisted: set[str]) -> str:
    guard = "" if one.guard is None else f"@{'!' if one.guard_negated else ''}{_name(one.guard, hoisted)} "
    if one.opcode.partition(".")[0] == "call":
        returns, callee, arguments, *targets = (_operand(operand, hoisted) for operand in one.operands)
        parts = [f"({returns[1:-1]})"] if returns != "{}" else []
        return f"{guard}{one.opcode} {', '.join([*parts, callee, f'({arguments[1:-1]})', *targets])};"
    operands = ", ".join(_operand(operand, hoisted) for operand in one.operands)
    return f"{guard}{one.opcode} {operands};" if operands else f"{guard}{one.opcode};"


def _operand(operand: Operand, hoisted: set[str]) -> str:
    match operand:
        case Register(name):
            return _name(name, hoisted)
        case Special(name):
            return name
        case Symbol(name):
            return name.partition("@")[0]
        case Immediate(bits, "f32"):
            return f"0f{bits:08X}"
        case Immediate(bits, "f64"):
            return f"0d{bits:016X}"
        case Immediate(bits, _):
            return str(bits - (1 << 64) if bits >> 63 else bits)
        case Address(base, offset, extra):
            inner = f"{_operand(base, hoisted)}{offset:+d}" if offset else _operand(base, hoisted)
            return "[" + ", ".join([inner, *(_operand(one, hoisted) for one in extra)]) + "]"
        case Vector(items):
            return "{" + ", ".join(_operand(one, hoisted) for one in items) + "}"
        case Pair(first, second):
            return f"{_operand(first, hoisted)}|{_operand(second, hoisted)}"
        case Negated(register):
            return f"!{_name(register.name, hoisted)}"
        case Sink():
            return "_"
