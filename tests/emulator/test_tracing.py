"""Matrix products of Triton kernels: which k each matrix instruction takes; the traced order gives the bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from dot_kernels import dot_kernel, split_kernel

from equiv.emulator.reductions import Finder
from equiv.emulator.tracing import TracingDevice
from equiv.rounding.orders import Order, butterfly, matrix_chain, split_k

if TYPE_CHECKING:
    from collections.abc import Callable

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
M = N = 16


def _traced(arch: str, k: int, launch: Callable[..., Any]) -> tuple[Order, np.ndarray]:
    """The one order of all outputs, and the differences between them and that order executed, in bits."""
    device = TracingDevice(arch)
    torch.manual_seed(1)
    a, b, c = torch.randn(M, k).bfloat16(), torch.randn(k, N).bfloat16(), torch.zeros(M, N)
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        device.register(name, tensor)
    with device.active():
        launch(a, b, c)
    found = Finder(device.tracer.graph).all(device.tracer.outputs)
    assert len(found) == M * N
    assert {(one.form, len(one.terms), one.buffers, len(one.roots)) for one in found} == {
        ("products", k, ("a", "b"), 1)
    }
    assert len({one.order.digest for one in found}) == 1
    order = found[0].order
    rows = np.repeat(a.float().numpy().view(np.uint32), N, axis=0)
    columns = np.tile(b.float().numpy().view(np.uint32).T, (M, 1))
    return order, order.dot(rows, columns)[:, 0] ^ c.numpy().view(np.uint32).reshape(-1)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_dot_is_a_chain_of_matrix_instructions_of_sixteen_ascending_k(arch: str) -> None:
    order, differences = _traced(arch, 64, lambda a, b, c: dot_kernel[(1,)](a, b, c, M, N, 64, 32, num_warps=1))
    assert order.digest == Order.of(64, matrix_chain(range(64), 16, f"{MMA} {arch}")).digest
    assert not differences.any()
    assert str(order).splitlines()[2] == "  2: 1 mma: mma({16..31}, {0..15})"


def test_slices_of_k_on_four_warps_are_added_as_a_butterfly() -> None:
    order, differences = _traced("sm_90a", 128, lambda a, b, c: split_kernel[(1,)](a, b, c, 4, M, N, 32, num_warps=4))
    slices = [matrix_chain(part, 16, f"{MMA} sm_90a") for part in split_k(128, 4)]
    assert order.digest == Order.of(128, butterfly(slices, (2, 1))[0]).digest
    assert not differences.any()
