"""The H200 corpus in two commands: record launches in the emulator here, repeat them on a GPU, compare every byte.

    python tests/gpu/corpus.py record FOLDER            # no GPU needed, emulated:sm_90a
    python3 tests/gpu/corpus.py replay FOLDER OUT       # on the GPU machine: NumPy and cuda-bindings are enough

What is in it: the smoke suites of the pairs (stock Triton kernels and CuTe DSL kernels), Triton's matrix products, and
the emulator's tests of scalar, memory, warp, matrix, asynchronous and atomic instructions as kernels of their own.
`replay` prints for each part kernels, launches, bytes and bytes that differ, and exits with 1 if any does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests/gpu"
ISA = ROOT / "tests/emulator/isa"
PAIRS = ("dsa_index", "kda::*-b3-t1", "kda::ws-b4-t3-record")
"""Launches that can be moved to other addresses; `dsa_front` keeps an address in device memory (a tensor map)."""
TESTS = ("atomics", "bits", "copies", "convert", "double", "floating", "integer", "mbarrier", "memory", "tensor_copies",
         "warp")  # fmt: skip
UNDEFINED = "late or poison or nothing_can_satisfy or before_its_store_has_read_it"
"""Tests whose kernels do on purpose what leaves their results to chance, so that a GPU may give others."""
ARCH = "sm_90a"


def record(folder: Path) -> int:
    """Writes the three parts below `folder`; 0 if all of them came to their end."""
    python = sys.executable
    commands = {
        "pairs": [python, "-m", "equiv.cli", "run", *PAIRS, "--suite", "smoke", "--device", f"emulated:{ARCH}",
                  "--record", str(folder / "pairs"), "--journal", str(folder / "pairs.jsonl")],
        "matrix": [python, str(GPU / "record_matrix.py"), str(folder / "matrix")],
        "instructions": [python, str(GPU / "launch_recorder.py"), str(folder / "instructions"),
                         *(str(ISA / f"test_{name}.py") for name in TESTS), "-k", f"not ({UNDEFINED})"],
    }  # fmt: skip
    folder.mkdir(parents=True)
    codes = {name: subprocess.run(command, check=False, cwd=ROOT).returncode for name, command in commands.items()}
    print(", ".join(f"{name}: exit code {code}" for name, code in codes.items()))
    return int(any(codes.values()))


def replay(folder: Path, out: Path) -> int:
    """Repeats all launches on `cuda:0`; 1 if one differs, fails or is missing."""
    out.mkdir(parents=True, exist_ok=True)
    lines, wrong = [], 0
    sys.path.insert(0, str(ROOT))
    from equiv.emulator.replay import replay_directory

    for part in ("pairs", "matrix"):
        report = replay_directory(folder / part, "cuda:0")
        images = len(list((folder / part).rglob("*.cubin")))
        lines.append(
            f"{part}: {images} kernels, {report.launches_equal} of {report.launches} launches equal, "
            f"{report.bytes_different:,} of {report.bytes:,} bytes differ, {len(report.skipped)} launches skipped"
        )
        wrong += report.exit_code(strict=True)
        (out / f"{part}.txt").write_text(str(report))
    single = folder / "instructions"
    subprocess.run([sys.executable, str(GPU / "launch_device.py"), str(single), str(out)], check=True)
    done = [json.loads(line) for line in (out / "lines").read_text().splitlines()]
    images = len({path.read_bytes() for path in single.glob("*.cubin")})
    failed = [line for line in done if line["different"] or "error" in line]
    lines.append(
        f"instructions: {images} kernels, {len(done) - len(failed)} of {len(done)} launches equal, "
        f"{sum(line['different'] for line in done):,} of {sum(line['bytes'] for line in done):,} bytes differ"
    )
    wrong += bool(failed)
    (out / "corpus.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(bool(wrong))


if __name__ == "__main__":
    task, *given = sys.argv[1:]
    sys.exit(record(Path(given[0])) if task == "record" else replay(Path(given[0]), Path(given[1])))
