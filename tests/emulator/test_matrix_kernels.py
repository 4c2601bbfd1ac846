"""Triton's own matrix products, run on both architectures, equal the declared chain of instructions in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sample_dot
import torch

import equiv
from equiv.emulator.isa.models import mma_name, tensor_name, wgmma_name
from equiv.rounding.matrix import variant
from equiv.rounding.matrix_native import fused_dot

Array = npt.NDArray[Any]
TYPES = {
    "bf16": (torch.bfloat16, np.uint16, "16"),
    "f16": (torch.float16, np.uint16, "16"),
    "tf32": (torch.float32, np.uint32, "8"),
    "e4m3": (torch.float8_e4m3fn, np.uint8, "32"),
    "e5m2": (torch.float8_e5m2, np.uint8, "32"),
}
N, K = 64, 128


def _bits(tensor: torch.Tensor, dtype: npt.DTypeLike) -> Array:
    return np.asarray(tensor.contiguous().view(torch.uint8).numpy().view(dtype))


def _random(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Normal values spread over seven binades."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-3, 4, shape, generator=generator))


def _instruction(arch: str, name: str, result: str, rows: int) -> str:
    """What `tl.dot` becomes with four warps: rows from 64 on are for the units that read shared memory."""
    if rows == 16:
        eight = TYPES[name][1] is np.uint8  # operands become f16 first
        return mma_name("8" if name == "tf32" else "16", result, *(["f16"] * 2 if eight else [name] * 2))
    if arch == "sm_90a":
        return wgmma_name(TYPES[name][2], result, name, name)
    kind = {"bf16": "f16", "f16": "f16", "tf32": "tf32"}.get(name, "f8f6f4")
    return tensor_name(kind, result, name, name)


def _pairs_first(x: Array) -> Array:
    """A's columns as Triton feeds converted 8-bit operands: of each 32 k those with k % 4 < 2 first."""
    k = np.arange(x.shape[1])
    return x[:, np.lexsort((k, k % 4 // 2, k // 32))]


PLAIN, TURNED, DOUBLED = (False, False), (True, False), (False, True)
CASES = [
    (name, result, rows, *form)
    for name, result in [*((name, "f32") for name in TYPES), ("f16", "f16")]
    for rows, form in ((16, PLAIN), (64, PLAIN), (64, TURNED), (64, DOUBLED), (128, PLAIN))
    if form is not DOUBLED or TYPES[name][1] is not np.uint8  # no products of 8-bit registers with a number
]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("name", "result", "rows", "turned", "doubled"), CASES)
def test_a_product_is_the_chain_of_its_instructions_in_the_order_of_k(
    arch: str, name: str, result: str, rows: int, *, turned: bool, doubled: bool
) -> None:
    dtype, bits, _ = TYPES[name]
    a, b = _random((rows, K), 1).to(dtype), _random((K, N), 2).to(dtype)
    c = torch.empty(rows, N, dtype=torch.float32 if result == "f32" else torch.float16)
    given = b.T.contiguous() if turned else b
    with equiv.device(f"emulated:{arch}").active():
        sample_dot.dot[(1,)](a, given, c, rows, N, K, 64, turned, doubled, num_warps=4)
    a = a * 2 if doubled else a
    if rows == 16 and bits is np.uint8:
        left, right = (_pairs_first(_bits(x.to(torch.float16), np.uint16)) for x in (a, b.T))
    else:
        left, right = _bits(a, bits), _bits(b.T, bits)
    want = fused_dot(variant(_instruction(arch, name, result, rows), arch), left, right.T)
    np.testing.assert_array_equal(_bits(c, want.dtype), want)


SCALED = [
    ("mxf8f6f4", "e4m3", "e4m3", 32, "ue8m0"), ("mxf8f6f4", "e5m2", "e4m3", 32, "ue8m0"),
    ("mxf8f6f4", "e4m3", "e2m1", 32, "ue8m0"), ("mxf8f6f4", "e2m1", "e5m2", 32, "ue8m0"),
    ("mxf4", "e2m1", "e2m1", 32, "ue8m0"), ("mxf4nvf4", "e2m1", "e2m1", 16, "ue4m3"),
]  # fmt: skip


def _codes(name: str, shape: tuple[int, int], seed: int) -> torch.Tensor:
    if name == "e2m1":
        return torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return _random(shape, seed).to(TYPES[name][0]).view(torch.uint8)


def _operand(codes: torch.Tensor, name: str) -> torch.Tensor:
    return codes[:, 0::2] | codes[:, 1::2] << 4 if name == "e2m1" else codes.view(TYPES[name][0])


@pytest.mark.parametrize(("kind", "first", "second", "block", "scale"), SCALED)
@pytest.mark.parametrize(("columns", "depth"), [(64, 256), (128, 128), (256, 128)])
def test_a_scaled_product_on_sm_100(
    *, kind: str, first: str, second: str, block: int, scale: str, columns: int, depth: int
) -> None:
    a, b = _codes(first, (128, depth), 3), _codes(second, (columns, depth), 4)
    low, high = (118, 136) if scale == "ue8m0" else (1, 0x7E)
    generator = torch.Generator().manual_seed(5)
    sa, sb = (
        torch.randint(low, high, (rows, depth // block), generator=generator, dtype=torch.uint8)
        for rows in (128, columns)
    )
    c = torch.empty(128, columns)
    scales = [x if scale == "ue8m0" else x.view(torch.float8_e4m3fn) for x in (sa, sb)]
    packed = [2 if name == "e2m1" else 1 for name in (first, second)]
    with equiv.device("emulated:sm_100a").active():
        sample_dot.dot_scaled[(1,)](
            _operand(a, first), scales[0], _operand(b, second), scales[1], c, 128, columns, depth, first, second, block,
            *packed, num_warps=4,
        )  # fmt: skip
    model = variant(tensor_name(kind, "f32", first, second, scale=scale, block=block), "sm_100a")
    want = fused_dot(model, a.numpy(), b.numpy().T, scale_a=sa.numpy(), scale_b=sb.numpy().T)
    np.testing.assert_array_equal(_bits(c, np.uint32), want)
