"""What each operator makes of an instruction, and what the instruction table lets through."""

from __future__ import annotations

import pytest
from ptx_run import module_text

from equiv.emulator.ptx import Address, Immediate, Instruction, Register
from equiv.emulator.ptx_emitter import spelt
from equiv.emulator.store import Image
from equiv.mutate import OPERATORS
from equiv.mutate.mutants import Target
from equiv.mutate.operators import BY_NAME, immediate, orders


def made(operator: str, body: str) -> list[str]:
    """The mutants of the last instruction of a body."""
    target = Target(Image(body.encode(), module_text(f"{body}\nL: ret;", ("p",)), "sm_100a", {}), "k")
    last = len(target.kernel.instructions) - 2
    return [
        "" if one.after.opcode == "pmevent" else spelt(one.after).rstrip(";")
        for one in target.mutants((operator,))
        if one.index == last
    ]


EXAMPLES = [
        ("rounding", "add.f32 %f1, %f2, %f3;", ["add.rz.f32 %f1, %f2, %f3", "add.rp.f32 %f1, %f2, %f3"]),
        ("rounding", "cvt.rn.bf16.f32 %rs1, %f2;", ["cvt.rz.bf16.f32 %rs1, %f2", "cvt.rp.bf16.f32 %rs1, %f2"]),
        ("rounding", "cvt.rni.s32.f32 %r1, %f2;", ["cvt.rzi.s32.f32 %r1, %f2"]),
        ("rounding", "sqrt.rn.f32 %f1, %f2;", [f"sqrt.{one}.f32 %f1, %f2" for one in ("rz", "rp", "approx")]),
        ("rounding", "add.s32 %r1, %r2, %r3;", []),
        ("ftz", "add.f32 %f1, %f2, %f3;", ["add.ftz.f32 %f1, %f2, %f3"]),
        ("ftz", "mul.rn.ftz.f32 %f1, %f2, %f3;", ["mul.rn.f32 %f1, %f2, %f3"]),
        ("ftz", "fma.rn.f32 %f1, %f2, %f3, %f4;", ["fma.rn.ftz.f32 %f1, %f2, %f3, %f4"]),
        ("conversion", "cvt.rn.bf16.f32 %rs1, %f2; cvt.f32.bf16 %f3, %rs1;", ["mov.b32 %f3, %f2"]),
        ("conversion", "add.sat.f32 %f1, %f2, %f3;", ["add.f32 %f1, %f2, %f3"]),
        ("conversion", "cvt.rni.f32.f32 %f1, %f2;", ["mov.b32 %f1, %f2"]),
        ("constant", "mul.f32 %f1, %f2, 0f40490FDB;", ["mul.f32 %f1, %f2, 0f40490FDC", "mul.f32 %f1, %f2, 0f40490FDA"]),
        ("constant", "mov.f32 %f1, 0f00000000;", ["mov.f32 %f1, 0f00000001", "mov.f32 %f1, 0f80000001"]),
        ("immediate", "shl.b32 %r1, %r2, 4;", ["shl.b32 %r1, %r2, 5", "shl.b32 %r1, %r2, 3"]),
        ("immediate", "ld.global.v2.b32 {%r1, %r2}, [%rd1];", ["ld.global.v2.b32 {%r1, %r2}, [%rd1+8]"]),
        ("operands", "sub.f32 %f1, %f2, %f3;", ["sub.f32 %f1, %f3, %f2"]),
        ("operands", "fma.rn.f32 %f1, %f2, %f3, %f4;", ["fma.rn.f32 %f1, %f2, %f4, %f3"]),
        ("operands", "add.f32 %f1, %f2, %f3;", []),
    ("operands", "setp.ne.s32 %p1, %r1, %r2;", []),
    ("operands", "setp.lt.s32 %p1, %r1, %r2;", ["setp.lt.s32 %p1, %r2, %r1"]),
        ("operands", "cvt.rn.bf16x2.f32 %r1, %f2, %f3;", ["cvt.rn.bf16x2.f32 %r1, %f3, %f2"]),
        ("operands", "mov.b32 %r1, {%rs1, %rs2};", ["mov.b32 %r1, {%rs2, %rs1}"]),
        ("ordering", "bar.sync 0;", [""]),
        ("ordering", "fence.proxy.async.shared::cta;", [""]),
        (
            "ordering",
            "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;",
            ["setp.eq.u32 %p1, 0, 0"],
        ),
        ("predicate", "@%p1 mov.b32 %r1, %r2;", ["@!%p1 mov.b32 %r1, %r2"]),
        ("comparison", "setp.lt.s32 %p1, %r1, %r2;", ["setp.le.s32 %p1, %r1, %r2"]),
        ("exchange", "max.u32 %r1, %r2, %r3;", ["min.u32 %r1, %r2, %r3"]),
        ("exchange", "shr.u32 %r1, %r2, %r3;", ["shl.b32 %r1, %r2, %r3"]),
        ("exchange", "shl.b64 %rd1, %rd2, %r3;", ["shr.u64 %rd1, %rd2, %r3"]),
        ("deletion", "st.global.b32 [%rd1], %r1;", [""]),
        ("deletion", "bar.sync 0;", []),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "body", "wanted"), EXAMPLES)
def test_an_operator_makes_what_can_be_wrong_there(operator: str, body: str, wanted: list[str]) -> None:
    assert made(operator, body) == wanted


def test_every_operator_has_an_example() -> None:
    assert {operator for operator, _, _ in EXAMPLES} == set(OPERATORS) == set(BY_NAME)


def test_a_mutant_keeps_guard_and_place() -> None:
    text = module_text("@!%p1 add.f32 %f1, %f2, %f3; ret;", ("p",))
    target = Target(Image(b"guarded", text, "sm_100a", {}), "k")
    first = next(target.mutants(("rounding",)))
    assert spelt(first.after) == "@!%p1 add.rz.f32 %f1, %f2, %f3;"
    assert first.after.line == first.before.line
    assert not orders(first.before)


def test_no_copy_is_made_to_read_more_bytes_than_it_copies() -> None:
    whole = [Immediate(16, "int"), Immediate(16, "int")]
    copy = Instruction("cp.async.cg.shared.global", (Address(Register("%r1")), Address(Register("%rd1")), *whole))
    sizes = [one.operands[2:] for one in immediate(copy, lambda _: True, {})]
    bits = [tuple(size.bits for size in pair if isinstance(size, Immediate)) for pair in sizes]
    assert (16, 15) in bits
    assert (16, 17) not in bits
