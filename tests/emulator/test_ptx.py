"""Reading PTX text and writing it back."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from equiv.emulator.ptx import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Pair,
    Param,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from equiv.emulator.ptx_emitter import emit
from equiv.emulator.ptx_parser import parse
from equiv.errors import PtxSyntaxError, UnknownInstructionError

HEADER = ".version 9.3\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, *, params: str = "", directives: str = "", before: str = "") -> Kernel:
    return parse(f"{HEADER}{before}.visible .entry k({params}) {directives} {{\n{body}\n}}\n").kernels["k"]


def only(body: str) -> Instruction:
    (instruction,) = kernel(body).instructions
    return instruction


def test_module_header_and_text_are_kept() -> None:
    text = HEADER + ".visible .entry a() { ret; }\n.entry b() { ret; }\n\0"
    module = parse(text)
    assert (module.version, module.target, list(module.kernels)) == ("9.3", "sm_100a", ["a", "b"])
    assert module.text == text.rstrip("\0")


def test_parameters_get_offsets_by_their_alignment() -> None:
    params = """.param .u64 .ptr .global .align 1 p, .param .f32 eps, .param .align 8 .b8 t[16], .param .u8 flag,
                .param .align 64 .b8 map[128]"""
    assert kernel("ret;", params=params).params == (
        Param("p", 8, 8, 0),
        Param("eps", 4, 4, 8),
        Param("t", 16, 8, 16),
        Param("flag", 1, 1, 32),
        Param("map", 128, 64, 64),
    )


def test_directives_keep_their_numbers() -> None:
    directives = ".reqntid 128, 2, 1 .maxnreg 64 .explicitcluster .reqnctapercluster 4 .minnctapersm 1"
    assert kernel("ret;", directives=directives).directives == {
        "reqntid": (128, 2, 1),
        "maxnreg": (64,),
        "explicitcluster": (),
        "reqnctapercluster": (4,),
        "minnctapersm": (1,),
    }


def test_variables_of_module_and_kernel() -> None:
    module = parse(
        HEADER
        + ".extern .shared .align 1024 .b8 dynamic[];\n"
        + ".global .align 1 .b8 text[4] = {104, 105};\n.const .f32 table[2] = {0f3F800000, -0f40000000};\n"
        + ".visible .global .align 4 .u32 pair[2][2] = {{1, 2}, {3, 0xFFFFFFFF}}, one = 7;\n"
        + ".entry k() { .shared .align 16 .b8 tile[64]; .local .align 8 .b8 depot[24]; ret; }"
    )
    assert module.variables == (
        Variable("dynamic", "shared", 0, 1024, extern=True),
        Variable("text", "global", 4, 1, initial=b"hi\0\0"),
        Variable("table", "const", 8, 4, initial=bytes.fromhex("0000803f 000000c0")),
        Variable("pair", "global", 16, 4, initial=bytes.fromhex("01000000 02000000 03000000 ffffffff")),
        Variable("one", "global", 4, 4, initial=b"\7\0\0\0"),
    )
    assert module.kernels["k"].variables == (Variable("tile", "shared", 64, 16), Variable("depot", "local", 24, 8))


def test_register_ranges_and_lists() -> None:
    assert kernel(".reg .b32 %r<3>;\n.reg .pred p, q;\nret;").registers == {
        "%r0": "b32",
        "%r1": "b32",
        "%r2": "b32",
        "p": "pred",
        "q": "pred",
    }


@pytest.mark.parametrize(
    ("spelt", "expected"),
    [
        ("7", Immediate(7, "int")),
        ("-1", Immediate(0xFFFF_FFFF_FFFF_FFFF, "int")),
        ("0x1F", Immediate(31, "int")),
        ("0xFFFFFFFFFFFFFFFF", Immediate(0xFFFF_FFFF_FFFF_FFFF, "int")),
        ("12U", Immediate(12, "int")),
        ("0b101", Immediate(5, "int")),
        ("017", Immediate(15, "int")),
        ("0f3F800000", Immediate(0x3F80_0000, "f32")),
        ("-0f3F800000", Immediate(0xBF80_0000, "f32")),
        ("0dBFF0000000000000", Immediate(0xBFF0 << 48, "f64")),
        ("1.5", Immediate(0x3FF8 << 48, "f64")),
        ("WARP_SZ", Immediate(32, "int")),
        ("%tid.x", Special("%tid.x")),
        ("%cluster_ctarank", Special("%cluster_ctarank")),
    ],
)
def test_immediates_and_special_registers(spelt: str, expected: Immediate | Special) -> None:
    assert only(f".reg .b64 %d; mov.b64 %d, {spelt};").operands == (Register("%d"), expected)


@pytest.mark.parametrize(
    ("spelt", "expected"),
    [
        ("[%d]", Address(Register("%d"))),
        ("[ %d + 16 ]", Address(Register("%d"), 16)),
        ("[%d+-16]", Address(Register("%d"), -16)),
        ("[%d - 0x10]", Address(Register("%d"), -16)),
        ("[tile+8]", Address(Symbol("tile"), 8)),
        ("[4096]", Address(Immediate(4096, "int"))),
        ("[%d, {%r, 3}]", Address(Register("%d"), 0, (Vector((Register("%r"), Immediate(3, "int"))),))),
        ("{%r, _, %r}", Vector((Register("%r"), Sink(), Register("%r")))),
        ("%r|p", Pair(Register("%r"), Register("p"))),
        ("_|p", Pair(Sink(), Register("p"))),
        ("!p", Negated(Register("p"))),
        ("tile", Symbol("tile")),
    ],
)
def test_operand_forms(spelt: str, expected: object) -> None:
    body = f".reg .b64 %d; .reg .b32 %r; .reg .pred p; .shared .b8 tile[16]; some.op {spelt};"
    assert only(body).operands == (expected,)


def test_opcode_modifiers_and_guards() -> None:
    body = ".reg .pred p; .reg .b32 %r; @!p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], 4; @p bar.sync 0;"
    first, second = kernel(body).instructions
    assert (first.opcode, first.guard, first.guard_negated) == (
        "mbarrier.arrive.expect_tx.shared::cta.b64",
        "p",
        True,
    )
    assert (second.opcode, second.guard, second.guard_negated) == ("bar.sync", "p", False)


def test_lines_spans_and_sources() -> None:
    text = HEADER + (
        ".entry k() {\n.reg .b32 %r;\n.loc 1 5 3 // a.py:5\n/* over\ntwo lines */ mov.b32\n %r, 1;\n"
        ".loc 2 9 1, function_name $L__x, inlined_at 1 6 2\nret;\n}\n"
        '.file 1 "a.py"\n.file 2 "dir/b.py"\n'
    )
    move, ret = parse(text).kernels["k"].instructions
    assert (move.line, move.source, text[slice(*move.span)]) == (8, ("a.py", 5), "mov.b32\n %r, 1;")
    assert (ret.line, ret.source, text[slice(*ret.span)]) == (11, ("dir/b.py", 9), "ret;")


def test_scopes_are_flattened_with_their_own_names() -> None:
    body = """.reg .b32 t; .reg .pred q;
    { .reg .b32 t; .reg .pred p; again: mov.b32 t, 1; @p bra again; @p bra done; done: }
    { .reg .b32 t; .reg .pred p; { .reg .b32 u; mov.b32 u, t; } again: @q bra again; }
    mov.b32 t, 2;
    end:"""
    read = kernel(body)
    assert [operand for one in read.instructions for operand in one.operands] == [
        Register("t@1"),
        Immediate(1, "int"),
        Symbol("again@1"),
        Symbol("done@1"),
        Register("u@3"),
        Register("t@2"),
        Symbol("again@2"),
        Register("t"),
        Immediate(2, "int"),
    ]
    assert read.labels == {"again@1": 0, "done@1": 3, "again@2": 4, "end": 6}
    assert read.registers["u@3"] == "b32"


def test_branch_targets() -> None:
    body = ".reg .b32 %r;\nlist: .branchtargets one, two;\nbrx.idx %r, list;\none: ret;\ntwo: ret;"
    read = kernel(body)
    assert read.branch_targets == {"list": ("one", "two")}
    assert read.instructions[0].operands == (Register("%r"), Symbol("list"))


def test_debug_sections_pragmas_and_declarations_are_skipped() -> None:
    text = (
        HEADER
        + ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
        + '.entry k() { .pragma "nounroll"; ret; }\n'
        + ".section .debug_info\n{\n.b32 .debug_abbrev\n.b8 1\n$L__x:\n.b8 2\n}\n"
    )
    assert [one.opcode for one in parse(text).kernels["k"].instructions] == ["ret"]


@pytest.mark.parametrize(
    ("body", "problem", "line"),
    [
        ("mov.b32 %r9, 1;", "%r9 is not declared", 5),
        ("\nret", "expected an operand, found '}'", 7),
        (".reg .q7 x;", "unknown register type .q7", 5),
        ("bra there;", "there is not declared", 5),
        ("here: here: ret;", "label here stands twice", 5),
        ("#include", "no PTX token starts with '#include", 5),
        (".reg .b32 r; mov.b32 r, ;", "expected an operand, found ';'", 5),
        (".reg .b32 r; mov.b32 r, 0x1FFFFFFFFFFFFFFFF;", "0x1FFFFFFFFFFFFFFFF does not fit 64 bits", 5),
        (".loc 3 1 0\nret;", ".loc names file 3, which no .file declares", 6),
        (".nonsense 4;", "unknown directive '.nonsense'", 5),
        ("{ ret;", "'{' without '}'", 4),
        ("call.uni f;", "f is not declared", 5),
        (".shared .b8 x[2] = {1, 2, 3};", "the initialiser of x has 3 bytes, the variable 2", 5),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(body: str, problem: str, line: int) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        kernel(body)
    assert caught.value.line == line
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        (".func f(.param .b8 a[]) { ret; }", ".param a[]"),
        (".extern .func f(.param .align 8 .b8 a[]);", ".param a[]"),
        (".global .texref t;", ".global .texref"),
    ],
)
def test_valid_ptx_without_a_meaning_here_is_refused_by_name(text: str, instruction: str) -> None:
    with pytest.raises(UnknownInstructionError) as caught:
        parse(HEADER + text)
    assert caught.value.instruction == instruction
    assert caught.value.line == 4


def test_a_kernel_of_four_thousand_instructions_is_read_quickly() -> None:
    one = "\tmad.lo.s32 %r1, %r2, 17, %r3;\n\tld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5+16];\n"
    text = HEADER + ".entry k() {\n.reg .b32 %r<9>;\n" + one * 2000 + "}\n"
    times = []
    for _ in range(3):
        start = time.process_time()
        assert len(parse(text).kernels["k"].instructions) == 4000
        times.append(time.process_time() - start)
    assert min(times) < 0.3


def test_an_unchanged_kernel_is_emitted_as_it_was() -> None:
    module = parse(HEADER + ".entry k() { .reg .b32 %r; /* kept */ mov.b32 %r, 1;\n ret; }")
    assert emit(module, module.kernels["k"]) == module.text


def test_a_changed_instruction_is_rewritten_in_its_place() -> None:
    module = parse(HEADER + ".entry k() { .reg .b32 %r; /* kept */ mov.b32 %r, 1;\n ret; }")
    read = module.kernels["k"]
    first, last = read.instructions
    fresh = Register("%new0")
    new = (
        replace(first, opcode="mov.b32", operands=(fresh, Immediate((1 << 64) - 5, "int"))),
        replace(first, opcode="add.s32", operands=(Register("%r"), fresh, Immediate(1, "int"))),
    )
    changed = replace(read, instructions=(*new, last), registers={**read.registers, "%new0": "b32"})
    assert emit(module, changed) == HEADER + (
        ".entry k() {\n\t.reg .b32 %new0; .reg .b32 %r; /* kept */ mov.b32 %new0, -5;\n\tadd.s32 %r, %new0, 1;\n ret; }"
    )


def test_a_removed_instruction_leaves_nothing() -> None:
    module = parse(HEADER + ".entry k() { .reg .b32 %r; mov.b32 %r, 1; ret; }")
    read = module.kernels["k"]
    assert emit(module, replace(read, instructions=read.instructions[1:])) == HEADER + (
        ".entry k() { .reg .b32 %r;  ret; }"
    )


def test_a_scoped_register_named_outside_its_scope_moves_to_the_kernel() -> None:
    module = parse(HEADER + ".entry k() { .reg .b32 x, y; { .reg .b32 t; mov.b32 t, 1; mov.b32 x, t; } mov.b32 y, x; }")
    read = module.kernels["k"]
    first, second, third = read.instructions
    changed = replace(read, instructions=(first, second, replace(third, operands=(Register("y"), Register("t@1")))))
    assert emit(module, changed) == HEADER + (
        ".entry k() {\n\t.reg .b32 t$scope1; .reg .b32 x, y; { .reg .b32 t; mov.b32 t$scope1, 1; mov.b32 x, t$scope1; }"
        " mov.b32 y, t$scope1; }"
    )


def test_every_operand_form_survives_writing_and_reading() -> None:
    body = """.reg .b64 %d; .reg .b32 %r; .reg .f32 %f; .reg .pred p, q; .shared .b8 tile[16];
    shfl.sync.bfly.b32 %r|p, %r, 1, 31, -1;
    ld.global.v4.b32 {%r, _, %r, %r}, [%d+-16];
    cp.async.bulk.tensor.2d.shared::cta.global [%r], [%d, {%r, 0}], [tile+8];
    setp.lt.and.f32 p, %f, 0fBF800000, !q;
    @!p mov.f64 %d, 0d3FF0000000000000;
    mov.u32 %r, %ctaid.x;
    mov.b64 %d, tile;
    ret;"""
    module = parse(HEADER + ".entry k() {" + body + "}")
    read = module.kernels["k"]
    rewritten = replace(
        module, kernels={"k": replace(read, instructions=tuple(replace(one, line=-1) for one in read.instructions))}
    )
    again = parse(emit(rewritten, read)).kernels["k"]
    without_place = [replace(one, line=0, span=(0, 0)) for one in again.instructions]
    assert without_place == [replace(one, line=0, span=(0, 0)) for one in read.instructions]


def test_emitting_a_kernel_that_is_not_of_the_module_is_refused() -> None:
    module = parse(HEADER + ".entry k() { ret; }")
    read = module.kernels["k"]
    with pytest.raises(ValueError, match="no kernel other"):
        emit(module, replace(read, name="other"))
    with pytest.raises(ValueError, match=r"no instruction of k stands at characters \(1, 2\)"):
        emit(module, replace(read, instructions=(replace(read.instructions[0], span=(1, 2)),)))
