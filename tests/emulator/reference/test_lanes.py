"""Every kind of lane and warp instruction in both engines: a drawn sample of all spellings of the table, by bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import ptx_forms as forms
from both_engines import agree
from ptx_run import SPECIALS, module_text

from equiv.emulator.decode import Decoder
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.isa import TABLE
from equiv.emulator.ptx import Immediate, Operand, Pair, Register, Vector
from equiv.emulator.reference.flow import FLOW
from equiv.emulator.reference.handlers import find
from equiv.emulator.reference.steps import prepare, unknown
from equiv.errors import UnknownInstructionError

if TYPE_CHECKING:
    from equiv.emulator.isa.table import Entry
    from equiv.emulator.ptx import Instruction

SAMPLE = 300
SLOT = 2048
"""Bytes of random data a lane."""
TOGETHER = (
    "shfl", "vote", "match", "redux", "elect", "activemask", "and", "or", "xor", "not", "mov",
    "add", "addc", "sub", "subc", "mad", "madc",
)  # fmt: skip
DOUBLES = np.array(
    [0, 1 << 63, 1, 0xFFFFFFFFFFFFF, 1 << 52, 0x3FF << 52, 0xBFF << 52, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48,
     0xFFF123456789ABCD, 0x7FF0000000000001, 0x7FEFFFFFFFFFFFFF, 0x36A0000000000001, 0x380FFFFFFFFFFFFF,
     0x47EFFFFFF0000000, 0x41EFFFFFFFF00000, 0xC1E0000000000000, 0x3FE0000000000000, 0x4330000000000001],
    np.uint64)  # fmt: skip
LACKING: set[tuple[str, str]] = set()
"""Refused by name when a kernel that uses it is loaded. May only shrink."""
HOST_ADDRESSES = ("cvta.param", "cvta.to.param")
"""The two engines keep a kernel's parameters at different addresses."""


def _spelt(operand: Operand) -> str:
    if isinstance(operand, Vector):
        return "{" + ", ".join(map(_spelt, operand.items)) + "}"
    if isinstance(operand, Pair):
        return f"{_spelt(operand.first)}|{_spelt(operand.second)}"
    if isinstance(operand, Immediate):
        return str(operand.bits)
    assert isinstance(operand, Register)
    return operand.name


def _registers(operand: Operand) -> list[str]:
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in _registers(item)]
    if isinstance(operand, Pair):
        return _registers(operand.first) + _registers(operand.second)
    return [operand.name] if isinstance(operand, Register) else []


def _sample(rng: np.random.Generator) -> list[tuple[Entry, Instruction]]:
    wanted = [
        (entry, one)
        for entry in TABLE.entries
        if entry.kind == "lane" or (entry.kind == "warp" and entry.base in TOGETHER)
        for one in forms.instructions(entry)
        if not one.opcode.startswith(HOST_ADDRESSES)
    ]
    assert len(wanted) > 5000
    chosen = [wanted[i] for i in rng.choice(len(wanted), SAMPLE, replace=False)]
    seen = {entry.base for entry, _ in chosen}
    first = {entry.base: (entry, one) for entry, one in reversed(wanted)}
    return chosen + [pair for base, pair in first.items() if base not in seen]


def test_a_sample_of_all_instructions_gives_the_same_bits_in_both_engines() -> None:
    rng = np.random.default_rng(2026)
    lines = [
        " ".join(f".reg .{kind} %{kind}_<20>;" for kind in forms.TYPES),
        "mov.u32 %r50, %tid.x; ld.param.b64 %rd10, [src]; ld.param.b64 %rd11, [dst];",
        f"mad.wide.u32 %rd12, %r50, {SLOT}, %rd10; mad.wide.u32 %rd13, %r50, 8, %rd11;",
    ]
    written: list[str] = []
    for entry, one in _sample(rng):
        names = [name for operand in one.operands for name in _registers(operand)]
        for name in names:
            kind, at = name[1:].split("_")[0], 8 * int(rng.integers(SLOT // 8))
            if kind == "pred":
                lines.append(f"ld.global.u8 %r51, [%rd12+{at}]; and.b32 %r51, %r51, 1; setp.ne.b32 {name}, %r51, 0;")
            else:
                lines.append(f"ld.global.{kind} {name}, [%rd12+{at}];")
        if entry.needs_lanes:
            lines.append(f"mov.b32 {names[-1]}, 0xffffffff;")
        lines.append(f"{one.opcode} {', '.join(map(_spelt, one.operands))};")
        for spec, operand in zip(entry.specs, one.operands, strict=True):
            for name in _registers(operand) if spec.kind == "out" else []:
                kind, at = name[1:].split("_")[0], 256 * len(written)
                written.append(f"{one.opcode} {name}")
                if kind == "pred":
                    lines.append(f"selp.b32 %r51, 1, 0, {name}; st.global.b32 [%rd13+{at}], %r51;")
                else:
                    lines.append(f"st.global.{kind} [%rd13+{at}], {name};")
    lines.append("ret;")
    source = rng.integers(0, 256, 32 * SLOT, dtype=np.uint8)
    words = source.view(np.uint32)
    special = rng.random(words.size) < 0.3
    words[special] = rng.choice(SPECIALS, int(special.sum()))
    long = source.view(np.uint64)
    small = rng.random(long.size) < 0.15
    long[small] = rng.integers(0, 70, int(small.sum()))
    target = np.zeros(256 * len(written), np.uint8)
    wide = rng.random(long.size) < 0.1
    long[wide] = rng.choice(DOUBLES, int(wide.sum()))
    error, _ = agree(
        module_text("\n".join(lines), ("src", "dst")), [source, target], LaunchConfig((1, 1, 1), (32, 1, 1))
    )
    assert not error


def _load(entry: Entry, one: Instruction) -> None:
    """What loading does for one instruction.

    Raises:
        UnknownInstructionError: there are no semantics for it.
    """
    step = prepare(one, Decoder(forms.kernel(), 90 if entry.last_arch == 90 else 100, {}).decode(one))
    if step is not None and step.lane is None and step.base not in FLOW and find(step) is None:
        raise unknown(one)


def test_the_portable_engine_lacks_exactly_these_spellings() -> None:
    lacking = set()
    count = 0
    for entry in TABLE.entries:
        for one in forms.instructions(entry) if entry.kind in {"lane", "warp"} else ():
            count += 1
            try:
                _load(entry, one)
            except UnknownInstructionError as error:
                lacking.add((one.opcode, error.reason))
    assert count > 8000
    assert lacking == LACKING
