"""The contraction rule against the assemblers: contracted PTX must give the SASS of the PTX."""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import TYPE_CHECKING

import pytest
from probes import header, probe, store

from equiv.emulator.contraction import Contraction, contract
from equiv.emulator.ptx import Immediate, Register
from equiv.emulator.ptx_emitter import emit
from equiv.emulator.ptx_parser import parse
from equiv.emulator.toolchain import assemble, disassemble, ptxas

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = [("sm_90a", "ptxas"), ("sm_90a", "ptxas-blackwell"), ("sm_100a", "ptxas-blackwell")]
P = "mul.f32 %f10, %f0, %f1;"
Q = "mul.f32 %f11, %f2, %f3;"
R = "mul.f32 %f12, %f4, %f5;"
ADD = "add.f32 %f20, %f10, %f2;"
BRANCH = "setp.gt.f32 %q1, %f3, %f4; @%q1 bra L; st.global.f32 [%p+128], %f5; bar.sync 0; L:"
OUT = store(20, 64)
OUT2 = OUT + store(21, 68)
HALVES = "ld.global.b16 %h0, [%p+128]; ld.global.b16 %h1, [%p+130]; ld.global.b16 %h2, [%p+132];"
WORDS = "ld.global.b32 %r0, [%p+128]; ld.global.b32 %r1, [%p+132]; ld.global.b32 %r2, [%p+136];"
PAIRS = "ld.global.b64 %d0, [%p+128]; ld.global.b64 %d1, [%p+136]; ld.global.b64 %d2, [%p+144];"

