"""Vouching: is the emulated kernel the one of the cubin?"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from probes import header, probe, store

from equiv.emulator import toolchain, vouch
from equiv.emulator.ptx_parser import parse
from equiv.emulator.toolchain import assemble, ptxas

if TYPE_CHECKING:
    from pathlib import Path

FUSED = "mul.f32 %f10, %f0, %f1; add.f32 %f20, %f10, %f2;" + store(20, 64)
# Outside the rule: the assembler decides the branch, merges the blocks, and fuses. Noted in equiv.emulator.products.
BEYOND = (
    "mul.f32 %f10, %f0, %f1; setp.gt.f32 %q1, %f3, %f3; @%q1 bra L; st.global.f32 [%p+128], %f5; L:"
    "add.f32 %f20, %f10, %f2;" + store(20, 64)
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path))
    return tmp_path / "vouch"


@pytest.mark.parametrize(("arch", "name"), [("sm_90a", "ptxas"), ("sm_100a", "ptxas-blackwell")])
def test_a_contracted_kernel_is_vouched_for_by_its_cubin(arch: str, name: str) -> None:
    text = header(arch) + probe("k", FUSED)
    result = vouch.vouch(parse(text), assemble(text, arch, ptxas(name)), arch)
    assert result.ok
    assert result.ptxas == str(ptxas(name))
    assert result.detail.startswith(f"contracted PTX gives the cubin's SASS under {ptxas(name)} (cubin made by ")


def test_the_maker_of_the_cubin_is_named_when_it_is_another_assembler() -> None:
    text = header("sm_90a") + probe("k", FUSED)
    newer = ptxas("ptxas-blackwell")
    result = vouch.vouch(parse(text), assemble(text, "sm_90a", newer), "sm_90a")
    assert result.ok
    assert result.ptxas == str(ptxas("ptxas"))
    assert f"(cubin made by ptxas {newer.version})" in result.detail


def test_without_a_cubin_the_two_texts_are_compared() -> None:
    result = vouch.vouch(parse(header("sm_90a") + probe("k", FUSED)), None, "sm_90a")
    assert result.ok
    assert result.detail == f"contracted PTX gives the SASS of the PTX under {ptxas('ptxas')}; no cubin given"


def test_a_rule_that_is_wrong_for_a_kernel_is_seen() -> None:
    text = header("sm_90a") + probe("k", BEYOND)
    tool = ptxas("ptxas")
    result = vouch.vouch(parse(text), None, "sm_90a")
    assert not result.ok
    assert result.detail.startswith(f"contracted PTX and PTX differ under {tool}; no cubin given: k, SASS line ")
    result = vouch.vouch(parse(text), assemble(text, "sm_90a", tool), "sm_90a")
    assert not result.ok
    assert result.detail.startswith("the PTX gives the cubin's SASS, the contracted PTX does not under ")


def test_a_cubin_of_another_text_is_seen() -> None:
    text = header("sm_90a") + probe("k", FUSED)
    cubin = assemble(text.replace("%f10, %f2", "%f10, %f3"), "sm_90a", ptxas("ptxas"))
    result = vouch.vouch(parse(text), cubin, "sm_90a")
    assert not result.ok
    assert result.detail.startswith("contracted PTX gives the SASS of the PTX, but the cubin has another under ")
    assert "against 'LDG" in result.detail


def test_a_cubin_of_another_kernel_is_seen() -> None:
    text = header("sm_90a") + probe("k", FUSED)
    cubin = assemble(header("sm_90a") + probe("other", FUSED), "sm_90a", ptxas("ptxas"))
    assert "code sections ['k'] against ['other']" in vouch.vouch(parse(text), cubin, "sm_90a").detail


def test_neither_text_gives_the_cubin() -> None:
    text = header("sm_90a") + probe("k", BEYOND)
    cubin = assemble(header("sm_90a") + probe("k", FUSED), "sm_90a", ptxas("ptxas"))
    result = vouch.vouch(parse(text), cubin, "sm_90a")
    assert not result.ok
    assert result.detail.startswith("neither the PTX nor the contracted PTX gives the cubin's SASS under ")


def test_what_the_assembler_rejects_is_a_result() -> None:
    text = header("sm_90a") + probe("k", "add.f32 %f20, %d0, %f1;")
    result = vouch.vouch(parse(text), None, "sm_90a")
    assert not result.ok
    assert "Arguments mismatch for instruction 'add'" in result.detail


def test_a_missing_toolchain_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.ptxas.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = vouch.vouch(parse(header("sm_90a") + probe("k", FUSED)), None, "sm_90a")
    assert result == vouch.Vouch(ok=False, detail="needs package:triton: it brings ptxas", ptxas="")


def test_a_second_call_reads_the_kept_result(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(header("sm_90a") + probe("k", FUSED))
    first = vouch.vouch(module, None, "sm_90a")
    assert len(list(cache.iterdir())) == 1

    def refuse(*_: object) -> None:
        raise AssertionError("compared again")

    monkeypatch.setattr(vouch, "_compare", refuse)
    assert vouch.vouch(module, None, "sm_90a") == first
    with pytest.raises(AssertionError, match="compared again"):
        vouch.vouch(parse(module.text + "\n"), None, "sm_90a")


def test_a_damaged_kept_result_is_made_again(cache: Path) -> None:
    module = parse(header("sm_90a") + probe("k", FUSED))
    first = vouch.vouch(module, None, "sm_90a")
    (file,) = cache.iterdir()
    for damage in (b"", b'{"ok": true}'):
        file.write_bytes(damage)
        assert vouch.vouch(module, None, "sm_90a") == first
    assert b'"ok": true' in file.read_bytes()
