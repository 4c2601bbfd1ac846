"""Calls of functions: parsed, contracted, and made part of the kernel that calls them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ptx_run import module_text, run

from equiv.emulator import engine, inline
from equiv.emulator.contraction import contract_all
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.memory import Memory
from equiv.emulator.ptx import Formal, Instruction, Register, Symbol, Vector
from equiv.emulator.ptx_emitter import emit
from equiv.emulator.ptx_parser import parse
from equiv.emulator.reference import engine as reference
from equiv.errors import UnknownInstructionError

if TYPE_CHECKING:
    import numpy.typing as npt

POWER = """
.func (.param .b32 result) power(.param .b32 base, .param .b32 exponent)
{ .reg .b32 %r<4>; .reg .pred %p;
    ld.param.b32 %r1, [base]; ld.param.b32 %r2, [exponent]; mov.b32 %r3, 1;
LOOP: setp.eq.b32 %p, %r2, 0;
    @%p bra DONE;
    mul.lo.u32 %r3, %r3, %r1; sub.u32 %r2, %r2, 1;
    bra LOOP;
DONE: st.param.b32 [result+0], %r3;
    ret;
}
"""
POWER_OF = """
{ // callseq
    .param .b32 param0; st.param.b32 [param0+0], {base};
    .param .b32 param1; st.param.b32 [param1+0], {exponent};
    .param .b32 retval0;
    {guard} call.uni (retval0),
    power,
    (
    param0,
    param1
    );
    ld.param.b32 {to}, [retval0+0];
}
"""
SUM_OF_SQUARES = """
.func (.param .b32 result) squares(.param .b32 count)
{ .local .align 16 .b8 depot[32]; .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p;
    ld.param.b32 %r1, [count]; mov.b64 %rd1, depot; mov.b32 %r2, 0;
FILL: mul.lo.u32 %r3, %r2, %r2; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd2, %rd1, %rd2; st.local.b32 [%rd2], %r3;
    add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, 8;
    @%p bra FILL;
    mov.b32 %r4, 0;
ADD: setp.eq.b32 %p, %r1, 0;
    @%p bra OUT;
    sub.u32 %r1, %r1, 1; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2; ld.local.b32 %r5, [%rd2];
    add.u32 %r4, %r4, %r5;
    bra ADD;
OUT: st.param.b32 [result], %r4; ret; }
"""
START = "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [out]; mad.wide.u32 %rd2, %r1, 4, %rd1;\n"
STORE = "\nst.global.b32 [%rd2], %r9; ret;"


def power_of(base: str, exponent: str, to: str, guard: str = "") -> str:
    spelt = {"base": base, "exponent": exponent, "to": to, "guard": guard}
    return re.sub(r"\{(\w+)\}", lambda match: spelt[match[1]], POWER_OF)


def results(body: str, functions: str) -> list[int]:
    """What each of 32 threads leaves in %r9, by the C engine and the portable one, which must agree."""
    text = module_text(START + body + STORE, ("out",), outside=functions)
    out = np.zeros(32, np.uint32)
    run(text, [out], LaunchConfig((1, 1, 1), (32, 1, 1)))
    other = np.zeros(32, np.uint32)
    memory = Memory()
    memory.register(other.ctypes.data, other.nbytes, "out")
    program = reference.load(parse(text), "k", "sm_100a")
    reference.launch(program, LaunchConfig((1, 1, 1), (32, 1, 1)), other.ctypes.data.to_bytes(8, "little"), memory)
    np.testing.assert_array_equal(out, other)
    return [int(value) for value in out]


def test_a_loop_in_a_function_that_is_called_twice() -> None:
    body = power_of("%r1", "3", "%r2") + power_of("%r1", "%r1", "%r3") + "add.u32 %r9, %r2, %r3;"
    assert results(body, POWER) == [(t**3 + t**t) % 2**32 for t in range(32)]


@pytest.mark.parametrize(("guard", "odd"), [("@%p1", 1), ("@!%p1", 0)])
def test_lanes_whose_guard_is_false_do_not_call(guard: str, odd: int) -> None:
    body = "and.b32 %r5, %r1, 1; setp.ne.b32 %p1, %r5, 0;" + power_of("%r1", "%r1", "%r9", guard)
    assert results(body, POWER) == [t**t % 2**32 if t % 2 == odd else 0 for t in range(32)]


def test_lanes_that_branched_call_from_two_places() -> None:
    body = (
        "setp.lt.u32 %p1, %r1, 10; @%p1 bra FEW;\n"
        + power_of("%r1", "2", "%r9")
        + "bra JOIN;\nFEW:"
        + power_of("2", "%r1", "%r9")
        + "JOIN: add.u32 %r9, %r9, 1;"
    )
    assert results(body, POWER) == [(2**t if t < 10 else t * t) + 1 for t in range(32)]


def test_a_function_with_an_array_in_local_memory() -> None:
    body = """and.b32 %r2, %r1, 7;
    { .param .b32 param0; st.param.b32 [param0], %r2; .param .b32 retval0; call.uni (retval0), squares, (param0);
      ld.param.b32 %r9, [retval0]; }"""
    assert results(body, SUM_OF_SQUARES) == [sum(i * i for i in range(t % 8)) for t in range(32)]


def test_functions_that_call_functions() -> None:
    outer = """
    .func (.param .b32 result) outer(.param .b32 x)
    { .reg .b32 %r<9>; .local .b32 kept; ld.param.b32 %r1, [x]; st.local.b32 [kept], %r1;
    """
    outer += power_of("%r1", "2", "%r2") + power_of("%r2", "2", "%r3")
    outer += "ld.local.b32 %r4, [kept]; add.u32 %r3, %r3, %r4; st.param.b32 [result], %r3; ret; }\n"
    call = """{ .param .b32 param0; st.param.b32 [param0], %r1; .param .b32 retval0;
    call.uni (retval0), outer, (param0); ld.param.b32 %r9, [retval0]; }"""
    assert results(call + call.replace("%r1", "%r9"), POWER + outer) == [
        ((t**4 + t) ** 4 + t**4 + t) % 2**32 for t in range(32)
    ]


def test_vectors_structures_and_small_types_are_passed_as_bytes() -> None:
    functions = """
    .func (.param .align 16 .b8 result[16]) turn(.param .align 16 .b8 v[16], .param .b32 c)
    { .reg .b32 %r<5>; .reg .b16 %h;
      ld.param.v4.b32 {%r1, %r2, %r3, %r4}, [v]; ld.param.s8 %h, [c]; cvt.s32.s16 %r1, %h;
      st.param.v2.b32 [result+8], {%r1, %r2}; st.param.v2.b32 [result], {%r3, %r4}; ret; }
    """
    body = """sub.u32 %r2, 5, %r1;
    { .param .align 16 .b8 param0[16]; st.param.v4.b32 [param0], {%r1, 20, 300, %r1};
      .param .b32 param1; st.param.b32 [param1], %r2; .param .align 16 .b8 retval0[16];
      call.uni (retval0), turn, (param0, param1);
      ld.param.v4.b32 {%r3, %r4, %r5, %r6}, [retval0]; }
    mad.lo.u32 %r9, %r4, 1000, %r3; add.u32 %r9, %r9, %r5; mad.lo.u32 %r9, %r6, 10000, %r9;"""
    assert results(body, functions) == [(t * 1000 + 300 + 5 - t + 200000) for t in range(32)]


def test_parameters_in_registers_and_constants_as_arguments() -> None:
    functions = """
    .func (.reg .b32 difference, .reg .b64 wide) subtract(.reg .b32 a, .reg .b32 b, .param .b32 c)
    { .reg .b32 %t; ld.param.b32 %t, [c]; sub.u32 difference, a, b; sub.u32 difference, difference, %t;
      cvt.u64.u32 wide, a; shl.b64 wide, wide, 33; }
    .func (.param .b32 r) twice(.param .b32 x)
    { .reg .b32 %t; ld.param.b32 %t, [x]; add.u32 %t, %t, %t; st.param.b32 [r], %t; ret; }
    """
    body = """call (%r2, %rd3), subtract, (%r1, 7, %r1); shr.u64 %rd3, %rd3, 32; cvt.u32.u64 %r3, %rd3;
    call (%r4), twice, (%r3); add.u32 %r9, %r2, %r4;"""
    assert results(body, functions) == [(4 * t - 7) % 2**32 for t in range(32)]


def test_a_return_in_the_middle_and_no_result_and_no_argument() -> None:
    functions = """
    .visible .func put(.param .b64 at, .param .b32 value)
    { .reg .b64 %a; .reg .b32 %v; .reg .pred %p; ld.param.b64 %a, [at]; ld.param.b32 %v, [value];
      setp.gt.u32 %p, %v, 9; @%p ret; st.global.b32 [%a], %v; ret; }
    .func nothing() { ret.uni; }
    """
    body = """{ .param .b64 p0; st.param.b64 [p0], %rd2; .param .b32 p1; st.param.b32 [p1], %r1;
    call.uni put, (p0, p1); } call nothing; call.uni nothing, (); ld.global.b32 %r9, [%rd2]; add.u32 %r9, %r9, 1;"""
    assert results(body, functions) == [t + 1 if t <= 9 else 1 for t in range(32)]


def test_jump_tables_and_addresses_of_parameters_in_functions() -> None:
    functions = """
    .func (.param .b32 r) pick(.param .align 4 .b8 of[12], .param .b32 which)
    { .reg .b32 %w; .reg .b32 %v; .reg .b64 %a;
      ld.param.b32 %w, [which]; mov.b64 %a, of;
      list: .branchtargets first, second;
      brx.idx %w, list;
    first: ld.param.b32 %v, [%a+4]; bra both;
    second: ld.param::func.b32 %v, [%a+8];
    both: st.param.b32 [r], %v; ret; }
    """
    body = """and.b32 %r2, %r1, 1;
    { .param .align 4 .b8 p0[12]; st.param.b32 [p0+4], %r1; st.param.b32 [p0+8], 99;
      .param .b32 p1; st.param.b32 [p1], %r2; .param .b32 r0;
      call.uni (r0), pick, (p0, p1); ld.param.b32 %r9, [r0]; }"""
    assert results(body + body.replace("%r1", "%r9").replace("p0+8], 99", "p0+8], 77"), functions) == [
        77 if t % 2 else t for t in range(32)
    ]


F = ".func f(.param .b32 x) { ret; }\n"
PASS = ".param .b32 p; st.param.b32 [p], 1; "


@pytest.mark.parametrize(
    ("functions", "body", "message"),
    [
        (
            ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n",
            ".param .b32 r; .param .b64 a; call.uni (r), vprintf, (a, a);",
            "call.uni vprintf (PTX line 5): the function has no body in the PTX",
        ),
        (
            ".func g(); .func f() { call g; ret; }\n.func g() { call f; ret; }\n",
            "call.uni f;",
            "call f (PTX line 5): recursion is not supported: f > g > f",
        ),
        (F, "t: .callprototype _ (.param .b32 _);\n" + PASS + "call %rd1, (p), t;", "call (PTX line 6): calls through"),
        (F, "t: .calltargets f;\n" + PASS + "call %rd1, (p), t;", "call (PTX line 6): calls through a register"),
        (F, "call f;", "call f (PTX line 5): 0 arguments, the function has 1"),
        (F, PASS + "call (p), f, (p);", "call f (PTX line 5): 1 results, the function has 0"),
        (F, ".param .b64 q; call f, (q);", "call f (PTX line 5): x has 4 bytes, the variable passed for it 8"),
        ("", "out: call out;", "call out (PTX line 5): not a function"),
        (F, "mov.b64 %rd1, f; ret;", "mov.b64 (PTX line 5): operand a: f cannot be a b64 value"),
        (
            ".func h(.param .b32 x) { .reg .b64 %a; mov.b64 %a, x; cvta.param.u64 %a, %a; ret; }\n",
            PASS + "call h, (p);",
            "cvta.param.u64 (PTX line 4): not inside a function that is called",
        ),
    ],
)
def test_calls_that_cannot_be_made_are_refused_by_name(functions: str, body: str, message: str) -> None:
    header = ".version 8.8\n.target sm_90a\n.address_size 64\n"
    functions = functions or "// none\n"
    entries = f".entry k() {{ .reg .b64 %rd<3>; {body} ret; }}\n.entry other() {{ ret; }}\n"
    module = parse(header + functions + entries)
    with pytest.raises(UnknownInstructionError, match=re.escape(message)):
        engine.load(module, "k", "sm_90a")
    assert engine.load(module, "other", "sm_90a").name == "other"


def test_calls_that_grow_without_measure_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MOST_INSTRUCTIONS", 100)
    doubling = ".func f0() { .reg .b32 %a; mov.b32 %a, 1; ret; }\n"
    doubling += "".join(f".func f{n}() {{ call f{n - 1}; call f{n - 1}; ret; }}\n" for n in range(1, 8))
    with pytest.raises(UnknownInstructionError, match="call: inlined, the kernel exceeds 100 instructions"):
        engine.load(parse(module_text("call f7;", (), outside=doubling)), "k", "sm_100a")
    assert len(engine.load(parse(module_text("call f6;", (), outside=doubling)), "k", "sm_100a").code) == 2**6 + 1


def test_functions_and_calls_as_records() -> None:
    text = module_text("call.uni (%r1), g, (%r2, 3);\ncall %rd1, list;\nlist: .calltargets f, g;", (), outside=F + (
        ".func (.reg .b32 r) g(.reg .b32 a, .param .align 8 .b8 s[16]) .noreturn { mov.b32 r, a; ret; }"
    ))  # fmt: skip
    module = parse(text)
    assert list(module.functions) == ["f", "g"]
    function = module.functions["g"]
    assert (function.returns, function.params) == (
        (Formal("r", "reg", 4),),
        (Formal("a", "reg", 4), Formal("s", "param", 16)),
    )
    assert function.body is not None
    assert (function.body.registers, function.body.results) == ({"r": "b32", "a": "b32"}, ("r",))
    direct, indirect = module.kernels["k"].instructions
    assert indirect.operands == (Vector(()), Register("%rd1"), Vector(()), Symbol("list"))
    assert direct.operands[:2] == (Vector((Register("%r1"),)), Symbol("g"))
    assert [one.name for one in module.bodies] == ["k", "f", "g"]


def test_a_declaration_behind_a_body_does_not_hide_it() -> None:
    module = parse(module_text("call f, (1);", (), outside=F + ".func f(.param .b32 x);\n"))
    assert module.functions["f"].body is not None


def _opcodes(instructions: tuple[Instruction, ...]) -> list[str]:
    return [one.opcode for one in instructions]


FUSED = """
.func (.param .b32 r) f(.param .b32 x, .param .b32 y)
{ .reg .f32 %f<5>; ld.param.f32 %f1, [x]; ld.param.f32 %f2, [y]; mul.f32 %f3, %f1, %f2; add.f32 %f4, %f3, 0fBF801000;
  st.param.f32 [r], %f4; ret; }
"""


def test_products_are_fused_in_functions_before_they_are_inlined() -> None:
    body = """{ .param .b32 p0; st.param.f32 [p0], 0f3F800800; .param .b32 p1; st.param.f32 [p1], 0f3F800800;
    .param .b32 r0; call.uni (r0), f, (p0, p1); ld.param.b32 %r9, [r0]; }"""
    module = parse(module_text(START + body + STORE, ("out",), outside=FUSED))
    contracted = contract_all(module, "k")
    function = contracted.functions["f"].body
    assert function is not None
    assert _opcodes(function.instructions) == ["ld.param.f32"] * 2 + ["fma.rn.f32", "st.param.f32", "ret"]
    assert "fma.rn.f32 %f4, %f1, %f2, 0fBF801000;" in emit(module, function)
    out: list[npt.NDArray[np.uint32]] = []
    for version in (module, contracted):
        out.append(np.zeros(32, np.uint32))
        memory = Memory()
        memory.register(out[-1].ctypes.data, out[-1].nbytes, "out")
        program = engine.load(version, "k", "sm_100a")
        config = LaunchConfig((1, 1, 1), (32, 1, 1))
        engine.launch(program, config, out[-1].ctypes.data.to_bytes(8, "little"), memory)
    # (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24, which a rounded product has lost.
    assert [int(one[0]) for one in out] == [0, 0x3380_0000]


@pytest.mark.parametrize("between", ["call.uni f, (p);", ""])
def test_nothing_is_fused_across_a_call(between: str) -> None:
    body = ".param .b32 p; mul.f32 %f1, %f2, %f3; st.param.f32 [p], %f2; " + between + " add.f32 %f4, %f1, %f3;"
    body += "st.global.f32 [%rd1], %f4; ret;"
    kernel = contract_all(parse(module_text(body, (), outside=F)), "k").kernels["k"]
    assert ("fma.rn.f32" in _opcodes(kernel.instructions)) == (not between)


def test_a_function_s_parameter_and_a_call_s_result_are_no_kernel_parameters() -> None:
    crossing = """mul.f32 %f2, %f1, %f3; @%p1 bra OUT; add.f32 %f3, %f2, %f3; OUT: st.global.f32 [%rd1], %f3; ret;"""
    text = module_text(
        ".param .b32 p; st.param.b32 [p], 1; call f, (p); ld.param.f32 %f1, [p];" + crossing,
        ("out",),
        outside=F + ".func h(.param .b32 a) { .reg .pred %p1; .reg .b64 %rd1; .reg .f32 %f<4>; ld.param.f32 %f1, [a];"
        f" {crossing} }}",
    )  # fmt: skip
    module = parse(text)
    for one in module.bodies:
        contracted = contract_all(module, "k")
        for kernel in contracted.bodies:
            assert "fma.rn.f32" not in _opcodes(kernel.instructions), one.name
    passed = text.replace("ld.param.f32 %f1, [p]", "ld.param.f32 %f1, [out]")
    assert "fma.rn.f32" in _opcodes(contract_all(parse(passed), "k").kernels["k"].instructions)


def test_a_product_that_a_function_returns_in_a_register_is_not_fused() -> None:
    function = ".func (.reg .f32 r) f(.reg .f32 a, .reg .f32 b) { mul.f32 r, a, b; add.f32 a, r, b; "
    function += "st.global.f32 [0], a; ret; }\n"
    body = contract_all(parse(module_text("ret;", (), outside=function)), "k").functions["f"].body
    assert body is not None
    assert _opcodes(body.instructions)[:2] == ["mul.f32", "add.rn.f32"]


def test_a_changed_call_is_written_back_as_a_call() -> None:
    text = module_text("{ .reg .b32 t, u; call (t, u), f, (t, 3); mov.b32 %r1, t; }", (), outside=(
        ".func (.reg .b32 x, .reg .b32 y) f(.reg .b32 a, .reg .b32 b) { ret; }\n"
    ))  # fmt: skip
    module = parse(text)
    kernel = module.kernels["k"]
    call, move = kernel.instructions
    changed = replace(kernel, instructions=(call, replace(move, operands=(Register("%r2"), Register("t@1")))))
    assert "call (t$scope1, u), f, (t$scope1, 3);" in emit(module, changed)
