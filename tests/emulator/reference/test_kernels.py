"""Triton's kernels with matrix products in both engines: the same bytes after the same number of instructions."""

from __future__ import annotations

import pytest
import sample_dot
import torch
from both_engines import every_launch

import equiv

N, K = 16, 64
TYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def _random(shape: tuple[int, int], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-3, 4, shape, generator=generator))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("name", "rows", "turned"),
    [("bf16", 16, False), ("bf16", 64, False), ("f16", 64, True), ("tf32", 64, False), ("e4m3", 64, True),
     ("e5m2", 16, False), ("bf16", 128, True)],
)  # fmt: skip
def test_a_product(arch: str, name: str, rows: int, *, turned: bool) -> None:
    a, b = _random((rows, K), 1).to(TYPES[name]), _random((K, N), 2).to(TYPES[name])
    c = torch.empty(rows, N)
    with every_launch() as counts, equiv.device(f"emulated:{arch}").active():
        sample_dot.dot[(1,)](a, b.T.contiguous() if turned else b, c, rows, N, K, 32, turned, False, num_warps=4)
    assert len(counts) == 1
    assert counts[0] > 100


@pytest.mark.parametrize(
    ("codes", "block", "scale"), [("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0"), ("e2m1", 16, "ue4m3")]
)
def test_a_product_with_block_scales(codes: str, block: int, scale: str) -> None:
    generator = torch.Generator().manual_seed(3)
    each = 2 if codes == "e2m1" else 1
    a, b = (torch.randint(0, 120, (rows, 128 // each), generator=generator, dtype=torch.uint8) for rows in (128, N))
    low, high = (118, 136) if scale == "ue8m0" else (1, 0x7E)
    scales = [
        torch.randint(low, high, (rows, 128 // block), generator=generator, dtype=torch.uint8) for rows in (128, N)
    ]
    if codes != "e2m1":
        a, b = a.view(TYPES[codes]), b.view(TYPES[codes])
    if scale == "ue4m3":
        scales = [one.view(torch.float8_e4m3fn) for one in scales]
    c = torch.empty(128, N)
    with every_launch() as counts, equiv.device("emulated:sm_100a").active():
        sample_dot.dot_scaled[(1,)](
            a, scales[0], b, scales[1], c, 128, N, 128, codes, codes, block, each, each, num_warps=4
        )
    assert len(counts) == 1
    assert counts[0] > 100
