"""Sweeps scalar instructions on a GPU against the C twins: builds sweep_special.cu with nvcc, runs it, and sums up.

    python tests/gpu/sweep_special.py [--only PREFIX] [--random N] [--store]

One-operand instructions run over all 2^32 inputs, the others over every tuple of 84 edge values, then random ones: N
in all (2^28; divisions four times as many). Prints a line an instruction and exits with 1 on any mismatch. The
checksums of the GPU's own results are compared with the stored ones of equiv.rounding.sweeps; `--store` replaces those.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import equiv.emulator
from equiv.rounding import mufu, special, sweeps

HERE = Path(__file__).parent
INCLUDES = (special.SOURCES[0].parent, Path(equiv.emulator.__file__).parent / "csrc")
HOST_FLAGS = (
    "-fopenmp,-O3,-march=native,-mprefer-vector-width=512,-ffp-contract=off,-fno-math-errno,-fno-trapping-math,-w"
)


def build(folder: Path) -> Path:
    """Compile the sweep for the GPU that is there."""
    program = folder / "sweep_special"
    includes = [f"-I{path}" for path in INCLUDES]
    source = str(HERE / "sweep_special.cu")
    command = ["nvcc", "-arch=native", "-O3", "-std=c++17", *includes, "-Xcompiler", HOST_FLAGS, "-o", str(program)]
    subprocess.run([*command, source], check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="instructions whose id starts with this; !x: all others")
    parser.add_argument("--random", type=int, default=1 << 28)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    wrong, sums = 0, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = subprocess.run(
            [build(folder), folder, options.only, str(options.random)], check=True, stdout=subprocess.PIPE, text=True
        )
        for line in done.stdout.splitlines():
            row = json.loads(line)
            sums[row["ptx"]] = np.fromfile(folder / f"{row['id']}.sums", dtype=np.uint64)
            digest = hashlib.sha256(sums[row["ptx"]].tobytes()).hexdigest()[:16]
            print(f"{row['ptx']:32} {row['inputs']:>11} inputs {row['mismatches']:>9} mismatches, sums {digest}")
            for first in row["first"]:
                print("    ", *first)
            wrong += row["mismatches"] != 0
    for instruction in sweeps.TWINS.keys() & sums.keys():
        if not np.array_equal(sums[instruction], sweeps.measured()[instruction]):
            print(f"{instruction}: this GPU differs from the stored checksums")
            wrong += not options.store
    if options.store:
        found: dict[str, Any] = {name: sums[name] for name in sweeps.TWINS}
        np.savez_compressed(mufu.TABLES / "h200_sweep.npz", **found)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
