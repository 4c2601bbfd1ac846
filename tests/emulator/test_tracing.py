"""Matrix products of Triton kernels: which k each matrix instruction takes; the traced order gives the bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from dot_kernels import dot_kernel, split_kernel

from equiv.emulator.reductions import Finder
from equiv.emulator.tracing import TracingDevice
from equiv.errors import UnsupportedError
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


@triton.jit  # type: ignore[untyped-decorator]
def add_to_kernel(x: tl.tensor, y: tl.tensor) -> None:
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    tl.store(y + at, tl.load(x + at) + tl.load(y + at))


def test_of_a_long_launch_some_clusters_are_followed_and_all_have_their_effect_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("equiv.emulator.tracing.WHOLE", 10)
    monkeypatch.setattr("equiv.emulator.tracing.PART", 70)
    device = TracingDevice("sm_90a")
    x, y = torch.arange(256).float() + 1, torch.ones(256)
    device.register("x", x)
    device.register("y", y)
    with device.active():
        for _ in range(2):
            add_to_kernel[(8,)](x, y, num_warps=1)
    assert torch.equal(y, 1 + 2 * x)
    (said,) = set(device.partly)
    followed = [at for at in range(8) if ("y", 128 * at, 4) in device.tracer.outputs]
    assert said == f"add_to_kernel in {len(followed)} of 8 clusters"
    assert 0 in followed
    assert 1 < len(followed) < 8
    assert str(device.tracer.outputs["y", 0, 4]) == "add.f32(x[0:4], add.f32(x[0:4], y[0:4]))"


def test_buffers_that_are_too_large_to_run_a_launch_twice_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equiv.emulator.tracing.MOST", 1000)
    device = TracingDevice("sm_90a")
    x, y = torch.zeros(32), torch.zeros(1024)
    device.register("x", x)
    device.register("y", y)
    with device.active(), pytest.raises(UnsupportedError, match="a trace keeps all buffers, which have 4224 bytes"):
        add_to_kernel[(1,)](x, y, num_warps=1)