# name: (body, number of fusions)
PROBES = {
    "product_first": (P + ADD + OUT, 1),
    "product_second": (P + "add.f32 %f20, %f2, %f10;" + OUT, 1),
    "minuend": (P + "sub.f32 %f20, %f10, %f2;" + OUT, 1),
    "subtrahend": (P + "sub.f32 %f20, %f2, %f10;" + OUT, 1),
    "constant_addend": (P + "sub.f32 %f20, %f10, 0f3E99999A;" + OUT, 1),
    "constant_factor_subtracted": ("mul.f32 %f10, %f0, 0f3E99999A; sub.f32 %f20, %f2, %f10;" + OUT, 1),
    "two_sums": (P + ADD + "add.f32 %f21, %f10, %f3;" + OUT2, 2),
    "sum_and_store": (P + ADD + OUT + store(10, 68), 0),
    "sum_and_fma": (P + ADD + "fma.rn.f32 %f21, %f10, %f3, %f4;" + OUT2, 0),
    "sum_and_dead_use": (P + ADD + "max.f32 %f21, %f10, %f4;" + OUT, 1),
    "sum_and_overwritten_use": (P + ADD + "max.f32 %f20, %f10, %f4; min.f32 %f20, %f3, %f4;" + OUT, 0),
    "twice_in_a_sum": (P + "add.f32 %f20, %f10, %f10;" + OUT, 0),
    "product_and_its_negation": (P + "neg.f32 %f11, %f10; add.f32 %f20, %f10, %f11;" + OUT, 0),
    "through_moves": (P + "mov.b32 %r1, %f10; mov.b32 %f11, %r1; add.f32 %f20, %f11, %f2;" + OUT, 1),
    "through_neg": (P + "neg.f32 %f11, %f10; add.f32 %f20, %f11, %f2;" + OUT, 1),
    "through_neg_twice_subtracted": (
        P + "neg.f32 %f11, %f10; neg.f32 %f12, %f11; sub.f32 %f20, %f2, %f12;" + OUT,
        1,
    ),
    "negation_stored": (P + "neg.f32 %f11, %f10; add.f32 %f20, %f11, %f2;" + OUT + store(11, 68), 0),
    "not_through_abs": (P + "abs.f32 %f11, %f10; add.f32 %f20, %f11, %f2;" + OUT, 0),
    "rounded_product": ("mul.rn.f32 %f10, %f0, %f1;" + ADD + OUT, 0),
    "rounded_sum": (P + "add.rn.f32 %f20, %f10, %f2;" + OUT, 0),
    "one_of_two_sums_rounded": (P + "add.rn.f32 %f20, %f10, %f2; add.f32 %f21, %f10, %f3;" + OUT2, 0),
    "both_ftz": ("mul.ftz.f32 %f10, %f0, %f1; add.ftz.f32 %f20, %f10, %f2;" + OUT, 1),
    "only_product_ftz": ("mul.ftz.f32 %f10, %f0, %f1;" + ADD + OUT, 0),
    "only_sum_ftz": (P + "add.ftz.f32 %f20, %f10, %f2;" + OUT, 0),
    "saturated_sum": (P + "add.sat.f32 %f20, %f10, %f2;" + OUT, 1),
    "saturated_product": ("mul.sat.f32 %f10, %f0, %f1;" + ADD + OUT, 0),
    "guarded_sum": (P + "setp.gt.f32 %q1, %f3, %f4; mov.f32 %f20, %f5; @%q1 " + ADD + OUT, 1),
    "guarded_product": ("setp.gt.f32 %q1, %f3, %f4; mov.f32 %f10, %f5; @%q1 " + P + ADD + OUT, 0),
    "barrier_between": (P + "bar.sync 0;" + ADD + OUT, 1),
    "label_that_nobody_branches_to": (P + "L:" + ADD + OUT, 1),
    "factor_overwritten_between": (P + "min.f32 %f0, %f4, %f5;" + ADD + OUT + store(0, 68), 1),
    "product_overwritten_by_its_sum": (P + "add.f32 %f10, %f10, %f2;" + store(10, 64), 1),
    "other_block": (P + BRANCH + ADD + OUT, 0),
    "sums_in_two_blocks": (P + "add.f32 %f21, %f10, %f3;" + BRANCH + ADD + OUT2, 0),
    "constant_factor_in_other_block": ("mul.f32 %f10, %f0, 0f3E99999A;" + BRANCH + ADD + OUT, 1),
    "constant_register_in_other_block": ("mov.f32 %f9, 0f3E99999A; mul.f32 %f10, %f9, %f0;" + BRANCH + ADD + OUT, 1),
    "parameter_in_other_block": ("ld.param.f32 %f9, [Q]; mul.f32 %f10, %f0, %f9;" + BRANCH + ADD + OUT, 1),
    "constant_factor_in_two_blocks": (
        "mul.f32 %f10, %f0, 0f3E99999A; add.f32 %f21, %f10, %f3;" + BRANCH + ADD + OUT2,
        2,
    ),
    "constant_factor_in_other_block_stored": (
        "mul.f32 %f10, %f0, 0f3E99999A;" + BRANCH + ADD + OUT + store(10, 68),
        0,
    ),
    "constant_factor_before_loop": (
        "mul.f32 %f10, %f0, 0f3E99999A; mov.f32 %f20, %f5; mov.u32 %r1, 0; L: add.f32 %f20, %f20, %f10;"
        "ld.global.f32 %f12, [%p+256]; mul.rn.f32 %f20, %f20, %f12; add.u32 %r1, %r1, 1; ld.global.u32 %r2, [%p+252];"
        "setp.lt.u32 %q1, %r1, %r2; @%q1 bra L;" + OUT,
        1,
    ),
    "first_of_two_products": (Q + P + "add.f32 %f20, %f10, %f11;" + OUT, 1),
    "first_of_two_products_subtracted": (P + Q + "sub.f32 %f20, %f10, %f11;" + OUT, 1),
    "second_if_first_is_stored": (P + Q + "add.f32 %f20, %f10, %f11;" + OUT + store(10, 68), 1),
    "single_use_before_several": (P + Q + R + "add.f32 %f20, %f10, %f11; add.f32 %f21, %f12, %f10;" + OUT2, 2),
    "addend_is_fused_no_more": (P + Q + "add.f32 %f20, %f10, %f11; add.f32 %f21, %f11, %f4;" + OUT2, 1),
    "three_in_a_ring": (
        P + Q + R + "add.f32 %f20, %f10, %f11; add.f32 %f21, %f11, %f12; add.f32 %f22, %f12, %f10;" + OUT2
        + store(22, 72),
        3,
    ),
    "fewer_uses_first": (
        P + "add.f32 %f21, %f10, %f3; add.f32 %f22, %f10, %f4; mul.f32 %f11, %f21, %f22; add.f32 %f20, %f10, %f11;"
        "sub.f32 %f23, %f22, %f11;" + OUT2 + store(22, 72) + store(23, 76),
        4,
    ),
    "chain": (P + "add.f32 %f21, %f10, %f2; mul.f32 %f12, %f21, %f3; add.f32 %f20, %f12, %f4;" + OUT, 2),
    "times_one": ("mul.f32 %f10, %f0, 0f3F800000;" + ADD + OUT, 0),
    "times_minus_one": ("mul.f32 %f10, %f0, 0fBF800000;" + ADD + OUT, 0),
    "times_one_ftz": ("mul.ftz.f32 %f10, %f0, 0f3F800000; add.ftz.f32 %f20, %f10, %f2;" + OUT, 0),
    "times_one_and_product": ("mul.f32 %f10, %f0, 0f3F800000;" + Q + "add.f32 %f20, %f10, %f11;" + OUT, 1),
    "times_two": ("mul.f32 %f10, %f0, 0f40000000;" + ADD + OUT, 1),
    "constant_product": ("mul.f32 %f10, 0f3E99999A, 0f3E99999B;" + Q + "add.f32 %f20, %f10, %f11;" + OUT, 1),
    "division": ("div.full.f32 %f10, %f0, %f1;" + ADD + OUT, 1),
    "division_ftz": ("div.full.ftz.f32 %f10, %f0, %f1; add.ftz.f32 %f20, %f10, %f2;" + OUT, 1),
    "division_in_two_sums": ("div.full.f32 %f10, %f0, %f1;" + ADD + "sub.f32 %f21, %f3, %f10;" + OUT2, 2),
    "division_stored": ("div.full.f32 %f10, %f0, %f1;" + ADD + OUT + store(10, 68), 0),
    "division_approx": ("div.approx.f32 %f10, %f0, %f1;" + ADD + OUT, 1),
    "division_approx_ftz": ("div.approx.ftz.f32 %f10, %f0, %f1; add.ftz.f32 %f20, %f10, %f2;" + OUT, 1),
    "reciprocal": ("rcp.approx.f32 %f10, %f1;" + ADD + OUT, 1),
    "reciprocal_ftz": ("rcp.approx.ftz.f32 %f10, %f1;" + ADD + OUT, 0),
    "exact_division": ("div.rn.f32 %f10, %f0, %f1;" + ADD + OUT, 0),
    "square_root": ("rsqrt.approx.f32 %f10, %f1;" + ADD + OUT, 0),
    "exponential": ("ex2.approx.f32 %f10, %f1;" + ADD + OUT, 0),
    "division_by_constant": ("div.full.f32 %f10, %f0, 0f43E00000;" + ADD + OUT, 1),
    "division_by_constant_register": (
        "mov.b32 %r1, 0f43E00000; mov.b32 %f9, %r1; div.full.f32 %f10, %f0, %f9;" + ADD + OUT,
        1,
    ),
    "division_by_tiny_constant": ("div.full.f32 %f10, %f0, 0f00200000;" + ADD + OUT, 1),
    "division_by_huge_constant": ("div.full.f32 %f10, %f0, 0f7F400000;" + ADD + OUT, 1),
    "division_by_one": ("div.full.f32 %f10, %f0, 0f3F800000;" + ADD + OUT, 0),
    "division_of_constants": ("div.full.f32 %f10, 0f40400000, 0f43E00000;" + ADD + OUT, 0),
    "bf16": (HALVES + "mul.bf16 %h4, %h0, %h1; sub.bf16 %h3, %h2, %h4; st.global.b16 [%p+64], %h3;", 1),
    "bf16_rounded": (HALVES + "mul.rn.bf16 %h4, %h0, %h1; add.rn.bf16 %h3, %h4, %h2; st.global.b16 [%p+64], %h3;", 0),
    "bf16x2": (WORDS + "mul.bf16x2 %r4, %r0, %r1; add.bf16x2 %r3, %r4, %r2; st.global.b32 [%p+64], %r3;", 1),
    "f16x2": (WORDS + "mul.f16x2 %r4, %r0, %r1; add.f16x2 %r3, %r4, %r2; st.global.b32 [%p+64], %r3;", 1),
    "f64": (PAIRS + "mul.f64 %d3, %d0, %d1; sub.f64 %d4, %d2, %d3; st.global.b64 [%p+64], %d4;", 1),
}  # fmt: skip
PACKED = {
    "packed": (PAIRS + "mul.f32x2 %d3, %d0, %d1; add.f32x2 %d4, %d3, %d2; st.global.b64 [%p+64], %d4;", 1),
    "packed_rounded": (
        PAIRS + "mul.rn.f32x2 %d3, %d0, %d1; add.rn.f32x2 %d4, %d3, %d2; st.global.b64 [%p+64], %d4;",
        0,
    ),
    "packed_minuend": (PAIRS + "mul.f32x2 %d3, %d0, %d1; sub.f32x2 %d4, %d3, %d2; st.global.b64 [%p+64], %d4;", 1),
    "packed_subtrahend": (PAIRS + "mul.f32x2 %d3, %d0, %d1; sub.f32x2 %d4, %d2, %d3; st.global.b64 [%p+64], %d4;", 1),
    "packed_then_unpacked": (
        PAIRS + "mul.f32x2 %d3, %d0, %d1; mov.b64 {%f10, %f11}, %d3; add.f32 %f20, %f10, %f2;" + OUT,
        0,
    ),
}  # fmt: skip

