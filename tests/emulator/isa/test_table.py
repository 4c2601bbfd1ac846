from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import ptx_forms as forms  # tests/support is on the path
import pytest

from equiv import ccode
from equiv.emulator import backend
from equiv.emulator.decode import Decoder
from equiv.emulator.isa import TABLE
from equiv.emulator.isa.table import Entry, Table
from equiv.emulator.ptx import Immediate, Instruction, Negated, Register, Special, Vector
from equiv.errors import UnknownInstructionError

if TYPE_CHECKING:
    from pathlib import Path

LOWEST, HIGHEST = 90, 100
EMULATED = [entry for entry in TABLE.entries if entry.kind != "refused"]


def _decode(opcode: str, *operands: object, arch: int = HIGHEST) -> None:
    Decoder(forms.kernel(), arch, {}).decode(Instruction(opcode, operands, line=7))  # type: ignore[arg-type]


def _registers(text: str) -> tuple[Register, ...]:
    return tuple(Register(f"%{word}") for word in text.split())


def test_every_spelling_of_every_entry_decodes_and_its_c_compiles(tmp_path: Path) -> None:
    shapes = {}
    for entry in EMULATED:
        decoder = Decoder(forms.kernel(), min(HIGHEST, entry.last_arch), {})
        for instruction in forms.instructions(entry):
            decoded = decoder.decode(instruction)
            if decoded.shape is not None:
                shapes[decoded.shape.name] = decoded.shape
    assert len(shapes) > 1000
    source = tmp_path / "all.c"
    source.write_text(backend.chunk_source(list(shapes.values())))
    command = [
        ccode.compiler(),
        "-std=gnu11",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        *backend.WARNINGS_OFF,
        *(f"-I{directory}" for directory in backend.INCLUDES),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize("entry", EMULATED, ids=lambda entry: entry.pattern)
def test_an_opcode_and_operands_belong_to_one_entry_only(entry: Entry) -> None:
    decoder = Decoder(forms.kernel(), min(HIGHEST, entry.last_arch), {})
    for instruction in forms.instructions(entry):
        shape = decoder.decode(instruction).shape
        assert entry.kind == "none" or (shape is not None and shape.entry is entry), instruction.opcode


@pytest.mark.parametrize(
    ("opcode", "reason"),
    [
        ("frobnicate.b32", "unknown instruction `frobnicate`"),
        ("add.rn.s32", "modifier `.s32` is not known here"),
        ("add.wrap.s32", "modifier `.wrap` is not known here"),
        ("add", "a required modifier is missing"),
        ("ld.global.L3::fast.b32", "modifier `.L3::fast` is not known here"),
        ("fma.f32", "modifier `.f32` is not known here"),
        ("cvt.rn.satfinite.e4m3x2.f64", "modifier `.f64` is not known here"),
        ("add.f32.ftz", "modifier `.ftz` is not known here"),
        ("wgmma.fence.async", "modifier `.async` is not known here"),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "sparse matrices are not emulated"),
        ("tcgen05.mma.cta_group::1.kind::i8", "emulated are the kinds f16, tf32, f8f6f4, mxf8f6f4, mxf4, mxf4nvf4"),
    ],
)
def test_an_unknown_part_of_an_opcode_is_named_with_its_line(opcode: str, reason: str) -> None:
    with pytest.raises(UnknownInstructionError) as caught:
        _decode(opcode, *_registers("b32_0 b32_1 b32_2"))
    assert str(caught.value) == f"{opcode} (PTX line 7): {reason}"


def test_redux_is_not_taken_for_red_and_has_a_destination() -> None:
    decoded = Decoder(forms.kernel(), HIGHEST, {}).decode(
        Instruction("redux.sync.max.abs.f32", _registers("b32_0 b32_1 b32_2"))
    )
    assert decoded.outputs == {"%b32_0"}
    assert decoded.inputs == {"%b32_1", "%b32_2"}


