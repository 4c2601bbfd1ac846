"""The assembler and disassembler that come with Triton."""

from __future__ import annotations

import importlib.util

import pytest
from probes import header, probe, store

from equiv.emulator import toolchain
from equiv.emulator.toolchain import AssemblerError, assemble, assembler_of, disassemble, ptxas, ptxas_for
from equiv.errors import EmulatorError, UnsupportedError

SUM = probe("k", "add.rn.f32 %f20, %f0, %f1;" + store(20, 64))


def test_the_two_assemblers_are_told_apart_by_what_they_read() -> None:
    older, newer = ptxas("ptxas"), ptxas("ptxas-blackwell")
    assert older.newest_ptx < newer.newest_ptx
    assert str(newer) == f"ptxas-blackwell {newer.version}"
    assert all(part.isdigit() for part in newer.version.split("."))


@pytest.mark.parametrize(
    ("version", "target", "name"),
    [
        ("8.0", "sm_90a", "ptxas"),
        ("8.7", "sm_100a", "ptxas-blackwell"),
        ("99.0", "sm_90a", "ptxas-blackwell"),
        ("9.4", "sm_100a, debug", "ptxas-blackwell"),
    ],
)
def test_the_assembler_is_chosen_by_target_and_version(version: str, target: str, name: str) -> None:
    assert ptxas_for(f"// comment\n.version {version}\n.target {target}\n").name == name


def test_a_text_without_a_version_is_refused() -> None:
    with pytest.raises(AssemblerError, match=r"without \.version or \.target"):
        ptxas_for(".target sm_90a\n")


def test_assembling_and_disassembling_gives_instructions_without_addresses() -> None:
    sass = disassemble(assemble(header("sm_90a") + SUM, "sm_90a", ptxas("ptxas")))
    assert list(sass) == ["k"]
    assert [line for line in sass["k"] if line.startswith("FADD")] == ["FADD R5, R0, R5 ;"]
    assert sass["k"][-2:] == ("BRA `(L0);", "L1:") or "L0:" in sass["k"]
    assert not [line for line in sass["k"] if "/*" in line or ".reuse" in line]


def test_labels_are_numbered_in_order_of_appearance() -> None:
    body = "one: bar.sync 0; setp.gt.f32 %q1, %f0, %f1; @%q1 bra one; two: bar.sync 1; @%q1 bra two;"
    first = disassemble(assemble(header("sm_90a") + probe("k", body), "sm_90a", ptxas("ptxas")))["k"]
    other = probe("other", "bar.sync 2; x: bar.sync 0; setp.gt.f32 %q1, %f0, %f1; @%q1 bra x;")
    both = disassemble(assemble(header("sm_90a") + other + probe("k", body), "sm_90a", ptxas("ptxas")))
    assert both["k"] == first
    labels = [line for line in first if line.endswith(":")]
    assert labels == sorted(labels, key=lambda label: int(label[1:-1]))
    assert labels[0] == "L0:"


def test_a_newer_version_line_is_lowered_for_the_assembler() -> None:
    newer = ptxas("ptxas-blackwell")
    text = header("sm_90a") + SUM
    raised = text.replace(".version 8.8", ".version 99.9")
    assert disassemble(assemble(raised, "sm_90a", newer)) == disassemble(assemble(text, "sm_90a", newer))


def test_what_the_assembler_rejects_is_reported_in_its_words() -> None:
    with pytest.raises(AssemblerError) as caught:
        assemble(header("sm_90a") + probe("k", "add.f32 %f20, %d0, %f1;"), "sm_90a", ptxas("ptxas"))
    assert "ptxas 12." in str(caught.value)
    assert "kernel.ptx, line" in str(caught.value)
    assert "Arguments mismatch for instruction 'add'" in str(caught.value)


def test_options_reach_the_assembler() -> None:
    text = header("sm_90a") + probe("k", "mul.f32 %f10, %f0, %f1; add.f32 %f20, %f10, %f2;" + store(20, 64))
    fused = disassemble(assemble(text, "sm_90a", ptxas("ptxas")))["k"]
    apart = disassemble(assemble(text, "sm_90a", ptxas("ptxas"), ("-fmad=false",)))["k"]
    assert any(line.startswith("FFMA") for line in fused)
    assert not any(line.startswith("FFMA") for line in apart)


def test_the_maker_of_a_cubin_is_read_from_its_note() -> None:
    newer = ptxas("ptxas-blackwell")
    assert assembler_of(assemble(header("sm_90a") + SUM, "sm_90a", newer)) == newer.version
    assert assembler_of(b"\x7fELF") is None


def test_a_damaged_cubin_is_an_error_of_the_disassembler() -> None:
    with pytest.raises(EmulatorError, match=r"nvdisasm [0-9.]+ cannot read the cubin"):
        disassemble(b"no cubin")


def test_without_triton_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for function in (toolchain.ptxas, toolchain.nvdisasm_version):
        function.cache_clear()
    with pytest.raises(UnsupportedError, match="needs package:triton: it brings ptxas-blackwell") as caught:
        ptxas("ptxas-blackwell")
    assert caught.value.needs == "package:triton"
    with pytest.raises(UnsupportedError, match="it brings nvdisasm"):
        disassemble(b"")


def test_an_unknown_tool_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match="the installed triton brings no ptxas-none"):
        ptxas("ptxas-none")