Sass = dict[str, tuple[str, ...]]


@cache
def both(arch: str, tool: str) -> tuple[Sass, Sass, Sass, dict[str, tuple[Contraction, ...]]]:
    """SASS of all probes, of their contracted text, of their text without fusion; and what was done."""
    probes = PROBES | PACKED if arch == "sm_100a" else PROBES
    text = header(arch) + "".join(probe(name, body) for name, (body, _) in probes.items())
    module = parse(text)
    results = {name: contract(kernel) for name, kernel in module.kernels.items()}
    contracted = emit(module, *(kernel for kernel, _ in results.values()))
    assembler = ptxas(tool)
    return (
        disassemble(assemble(text, arch, assembler)),
        disassemble(assemble(contracted, arch, assembler)),
        disassemble(assemble(text, arch, assembler, ("-fmad=false",))),
        {name: done for name, (_, done) in results.items()},
    )


@pytest.mark.parametrize(("arch", "tool"), TOOLS)
@pytest.mark.parametrize("name", PROBES)
def test_contracted_probe_gives_the_same_machine_code(name: str, arch: str, tool: str) -> None:
    original, contracted, unfused, done = both(arch, tool)
    assert contracted[name] == original[name]
    fusions = [one for one in done[name] if one.kind == "fused"]
    assert len(fusions) == PROBES[name][1]
    if fusions:
        assert unfused[name] != original[name], "the probe could not show a missing fusion"