def test_mixed_precision_add_is_a_float_add_although_it_ends_in_bf16() -> None:
    decoded = Decoder(forms.kernel(), HIGHEST, {}).decode(
        Instruction("add.rn.f32.bf16", _registers("b32_0 b16_1 b32_2"))
    )
    assert decoded.shape is not None
    assert "eq_add_rn(eq_bf16_to_f32(a), c)" in decoded.shape.body


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        ("fma.rn.f32x2", "b64_0 b64_1 b64_2 b64_3"),
        ("add.rn.f32.bf16", "b32_0 b16_1 b32_2"),
        ("redux.sync.max.f32", "b32_0 b32_1 b32_2"),
        ("cvt.rn.satfinite.e2m1x2.f32", "b8_0 b32_1 b32_2"),
        ("max.f32", "b32_0 b32_1 b32_2 b32_3"),
    ],
)
def test_what_only_sm_100_has_is_refused_on_sm_90(opcode: str, operands: str) -> None:
    _decode(opcode, *_registers(operands), arch=HIGHEST)
    with pytest.raises(UnknownInstructionError, match="needs sm_100 or higher"):
        _decode(opcode, *_registers(operands), arch=LOWEST)


@pytest.mark.parametrize(
    ("opcode", "operands", "reason"),
    [
        ("add.s32", _registers("b32_0 b32_1"), "takes 3 operands, not 2"),
        ("add.s32", _registers("b32_0 b64_1 b32_2"), "operand a is %b64_1 of type b64, not s32"),
        ("add.s32", _registers("b32_0 pred_1 b32_2"), "operand a is %pred_1 of type pred, not s32"),
        ("add.f32", (*_registers("b32_0 b32_1"), Immediate(1, "int")), "operand b is an integer constant, not f32"),
        ("and.b32", (*_registers("b32_0 b32_1"), Negated(Register("%pred_0"))), "operand b cannot be negated"),
        ("ld.global.v4.b32", (Vector(_registers("b32_0 b32_1")), *_registers("b64_0")), "must be a vector of 4"),
        ("cp.async.wait_group", (Immediate((1 << 64) - 1, "int"),), "operand i must be a count, from 0 on"),
        ("mov.u64", (Register("%b64_0"), Special("%envreg3")), "special register %envreg3 is not supported"),
    ],
)
def test_an_operand_that_does_not_fit_is_named(opcode: str, operands: tuple[object, ...], reason: str) -> None:
    with pytest.raises(UnknownInstructionError, match=reason.replace("(", r"\(")):
        _decode(opcode, *operands)


def test_hints_do_not_make_another_handler() -> None:
    decoder = Decoder(forms.kernel(), HIGHEST, {})
    shapes = set()
    for entry in TABLE.by_base["ld"]:
        plain = [one for one in forms.instructions(entry) if one.opcode.endswith("global.L2::evict_last.b32")]
        shapes |= {decoder.decode(one).shape for one in plain}
    address = next(forms.instructions(TABLE.by_base["ld"][0])).operands[1]
    names = {
        decoder.decode(Instruction(opcode, (Register("%b32_0"), address))).shape.name  # type: ignore[union-attr]
        for opcode in (
            "ld.global.b32",
            "ld.global.nc.L1::no_allocate.b32",
            "ld.relaxed.gpu.global.b32",
            "ld.volatile.global.b32",
        )
    }
    assert len(names) == 1


def test_a_pattern_without_the_optional_part_still_needs_the_rest_in_order() -> None:
    table = Table((Entry("op x? kind=a|b y", "", kind="none"),))
    assert table.candidates("op.a.y")
    assert table.candidates("op.x.b.y")
    assert not table.candidates("op.b.x.y")
    assert table.why_not("op.b.x.y") == "modifier `.x` is not known here"
    assert table.why_not("op.x") == "a required modifier is missing"
