"""Measures matrix instructions on a Hopper GPU: inputs and outputs of thousands of sums, one .npz file a family.

    python tests/gpu/matrix_probe.py FOLDER

Needs nvcc, an sm_90 GPU and the repository's root as working directory. The subset kept as test data is cut from these
files by `matrix_subset.py`. Arrays of a file, bit patterns as stored: `<name>|a` [T, M, K], `|b` [T, K, N], `|c` and
`|d` [T, M, N], where `<name>` is the instruction, a space, and the mode: `plain`, or for wgmma also `-a`, `-b`, `-ab`
(imm-scale -1), `d0` (scale-d 0: C is not read), `chain` (two instructions).
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from matrix_cases import KINDS, tiles  # noqa: E402

from equiv.rounding.matrix_table import MatrixVariant, variant  # noqa: E402

Array = npt.NDArray[Any]
FLAGS = ("-gencode", "arch=compute_90a,code=sm_90a", "-O1", "-shared", "-Xcompiler", "-fPIC")
MODES = {"plain": (1, 1, 1, 1), "-a": (1, -1, 1, 1), "-b": (1, 1, -1, 1), "-ab": (1, -1, -1, 1), "d0": (1, 1, 1, 0),
         "chain": (2, 1, 1, 1)}  # fmt: skip
"""Of a wgmma mode: instructions in a row, imm-scale-a, imm-scale-b, scale-d."""

MMA = [
    f"mma.sync.aligned.m16n8k{k}.row.col.{d}.{a}.{b}.{d}"
    for k, d, a, b in (
        (16, "f32", "f16", "f16"), (16, "f16", "f16", "f16"), (8, "f32", "f16", "f16"), (8, "f16", "f16", "f16"),
        (16, "f32", "bf16", "bf16"), (8, "f32", "bf16", "bf16"), (8, "f32", "tf32", "tf32"), (4, "f32", "tf32", "tf32"),
        *((k, d, a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for k in (32, 16) for d in ("f32", "f16")))
]  # fmt: skip
WGMMA = [
    f"wgmma.mma_async.sync.aligned.m64n16k{k}.{d}.{a}.{b}"
    for k, d, a, b in (
        (16, "f32", "f16", "f16"), (16, "f16", "f16", "f16"), (16, "f32", "bf16", "bf16"), (8, "f32", "tf32", "tf32"),
        *((32, d, a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f32", "f16")))
]  # fmt: skip


class Probe:
    """The compiled probe."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.device_copy.restype = ctypes.c_void_p
        self.library.error_text.restype = ctypes.c_char_p

    def __call__(self, model: MatrixVariant, a: Array, b: Array, c: Array, *mode: int) -> Array:
        """D of every tile."""
        family = model.instruction.split(".")[0]
        types = f"{model.result.format.name}_{model.a.name}_{model.b.name}"
        kernel = getattr(self.library, f"{family}_k{model.k}_{types}")
        held = [self._copy(x) for x in (a, b, c)]
        out = self._copy(None, c.nbytes)
        self._check(kernel(*held, out, a.shape[0], *mode))
        d = np.empty_like(c)
        self._check(self.library.host_copy(ctypes.c_void_p(d.ctypes.data), out, ctypes.c_size_t(d.nbytes)))
        for memory in (*held, out):
            self._check(self.library.device_free(memory))
        return d

    def _copy(self, array: Array | None, size: int = 0) -> ctypes.c_void_p:
        source = None if array is None else ctypes.c_void_p(array.ctypes.data)
        memory = self.library.device_copy(source, ctypes.c_size_t(size if array is None else array.nbytes))
        if memory is None:
            raise RuntimeError("cudaMalloc failed")
        return ctypes.c_void_p(memory)

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(self.library.error_text(code).decode())


def measure(probe: Probe, name: str, mode: str, seed: int) -> list[Array]:
    """A, B, C and D of tiles of every kind."""
    model = variant(name, "sm_90a")
    hopper = model.row.family == "wgmma"
    count = len(KINDS) * (36 if not hopper else 6 if mode == "plain" else 1)
    steps, *rest = MODES[mode]
    made = tiles(model, (64, 16) if hopper else (16, 8), count, seed, steps)
    a, b, c = (np.ascontiguousarray(np.stack([getattr(tile, x) for tile in made])) for x in "abc")
    return [a, b, c, probe(model, a, b, c, *((steps, *rest) if hopper else ()))]


def main(folder: Path) -> None:
    """Builds the probe, runs it and writes mma.npz, mma8.npz, wgmma.npz and wgmma8.npz into the folder."""
    library = folder / "matrix_probe.so"
    subprocess.run(["nvcc", *FLAGS, "-o", library, Path(__file__).with_suffix(".cu")], check=True, capture_output=True)
    probe = Probe(library)
    files: dict[str, dict[str, Array]] = {name: {} for name in ("mma", "mma8", "wgmma", "wgmma8")}
    for seed, name in enumerate((*MMA, *WGMMA)):
        file = name.split(".")[0] + ("8" if ".e" in name else "")
        for mode in MODES if file.startswith("wgmma") else ("plain",):
            measured = measure(probe, name, mode, seed)
            files[file] |= {f"{name} {mode}|{x}": array for x, array in zip("abcd", measured, strict=True)}
    library.unlink()
    for name, arrays in files.items():
        np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **arrays)
        print(
            name, len(arrays) // 4, "sets,", sum(x.size for key, x in arrays.items() if key.endswith("|d")), "outputs"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