@pytest.mark.parametrize("name", PACKED)
def test_contracted_packed_probe_gives_the_same_machine_code(name: str) -> None:
    original, contracted, _, done = both("sm_100a", "ptxas-blackwell")
    assert contracted[name] == original[name]
    assert len([one for one in done[name] if one.kind == "fused"]) == PACKED[name][1]


def test_a_fused_sum_becomes_fma_and_its_product_goes() -> None:
    kernel = parse(header("sm_90a") + probe("k", P + ADD + OUT)).kernels["k"]
    contracted, done = contract(kernel)
    (fma,) = [one for one in contracted.instructions if one.opcode.startswith("fma")]
    assert (fma.opcode, fma.operands) == (
        "fma.rn.f32",
        (Register("%f20"), Register("%f0"), Register("%f1"), Register("%f2")),
    )
    assert not [one for one in contracted.instructions if one.opcode.startswith(("mul", "add"))]
    line = next(one.line for one in kernel.instructions if one.opcode == "add.f32")
    assert done == (Contraction("fused", line, line, "mul.f32 add.f32", "fma.rn.f32", None),)


def test_a_sum_that_must_not_be_fused_is_marked() -> None:
    kernel = parse(header("sm_90a") + probe("k", P + ADD + OUT + store(10, 68))).kernels["k"]
    contracted, done = contract(kernel)
    opcodes = [one.opcode for one in contracted.instructions]
    assert "add.rn.f32" in opcodes
    assert "mul.f32" in opcodes
    assert done == ()


