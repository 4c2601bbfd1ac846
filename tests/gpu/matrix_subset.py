"""Cuts the test data out of what matrix_probe.py measured: the rows and columns about which wrong models err most.

    python tests/gpu/matrix_subset.py FOLDER

Compares every measured output with the model first and stops at the first set that differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402
from matrix_cases import KINDS  # noqa: E402
from matrix_vectors import DATA, Array, Measured, mutants, save  # noqa: E402

from equiv.rounding.matrix_native import fused_dot  # noqa: E402
from equiv.rounding.matrix_table import variant  # noqa: E402


def size(each: Measured) -> tuple[int, int]:
    """Rows and columns kept of a tile."""
    if each.mode != "plain":
        return 4, 4
    if each.model.row.unpacked:
        return 4, 3
    return (6, 6) if each.model.row.family == "mma.sync" else (5, 5)


def cut(each: Measured) -> Measured:
    """One tile a kind, and of the last two kinds one for each wrong model; of wgmma's other modes three tiles."""
    wrong = [each.computed(fused_dot, mutant) != each.d for mutant in mutants(each.model).values()]
    together = np.sum(wrong, axis=0)
    tiles = np.arange(len(each.d)) % len(KINDS)
    wanted = [(kind, together) for kind in (range(len(KINDS) - 2) if each.mode == "plain" else range(2, len(KINDS), 4))]
    if each.mode == "plain":
        wanted += [
            (kind, one) for kind in range(len(KINDS) - 2, len(KINDS)) for one in wrong if one[tiles == kind].any()
        ]
    m, n = size(each)
    kept: list[tuple[Array, ...]] = []
    for kind, score in wanted:
        tile = max(np.flatnonzero(tiles == kind), key=lambda i: int((score[i] > 0).sum()))
        rows = np.sort(np.argsort(-score[tile].sum(axis=1).astype(int), kind="stable")[:m])
        columns = np.sort(np.argsort(-score[tile][rows].sum(axis=0).astype(int), kind="stable")[:n])
        picked = np.ix_(rows, columns)
        kept.append((each.a[tile][rows], each.b[tile][:, columns], each.c[tile][picked], each.d[tile][picked]))
    return Measured(each.model, each.mode, *(np.stack(arrays) for arrays in zip(*kept, strict=True)))


def main(folder: Path) -> None:
    """Writes equiv/rounding/data/h200_matrix.npz."""
    sets, outputs = [], 0
    for path in (folder / f"{name}.npz" for name in ("mma", "mma8", "wgmma", "wgmma8")):
        with np.load(path) as file:
            for key in sorted({key[:-2] for key in file.files}):
                name, mode = key.split()
                each = Measured(variant(name, "sm_90a"), mode, *(file[f"{key}|{x}"] for x in "abcd"))
                different = int((each.computed(fused_dot) != each.d).sum())
                if different:
                    raise SystemExit(f"{each}: {different} of {each.d.size} outputs differ from the model")
                outputs += each.d.size
                sets.append(cut(each))
    save(DATA / "h200_matrix.npz", sets)
    print(f"{outputs} outputs equal the model; {sum(each.d.size for each in sets)} kept in {len(sets)} sets")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
