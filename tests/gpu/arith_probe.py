"""Compares every scalar instruction of the table with a Hopper GPU, bit for bit.

    python tests/gpu/arith_probe.py build FOLDER      (anywhere: needs Triton's ptxas)
    python tests/gpu/arith_device.py FOLDER FOLDER    (on the GPU: needs numpy and the driver)
    python tests/gpu/arith_probe.py compare FOLDER    (anywhere: runs the same in the emulator)

`compare` prints a line for each instruction name: opcodes, inputs, inputs whose results differ; and each difference.
The outcome of the last run is kept in `arith_probe.txt`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import arith_cases  # noqa: E402
import numpy as np  # noqa: E402
import ptx_run  # noqa: E402

from equiv.emulator import backend, toolchain  # noqa: E402
from equiv.emulator.decode import decode  # noqa: E402
from equiv.emulator.ptx_parser import parse  # noqa: E402

PER_MODULE = 400


def build(folder: Path) -> None:
    """The kernels as cubins, their inputs, and the plan."""
    cases = arith_cases.all_cases()
    inputs: dict[str, Any] = {}
    plan = []
    for start in range(0, len(cases), PER_MODULE):
        part = cases[start : start + PER_MODULE]
        image = f"module-{start // PER_MODULE}.cubin"
        (folder / "module.ptx").write_text(arith_cases.module(part))
        assembler = toolchain.ptxas("ptxas-blackwell").path
        subprocess.run([assembler, "-arch", "sm_90a", folder / "module.ptx", "-o", folder / image], check=True)
        for number, case in enumerate(part):
            names = []
            for place, (_, kind) in enumerate(case.sources):
                names.append(f"{kind}-{place}-{case.count}")
                if names[-1] not in inputs:
                    inputs[names[-1]] = arith_cases.values(kind, place, case.count)
            plan.append(
                {
                    "module": image,
                    "kernel": f"k{number}",
                    "inputs": names,
                    "results": [max(bits, 8) for _, bits in case.results],
                    "count": case.count,
                    "body": case.body,
                }
            )
    (folder / "module.ptx").unlink()
    np.savez_compressed(folder / "inputs.npz", **inputs)
    (folder / "plan.json").write_text(json.dumps(plan))
    print(f"{len(cases)} kernels, {sum(case.count for case in cases)} inputs")


def _compile_together(cases: tuple[arith_cases.Case, ...]) -> None:
    """All handlers at once; each launch would else compile its own."""
    shapes = {}
    for case in cases:
        module = parse(arith_cases.module([case]))
        for one in decode(module, module.kernels["k0"], "sm_90a", {}).instructions:
            if one.shape is not None:
                shapes[one.shape.name] = one.shape
    backend.handlers(shapes.values())


def compare(folder: Path) -> int:
    """Differences between the GPU's results and the emulator's; returns how many inputs differ.

    Raises:
        SystemExit: the results are of other kernels than those that the table gives now.
    """
    cases = arith_cases.all_cases()
    if [one["body"] for one in json.loads((folder / "plan.json").read_text())] != [case.body for case in cases]:
        raise SystemExit("the table has changed since the results were made: build again")
    results: dict[str, Any] = {}
    for path in sorted(folder.glob("results-*.npz")):
        with np.load(path) as stored:
            results.update({name: stored[name] for name in stored.files})
    _compile_together(cases)
    opcodes, inputs, differing = Counter[str](), Counter[str](), Counter[str]()
    for number, case in enumerate(cases):
        given = case.inputs()
        got = ptx_run.each(case.body, given, dict(case.results), "sm_90a")
        wrong = np.zeros(case.count, bool)
        for index, (register, _) in enumerate(case.results):
            wrong |= results[f"{number}/{index}"] != got[register]
        base = case.name.partition(".")[0]
        opcodes[base] += 1
        inputs[base] += case.count
        differing[base] += int(wrong.sum())
        for at in np.flatnonzero(wrong)[:3]:
            operands = ", ".join(f"{register} {int(array[at]):x}" for register, array in given.items())
            pairs = [
                f"{register}: GPU {int(results[f'{number}/{index}'][at]):x}, emulator {int(got[register][at]):x}"
                for index, (register, _) in enumerate(case.results)
            ]
            print(f"{case.body} {operands}: {'; '.join(pairs)}")
    for base in sorted(opcodes):
        print(f"{base:10} {opcodes[base]:5} opcodes {inputs[base]:9} inputs {differing[base]:6} differ")
    total = sum(differing.values())
    print(f"{'all':10} {sum(opcodes.values()):5} opcodes {sum(inputs.values()):9} inputs {total:6} differ")
    return total


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]))
    else:
        sys.exit(compare(Path(sys.argv[2])) > 0)
