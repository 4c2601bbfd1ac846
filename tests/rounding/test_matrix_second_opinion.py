"""The models against MMA-Sim, written independently by others and checked by them on GPUs, Blackwell's included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from matrix_cases import KINDS, tiles
from mmasim import nv_ptx

from equiv.rounding.matrix_native import fused_dot
from equiv.rounding.matrix_table import modelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from equiv.rounding.formats import Format
    from equiv.rounding.matrix_table import MatrixVariant

CASES = [model for model in modelled() if not model.row.unpacked]
"""All but 8-bit mma.sync, which is not an instruction of these GPUs and which MMA-Sim does not know."""

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32,
          "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "ue8m0": torch.float8_e8m0fnu,
          "ue4m3": torch.float8_e4m3fn}  # fmt: skip


def opinion(model: MatrixVariant) -> Any:
    """MMA-Sim's object for the instruction."""
    family, types = model.row.family, f"{model.result.format.name}.{model.a.name}.{model.b.name}"
    if family == "mma.sync":
        arch = {"sm_90": "Hopper", "sm_100": "Blackwell"}[model.architecture]
        return nv_ptx.MMA(arch, f"m16n8k{model.k}.{types}.{model.result.format.name}")
    if family == "wgmma":
        return nv_ptx.WGMMA("Hopper", f"m64n8k{model.k}.{types}")
    shape = f"n8k{model.k}.kind::{model.row.kind}"
    if model.scales is None:
        return nv_ptx.TCGen05MMA("Blackwell", f"m64{shape}.{types}")
    scales = f"block{model.scales.block}.{types}.{model.scales.format.name}"
    return nv_ptx.TCGen05MMABlockScale("Blackwell", f"m128{shape}.{scales}")


def tensor(codes: Any, fmt: Format) -> torch.Tensor:
    """Codes as MMA-Sim takes them: six-bit ones in the low bits of a byte, four-bit ones two above."""
    if fmt.name not in DTYPES:
        return torch.from_numpy(np.ascontiguousarray(codes << (2 if fmt.width == 4 else 0)))
    signed = np.ascontiguousarray(codes).view(f"i{codes.itemsize}").copy()
    return torch.from_numpy(signed).view(DTYPES[fmt.name])


def packed(codes: Any, axis: int) -> torch.Tensor:
    """Four-bit codes two a byte, the first in the high half."""
    first, second = np.take(codes, range(0, 64, 2), axis), np.take(codes, range(1, 64, 2), axis)
    return torch.from_numpy(np.ascontiguousarray(first << 4 | second))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", CASES, ids=lambda model: f"{model.instruction} {model.architecture}")
def test_mma_sim_computes_the_same_bits(model: MatrixVariant) -> None:
    simulated = opinion(model)
    for tile in tiles(model, (8, 6), len(KINDS), 11):
        ours = fused_dot(model, tile.a, tile.b, tile.c, scale_a=tile.scale_a, scale_b=tile.scale_b)
        if model.row.group > 1:
            operands = [packed(tile.a, 1), packed(tile.b, 0)]
        else:
            operands = [tensor(tile.a, model.a), tensor(tile.b, model.b)]
        operands.append(tensor(tile.c, model.result.format))
        if model.scales is not None:
            operands += [tensor(codes, model.scales.format) for codes in (tile.scale_a, tile.scale_b)]
        theirs = simulated(*operands).contiguous()
        bits = theirs.view(torch.int32 if ours.itemsize == 4 else torch.int16).numpy().view(ours.dtype)
        assert np.array_equal(ours, bits), (tile.kind, int((ours != bits).sum()))


def test_every_kind_of_instruction_is_compared() -> None:
    assert len(CASES) == 143 - 32
    assert {model.row.kind for model in CASES} == {"", "f16", "tf32", "f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4"}
