"""What compiled kernels use: every opcode is in the table, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from equiv.emulator.isa import TABLE

LISTED = (Path(__file__).parent / "data" / "inventory.txt").read_text().splitlines()
OPCODES = [line for line in LISTED if line and not line.startswith("#")]
REFUSED = {"multimem.st.relaxed.sys.global.v4.bf16x2"}


def test_the_list_is_whole() -> None:
    assert len(OPCODES) == len(set(OPCODES)) == 232


@pytest.mark.parametrize("opcode", OPCODES)
def test_an_opcode_of_real_kernels_is_known(opcode: str) -> None:
    kinds = {entry.kind for entry, _ in TABLE.candidates(opcode)}
    assert kinds, f"{opcode}: {TABLE.why_not(opcode)}"
    assert (kinds == {"refused"}) == (opcode in REFUSED)


@pytest.mark.parametrize(
    ("opcode", "reason"),
    [
        ("sin.approx.ftz.f32", "its bits are not measured, nor is the range reduction in front of it"),
        ("cvt.rs.satfinite.e2m1x4.f32", "stochastic rounding: its bits are not measured"),
        ("fma.rn.oob.bf16x2", "out-of-bounds NaNs are not emulated"),
        ("shfl.bfly.b32", "the form without .sync is gone since sm_70"),
    ],
)
def test_what_is_refused_says_why(opcode: str, reason: str) -> None:
    assert [(entry.kind, entry.note) for entry, _ in TABLE.candidates(opcode)] == [("refused", reason)]
