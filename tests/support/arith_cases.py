"""Cases that compare scalar instructions with silicon: a short body each, its operands' arrays, the PTX of them all.

The same bodies and arrays run on a GPU (`tests/gpu/arith_probe.py`) and in the emulator (`ptx_run.each`).
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import ptx_forms as forms

from equiv.emulator.isa import SUBJECTS
from equiv.emulator.isa.table import TYPE_BITS, Entry
from equiv.emulator.ptx import Immediate, Instruction, Pair, Register, Vector

if TYPE_CHECKING:
    from collections.abc import Iterable

Array = npt.NDArray[Any]
SCALAR = ("integer", "bits", "compare", "floating", "half", "double", "convert", "narrow", "warp")
COUNT = 2048
EVERY = 1 << 16
_STEM = {8: "%rs", 16: "%rs", 32: "%r", 64: "%rd", 1: "%p"}
_FLOATS = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}
_PACKED = {"f16x2": ("f16", 32), "bf16x2": ("bf16", 32), "f32x2": ("f32", 64)}


@dataclass(frozen=True)
class Case:
    """One body.

    Attributes:
        name: the opcode, or what a sequence of several does.
        body: PTX; sources are in their registers before it, results after it.
        sources: (register, PTX type) of each; a predicate is given as a byte.
        results: (register, width in bits) of each; 1 is a predicate.
        count: how many elements run.
    """

    name: str
    body: str
    sources: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, int], ...]
    count: int = COUNT

    def inputs(self) -> dict[str, Array]:
        """Arrays of the sources, the same in every process."""
        return {register: values(kind, place, self.count) for place, (register, kind) in enumerate(self.sources)}


def width(kind: str) -> int:
    """Bits of the array that holds values of a type: narrow integers lie in 16-bit registers."""
    bits = TYPE_BITS[kind]
    return 8 if bits == 1 else max(bits, 16)


def values(kind: str, place: int, count: int) -> Array:
    """`count` bit patterns of a type for the operand at `place`: edge cases against edge cases, then random ones."""
    bits = width(kind)
    random = np.random.default_rng(zlib.crc32(f"{kind} {place}".encode()))
    if kind == "pred":
        return random.integers(0, 2, count).astype(np.uint8)
    if count == EVERY and place == 0 and bits == 16:
        return np.arange(EVERY, dtype=np.uint16)
    if kind in _PACKED:
        half, total = _PACKED[kind]
        shift = np.uint64(total // 2)
        low, high = (values(half, place + 10 * part, count).astype(np.uint64) for part in (0, 1))
        return (low | np.roll(high, 7) << shift).astype(f"u{total // 8}")
    edges = _float_edges(*_FLOATS[kind]) if kind in _FLOATS else _int_edges(bits)
    side = min(len(edges), int((count // 2) ** 0.5))
    picked = edges[random.permutation(len(edges))[:side]] if side < len(edges) else edges
    crossed = (
        np.repeat(picked, side)
        if place == 0
        else np.tile(picked, side)
        if place == 1
        else random.choice(picked, side * side)
    )
    rest = count - len(crossed)
    wild = (
        random.integers(0, 1 << bits, rest, np.uint64, endpoint=False)
        if bits < 64
        else random.integers(0, 2**64 - 1, rest, np.uint64, endpoint=True)
    )
    if kind in _FLOATS:
        fraction = _FLOATS[kind][1]
        one = ((1 << bits - 2 - fraction) - 1) << fraction
        near = np.uint64(one - (2 << fraction)) + random.integers(0, 5 << fraction, rest, np.uint64)
        sign = random.integers(0, 2, rest, np.uint64) << np.uint64(bits - 1)
        tiny = random.integers(0, 3 << fraction, rest, np.uint64) | sign
        choice = random.integers(0, 8, rest)
        loose = np.where(choice < 3, wild, np.where(choice < 7, near | sign, tiny))
    else:
        loose = wild >> random.integers(0, bits, rest, np.uint64)
    return np.concatenate([crossed.astype(np.uint64), loose]).astype(f"u{bits // 8}")


def _int_edges(bits: int) -> npt.NDArray[np.uint64]:
    top = 1 << bits
    found = [0, 1, 2, 3, 7, 8, 15, 16, 17, 23, 24, 31, 32, 33, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF]
    found += [top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1, top - 32768, top - 128, top - 129]
    found += [0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x1000001, 0x1000003] if bits > 16 else []
    found += [1 << 53 | 1, 3 | 1 << 53, (1 << 63) - 513, 1 << 32, 0x8000008000000001] if bits > 32 else []
    return np.array(sorted({value % top for value in found}), np.uint64)


_MORE_EDGES: dict[int, Array] = {
    64: np.array([127.5, 255.5, 2**31 - 0.5, 2**31, 2**32 - 0.5, 2**63, 2**64, 65520.0, 3.4028235677973366e38, 1e-45,
                  1e-39, 6e-8], np.float64).view(np.uint64),
    32: np.array([127.5, 255.5, 32767.5, 2**31, 2**32, 2**63, 2**64, 65519.9, 65520.0, 448.0, 464.0, 57344.0, 61440.0,
                  6e-8, 3e-8, 2.5, 3.5], np.float32).view(np.uint32),
    16: np.array([], np.uint16),
}  # fmt: skip


def _float_edges(bits: int, fraction: int) -> npt.NDArray[np.uint64]:
    inf = ((1 << bits - 1 - fraction) - 1) << fraction
    least, one = 1 << fraction, ((1 << bits - 2 - fraction) - 1) << fraction
    found = [0, 1, 2, least - 1, least, least + 1, one, one + 1, one - 1, one - 2, one + least // 2]
    found += [one + (least * 3 >> 2), one - least, one + least * (fraction + 1), one + least * 8 - 1]
    found += [inf - 1, inf - least, inf, inf + 1, inf + least // 2, inf + least // 2 + 5, inf + least - 1]
    found += [int(x) for x in _MORE_EDGES[bits]]
    return np.array(sorted({value | sign for value in found for sign in (0, 1 << bits - 1)}), np.uint64)


def case(entry: Entry, instruction: Instruction) -> Case:
    """One instruction of the table on arrays; `instruction` as `ptx_forms.instructions` makes it."""
    mods = next(found for found in (entry.match(instruction.opcode),) if found is not None)
    sources: list[tuple[str, str]] = []
    results: list[tuple[str, int]] = []
    spelt: list[str] = []

    def register(operand: Register, kind: str, *, out: bool) -> str:
        number = int(operand.name.rpartition("_")[2]) + (20 if out and TYPE_BITS[kind] > 1 else 1)
        name = f"{_STEM[TYPE_BITS[kind]]}{number}"
        if out:
            results.append((name, 1 if kind == "pred" else width(kind)))
        else:
            sources.append((name, kind))
        return name

    for spec, operand in zip(entry.specs, instruction.operands, strict=True):
        kind, out = entry.resolve(spec.type, mods), spec.kind == "out"
        if spec.name == "mask":
            spelt.append("-1")
        elif isinstance(operand, Pair):
            second = register(operand.second, "pred", out=True) if isinstance(operand.second, Register) else "_"
            spelt.append(
                f"{register(operand.first, kind, out=out)}|{second}" if isinstance(operand.first, Register) else "_"
            )
        elif isinstance(operand, Vector):
            spelt.append(
                "{"
                + ", ".join(register(item, kind, out=out) for item in operand.items if isinstance(item, Register))
                + "}"
            )
        elif isinstance(operand, Register):
            spelt.append(register(operand, kind, out=out))
        else:
            assert isinstance(operand, Immediate)
            spelt.append("0x96" if entry.base == "lop3" else str(operand.bits))
    body = f"{instruction.opcode} {', '.join(spelt)};"
    if entry.base == "cvt" and {mods.get("dtype"), mods.get("atype")} & {"f16", "bf16"}:
        body = _exact_bytes(body, mods)
    if entry.base == "fns":  # a base of 32 or more is undefined
        body = f"and.b32 {spelt[2]}, {spelt[2]}, 31; shr.s32 {spelt[3]}, {spelt[3]}, 26; {body}"
    whole = len(sources) == 1 and width(sources[0][1]) == 16
    count = EVERY if whole else COUNT // 2 if entry.base in {"set", "setp"} else COUNT
    return Case(instruction.opcode, body, tuple(sources), tuple(results), count)


def _exact_bytes(body: str, mods: dict[str, str]) -> str:
    """A `cvt` between a byte and a half takes byte registers only; arrays hold 16 bits."""
    target, source = re.findall(r"%rs\d+", body) if "8" in {mods["dtype"][1:], mods["atype"][1:]} else ("", "")
    if mods["atype"] in {"u8", "s8"}:
        narrowed = re.sub(rf"{source}(?!\d)", "%rb1", body)
        return f"cvt.u8.u16 %rb1, {source}; {narrowed}"
    if mods["dtype"] in {"u8", "s8"}:
        return f"{body.replace(target, '%rb1')} cvt.u16.u8 {target}, %rb1;"
    return body


def _chain(name: str, body: str, words: int, kind: str = "u32", bits: int = 32) -> Case:
    stem = _STEM[bits]
    outs = sorted(set(re.findall(rf"{stem}2\d", body)))
    sources = tuple((f"{stem}{number + 1}", kind) for number in range(words))
    return Case(name, body, sources, tuple((out, bits) for out in outs))


def sequences() -> tuple[Case, ...]:
    """Instructions that mean something only together: carries between additions, subtractions and products."""
    found = []
    for bits, r in ((32, "%r"), (64, "%rd")):
        kind = f"u{bits}"
        for first, second in (("add", "add"), ("sub", "sub"), ("add", "sub"), ("sub", "add")):
            body = (
                f"{first}.cc.{kind} {r}20, {r}1, {r}2; {second}c.cc.{kind} {r}21, {r}3, {r}4;"
                f" {first}c.cc.{kind} {r}22, {r}2, {r}3; {second}c.{kind} {r}23, {r}1, {r}4; addc.{kind} {r}24, 0, 0;"
            )
            found.append(_chain(f"{first}.cc, {second}c.cc, {second}c {kind}", body, 4, kind, bits))
        for side in ("lo", "hi"):
            for sign in ("u", "s"):
                t = f"{sign}{bits}"
                body = (
                    f"mad.{side}.cc.{t} {r}20, {r}1, {r}2, {r}3; addc.cc.{kind} {r}24, {r}4, {r}1;"
                    f" madc.{side}.cc.{t} {r}21, {r}4, {r}2, {r}1;"
                    f" madc.{side}.{t} {r}22, {r}3, {r}2, {r}4; subc.{kind} {r}23, {r}1, 0;"
                )
                found.append(_chain(f"mad.{side}.cc, madc.{side}.cc, madc {t}", body, 4, kind, bits))
    return tuple(found)


def all_cases(architecture: int = 90) -> tuple[Case, ...]:
    """Every spelling of every scalar instruction that the architecture has, and the sequences."""
    found = {}
    for subject in SCALAR:
        for entry in SUBJECTS[subject]:
            reads_carry = entry.base in {"addc", "subc", "madc"} or " cc " in entry.pattern
            if entry.kind == "refused" or entry.arch > architecture or reads_carry:
                continue
            if entry.base == "mov" and "b8" in entry.operands:  # takes byte registers, which cannot be loaded whole
                continue
            for instruction in forms.instructions(entry):
                if entry.base == "set" and {"and", "or"} & set(instruction.opcode.split(".")):
                    continue  # `.xor` stands for the three
                one = case(entry, instruction)
                if one.sources and one.results:
                    found[one.body] = one
    return (*found.values(), *sequences())


_REGISTERS = ".reg .pred %p<40>; .reg .b8 %rb<20>; .reg .b16 %rs<60>; .reg .b32 %r<60>; .reg .b64 %rd<60>;"
_THREAD = "mov.u32 %r50, %tid.x; mov.u32 %r51, %ctaid.x; shl.b32 %r51, %r51, 7; add.s32 %r50, %r50, %r51;"


def module(cases: Iterable[Case], target: str = "sm_90a") -> str:
    """PTX with kernel `k<n>` for case n: one pointer an array, sources first; threads are the elements."""
    lines = [".version 8.8", f".target {target}", ".address_size 64"]
    for number, one in enumerate(cases):
        arrays = [(name, width(kind), kind) for name, kind in one.sources] + [
            (name, max(bits, 8), "") for name, bits in one.results
        ]
        params = ", ".join(f".param .u64 p{n}" for n in range(len(arrays)))
        lines += [f".visible .entry k{number}({params}) {{", _REGISTERS, _THREAD]
        for n, (name, bits, kind) in enumerate(arrays):
            lines.append(f"ld.param.b64 %rd{30 + n}, [p{n}]; mad.wide.u32 %rd{30 + n}, %r50, {bits // 8}, %rd{30 + n};")
            if kind == "pred":
                lines.append(f"ld.global.u8 %rs59, [%rd{30 + n}]; setp.ne.u16 {name}, %rs59, 0;")
            elif kind:
                lines.append(f"ld.global.b{bits} {name}, [%rd{30 + n}];")
        lines.append(one.body)
        for n, (name, bits, kind) in enumerate(arrays):
            if not kind and bits == 8:
                lines.append(f"selp.u16 %rs59, 1, 0, {name}; st.global.u8 [%rd{30 + n}], %rs59;")
            elif not kind:
                lines.append(f"st.global.b{bits} [%rd{30 + n}], {name};")
        lines += ["ret;", "}"]
    return "\n".join(lines) + "\n"