def test_a_sum_without_products_stays_as_it_is() -> None:
    kernel = parse(header("sm_90a") + probe("k", "add.f32 %f20, %f0, %f2;" + OUT)).kernels["k"]
    assert contract(kernel) == (kernel, ())


def test_labels_keep_their_place_when_instructions_are_inserted_and_dropped() -> None:
    body = "div.full.f32 %f10, %f0, %f1;" + ADD + OUT + BRANCH + P + "add.f32 %f20, %f10, %f3;" + OUT + "@%q1 bra L;"
    kernel = parse(header("sm_90a") + probe("k", body)).kernels["k"]
    contracted, _ = contract(kernel)
    before, after = kernel.labels["L"], contracted.labels["L"]
    assert kernel.instructions[before].opcode == "mul.f32"
    assert contracted.instructions[after].opcode == "fma.rn.f32"
    assert contracted.instructions[after - 1] == kernel.instructions[before - 1]


def test_a_division_by_a_constant_becomes_a_multiplication_by_its_reciprocal() -> None:
    kernel = parse(header("sm_90a") + probe("k", "div.full.f32 %f20, %f0, 0f43E00000;" + OUT)).kernels["k"]
    contracted, done = contract(kernel)
    (product,) = [one for one in contracted.instructions if one.opcode == "mul.f32"]
    assert product.operands == (Register("%f20"), Register("%f0"), Immediate(0x3B12_4925, "f32"))
    assert [(one.kind, one.was, one.now) for one in done] == [("constant", "div.full.f32", "mul.f32")]


# Inputs where the H200's instruction returns another float32 than the rounded exact value, which is what ptxas puts in.
FOLDED = {
    "rcp.approx.ftz.f32": 0x3F80_0001,
    "rsqrt.approx.ftz.f32": 0x3F80_0F2B,
    "sqrt.approx.ftz.f32": 0x3F80_1F35,
    "ex2.approx.ftz.f32": 0x3F80_0123,
    "lg2.approx.ftz.f32": 0x4060_0000,
}


@pytest.mark.parametrize(("arch", "tool"), TOOLS)
def test_functions_of_constants_are_what_the_assembler_computes(arch: str, tool: str) -> None:
    body = "".join(
        f"{opcode} %f{10 + number}, 0f{bits:08X}; add.rn.f32 %f20, %f0, %f{10 + number}; {store(20, 64 + 4 * number)}\n"
        for number, (opcode, bits) in enumerate(FOLDED.items())
    )
    text = header(arch) + probe("k", body)
    contracted, done = contract(parse(text).kernels["k"])
    assert [one.was for one in done] == list(FOLDED)
    moves = [one.operands[1] for one in contracted.instructions if one.opcode == "mov.f32"]
    sass = disassemble(assemble(text, arch, ptxas(tool)))["k"]
    theirs = [float(found.group(1)) for line in sass if (found := re.match(r"FADD R\d+, R\d+, (\S+) ;", line))]
    assert [one.bits for one in moves if isinstance(one, Immediate)] == [_float_bits(value) for value in theirs]


def _float_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


@pytest.mark.parametrize(("arch", "capability", "fused"), [("sm_90a", 90, 2), ("sm_100a", 100, 1)])
def test_a_triton_layer_norm_is_contracted_as_the_assembler_does(
    arch: str, capability: int, fused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    import layer_norm_kernel
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {"x": "*bf16", "w": "*fp32", "b": "*fp32", "y": "*fp32", "eps": "fp32", "n": "constexpr"}
    source = triton.compiler.ASTSource(layer_norm_kernel.layer_norm, signature, {(5,): 128})
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    module = parse(compiled.asm["ptx"])
    contracted, done = contract(module.kernels["layer_norm"])
    assert sum(one.kind == "fused" for one in done) == fused
    tool = ptxas("ptxas" if capability < 100 else "ptxas-blackwell")
    assert disassemble(assemble(emit(module, contracted), arch, tool)) == disassemble(compiled.asm["cubin"])
