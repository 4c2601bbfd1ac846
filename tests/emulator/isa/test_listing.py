from __future__ import annotations

import json

import pytest

from equiv import cli
from equiv.emulator.isa import TABLE, listing
from equiv.errors import UsageError


def test_every_entry_is_listed_once_under_its_subject() -> None:
    found = listing.rows()
    assert len(found) == len(TABLE.entries)
    assert {row["subject"] for row in found} >= {"integer", "double", "memory", "refused"}


def test_a_whole_opcode_selects_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulator", "opcodes", "add.rn.f32.bf16"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "floating",
        "  add{.rn|.rz|.rm|.rp}{.sat}.f32(.f16|.bf16)  d=f32, a:atype, c:f32",
        "      only sm_100a",
        "1 entries, 20 opcodes",
    ]


def test_an_architecture_leaves_out_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulator", "opcodes", "f32x2", "--arch", "sm_100a", "--json"]) == 0
    assert {row["syntax"].partition("{")[0] for row in json.loads(capsys.readouterr().out)} >= {"add", "mul"}
    with pytest.raises(UsageError, match=r"the instruction table has nothing with 'fma\.rn\.f32x2'"):
        listing.rows("fma.rn.f32x2", 90)


def test_a_refusal_gives_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulator", "opcodes", "sin.approx.f32"]) == 0
    assert "refused; its bits are not measured" in capsys.readouterr().out


def test_nothing_found_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulator", "opcodes", "frobnicate"]) == 2
    assert "has nothing with 'frobnicate'" in capsys.readouterr().err
