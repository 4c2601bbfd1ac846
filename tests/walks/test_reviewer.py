"""A reviewer on a laptop without a GPU: does this pull request change what the kernels compute, and what of it?"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clone import Clone

ON = ("--device", "emulated:sm_90a")
CASES = ("dsa_index::fp8-b16-amax-edges", "dsa_index::fp8-b1", "kda::wide-b3-t1")
CEIL = "((s.bitcast(Uint32) + 0x7FFFFF) & 0x7F800000)"


def test_a_reviewer_sees_what_a_pull_request_breaks_and_nothing_else_is_run(clone: Clone) -> None:
    clone.git("checkout", "-b", "words")
    clone.edit("README.md", "# equiv", "# Equiv")
    clone.git("commit", "-am", "words only")
    said, why = clone.equiv("run", *CASES, *ON, "--changed", "main", ends=0)
    assert "no case is affected by what changed since main: nothing was run" in said
    assert "dsa_index, no case: none of the 1 changed file(s) can affect it" in why
    assert "kda, no case: none of the 1 changed file(s) can affect it" in why

    clone.git("checkout", "-b", "faster-scale", "main")
    clone.edit("equiv/cute/convert.py", CEIL, "(s.bitcast(Uint32) & 0x7F800000)")
    clone.git("commit", "-am", "a cheaper power of two")
    files = ("--junit", "equiv.xml", "--summary", "summary.md", "--journal", "pull-request.jsonl")
    said, why = clone.equiv("run", *CASES, *ON, "--changed", "main", *files, ends=1)
    assert "dsa_index, all 2 cases: equiv/cute/convert.py" in why
    assert "kda, no case: none of the 1 changed file(s) can affect it" in why
    assert "MISMATCH dsa_index::fp8-b16-amax-edges" in said
    assert "key_scale: MISMATCH (candidate)" in said
    assert "each 0.5 times the expected value" in said
    assert "kda" not in said
    suite = ET.parse(clone.home / "equiv.xml").getroot()
    failed = [case.get("name", "") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert any("fp8-b16-amax-edges" in name for name in failed)
    summary = (clone.home / "summary.md").read_text()
    assert "equiv run dsa_index::fp8-b16-amax-edges --device emulated:sm_90a" in summary

    said, _ = clone.equiv("explain", CASES[0], *ON, ends=0)
    assert "AS IF dsa.R12 (q: scale, the power of two >= s) were rounded down" in said

    clone.git("revert", "--no-edit", "HEAD")
    said, _ = clone.equiv("run", CASES[0], *ON, ends=0)
    assert "1 case(s): 1 IDENTICAL" in said
