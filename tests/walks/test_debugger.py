"""Somebody at 2 a.m. with one wrong value: what is wrong, in which step, in how small a case, whom to hand it to."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from clone import Clone

CASE = "dsa_index::fp8-b17-ties"
ON = ("--device", "emulated:sm_90a")
E4M3 = "read_only_args=[high, low]"
BITS = "(%s.bitcast(Uint32) & Uint32(0xFFF00000)).bitcast(Float32)"
CUT = f"read_only_args=[{BITS % 'high'}, {BITS % 'low'}]"


def test_a_wrong_code_is_named_shrunk_and_handed_on(clone: Clone, tmp_path: Path) -> None:
    clone.equiv("dump", CASE, *ON, "--out", "sound", ends=0)
    source = (clone.home / "equiv/cute/convert.py").read_text()
    line = next(line for line in source.splitlines() if "cvt.rn.satfinite.e4m3x2.f32" in line)
    clone.edit("equiv/cute/convert.py", line, line.replace(E4M3, CUT))

    said, _ = clone.equiv("run", CASE, *ON, ends=1)
    assert "q_codes: MISMATCH (candidate)" in said
    assert "where   " in said
    again = re.search(r"again +equiv (.*)", said)
    assert again is not None
    said, _ = clone.equiv(*again[1].split(), ends=1)
    assert "1 MISMATCH" in said

    said, _ = clone.equiv("explain", CASE, *ON, "--trace", ends=0)
    assert "dsa.R14 (q: FP8 code) were mantissa cut first" in said
    number = source.splitlines().index(line) + 1
    assert re.search(rf"DEPARTS at convert\.py:{number}\b", said), said

    clone.equiv("dump", CASE, *ON, "--out", "wrong", ends=0)
    said, _ = clone.equiv("compare", "sound", "wrong", ends=1)
    assert f"DIFFERENT {CASE}" in said
    assert "candidate: q_codes" in said
    assert "oracle: " not in said

    said, _ = clone.equiv("shrink", CASE, *ON, "--budget", "15", "--out", "small.zip", ends=0)
    entry = said[said.index("[[case]]") :].partition("\n\n")[0]
    mine = clone.home / "mine"
    mine.mkdir()
    (mine / "dsa_index.toml").write_text(f'pair = "dsa_index"\n{entry}\n')
    name = re.search(r'id = "(.*)"', entry)
    assert name is not None
    said, _ = clone.equiv("run", f"dsa_index::{name[1]}", *ON, "--cases", "mine", ends=1)
    assert "q_codes: MISMATCH (candidate)" in said

    clone.equiv("repro", CASE, *ON, "--out", str(tmp_path / "fault.zip"), ends=0)
    elsewhere = [sys.executable, "-m", "equiv.cli", "repro", "--run", str(tmp_path / "fault.zip")]
    done = subprocess.run(elsewhere, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "MISMATCH" in done.stdout
    assert " 0 of " in done.stdout
    assert done.returncode == 0
