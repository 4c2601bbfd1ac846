"""Prints digests of what the C side of this process computes, as JSON: kernels, special functions, matrix products."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from matrix_cases import tiles
from numerics_twin import samples
from ptx_run import each

from equiv.bench import MATRICES, micro
from equiv.rounding import matrix_native, sweeps
from equiv.rounding.matrix_table import variant

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

SCALARS = (
    "ex2.approx.ftz.f32", "ex2.approx.f32", "rcp.approx.ftz.f32", "rsqrt.approx.ftz.f32", "sqrt.approx.f32",
    "lg2.approx.f32", "tanh.approx.f32", "rcp.rn.f32", "sqrt.rz.f32", "cvt.rna.tf32.f32",
)  # fmt: skip
PAIRS = ("add.rn.f32", "mul.rn.ftz.f32", "div.rn.f32", "div.full.f32", "min.f32", "add.rm.f32")
BINADES = (0, 127)


def digest(*arrays: npt.NDArray[Any]) -> str:
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def computed() -> Iterator[tuple[str, str]]:
    a, b, c = (samples(seed, 1 << 12) for seed in (1, 2, 3))
    b, c = np.roll(b, 17), np.roll(c, 1234)
    for opcode in SCALARS:
        yield opcode, digest(each(f"{opcode} %r4, %r1;", {"%r1": a}, {"%r4": 32})["%r4"])
    for opcode in PAIRS:
        yield opcode, digest(each(f"{opcode} %f4, %f1, %f2;", {"%f1": a, "%f2": b}, {"%f4": 32})["%f4"])
    fused = each("fma.rn.ftz.f32 %f4, %f1, %f2, %f3;", {"%f1": a, "%f2": b, "%f3": c}, {"%f4": 32})
    yield "fma.rn.ftz.f32", digest(fused["%f4"])
    narrow = each("cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2;", {"%f1": a, "%f2": b}, {"%rs1": 16})
    yield "cvt.rn.satfinite.e4m3x2.f32", digest(narrow["%rs1"])
    for products in (True, False):
        stats, out = micro.launch(products=products)
        yield f"micro {products}", f"{digest(out.view(np.uint32))} {stats.warp_instructions}"
    for instruction in sweeps.TWINS:
        yield f"sweep {instruction}", str(sweeps.differing(instruction, BINADES))
    for name, arch in MATRICES:
        model = variant(name, arch)
        found = []
        for tile in tiles(model, (9, 21), 9, 7):
            operands = (tile.a, tile.b, tile.c)
            found.append(matrix_native.fused_dot(model, *operands, scale_a=tile.scale_a, scale_b=tile.scale_b))
        yield name, digest(*found)


if __name__ == "__main__":
    print(json.dumps(dict(computed())))
