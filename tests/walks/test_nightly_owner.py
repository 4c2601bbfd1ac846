"""The owner of the nightly run: shards, a machine that dies, a regression that is dated, one page to look at."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from clone import Clone

ON = ("--device", "emulated:sm_90a", "-j", "1")
CASES = ("dsa_index::fp8-b1", "dsa_index::fp8-b16-amax-edges", "kda::wide-b3-t1")
CEIL = "((s.bitcast(Uint32) + 0x7FFFFF) & 0x7F800000)"


def dated(journal: Path, day: int) -> None:
    """Moves a journal to another night: what the walk does in a minute takes its owner three days."""
    first, _, rest = journal.read_text().partition("\n")
    head = json.loads(first)
    head["started"] = f"2026-11-0{day}T02:00:00+00:00"
    journal.write_text(json.dumps(head) + "\n" + rest)


def wait_for_a_verdict(journal: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not (journal.exists() and '"kind":"verdict"' in journal.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def test_three_nights_with_a_killed_machine_and_a_regression(clone: Clone) -> None:
    nights = clone.home / "nights"
    nights.mkdir()

    for part in (1, 2):
        name = f"nights/1-{part}.jsonl"
        clone.equiv("run", *CASES, *ON, "--shard", f"{part}/2", "--journal", name, ends=0)
        dated(clone.home / name, 1)
    said, _ = clone.equiv("report", "nights", ends=0)
    assert "3 case(s)" in said
    (nights / "1-2.jsonl").rename(clone.home / "kept.jsonl")
    said, _ = clone.equiv("report", "nights", ends=1)
    assert "shard 2/2 of the newest run is missing" in said
    (clone.home / "kept.jsonl").rename(nights / "1-2.jsonl")

    second = nights / "2.jsonl"
    machine = clone.start("run", *CASES, *ON, "--journal", str(second))
    try:
        wait_for_a_verdict(second, machine)
    finally:
        machine.kill()
        machine.communicate()
    said, _ = clone.equiv("report", str(second), ends=1)
    assert "NOT_RUN kda::wide-b3-t1" in said
    said, _ = clone.equiv("run", "--resume", str(second), ends=0)
    assert "0 NOT_RUN" in said
    dated(second, 2)

    clone.edit("equiv/cute/convert.py", CEIL, "(s.bitcast(Uint32) & 0x7F800000)")
    clone.equiv("run", *CASES, *ON, "--journal", "nights/3.jsonl", ends=1)
    dated(nights / "3.jsonl", 3)
    said, _ = clone.equiv("report", "nights", "--html", "nights.html", ends=1)
    assert "MISMATCH dsa_index::fp8-b16-amax-edges  emulated:sm_90a  first bad 2026-11-03" in said
    assert "last good 2026-11-02" in said
    page = (clone.home / "nights.html").read_text()
    assert "<h2>Since when</h2>" in page
    assert "2026-11-03T02:00:00+00:00: MISMATCH" in page
    assert not [word for word in ("<script", "http://", "https://") if word in page]
