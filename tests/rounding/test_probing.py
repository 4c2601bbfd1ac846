"""Orders found by masked probes are those that were executed; what is no fixed sum is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from equiv.rounding import matrix
from equiv.rounding.orders import Leaf, Node, Order, Sum, add, chain, leaves, matrix_chain
from equiv.rounding.probing import ProbeError, probe, probe_dot
from equiv.rounding.trees import Const

F32 = npt.NDArray[np.float32]


def _random(n: int, rng: np.random.Generator) -> Order:
    nodes: list[Node] = [Leaf(int(i)) for i in rng.permutation(n)]
    while len(nodes) > 1:
        i, j = sorted(rng.choice(len(nodes), 2, replace=False).tolist())
        right, left = nodes.pop(j), nodes.pop(i)
        nodes.append(add(left, right))
    return Order.of(n, nodes[0])


def _executed(order: Order, x: F32) -> float:
    return float(order.sum(x.view(np.uint32)).view(np.float32)[0])


@pytest.mark.parametrize("n", [2, 3, 5, 16, 33, 97, 130])
def test_a_random_tree_is_found(n: int) -> None:
    order = _random(n, np.random.default_rng(n))
    assert probe(lambda x: _executed(order, x), n).digest == order.digest


@pytest.mark.parametrize("step", [1, -1])
def test_a_long_chain_is_found_from_either_end(step: int) -> None:
    order = Order.of(1200, chain(leaves(range(1200)[::step])))
    assert probe(lambda x: float(np.cumsum(x[::step])[-1]), 1200).digest == order.digest


@pytest.mark.parametrize("n", [7, 8, 64, 128, 200, 300])
def test_numpys_sum_gives_the_bits_of_the_order_found(n: int) -> None:
    order = probe(lambda x: float(np.sum(x)), n)
    x = np.random.default_rng(n).standard_normal((50, n)).astype(np.float32)
    assert (np.array([np.sum(row) for row in x]).view(np.uint32) == order.sum(x.view(np.uint32))[:, 0]).all()
    if n == 8:
        assert str(order).splitlines()[1:3] == [
            "  1: 4 add: x0 + x1, x2 + x3, x4 + x5, x6 + x7",
            "  2: 2 add: {0..1} + {2..3}, {4..5} + {6..7}",
        ]


@pytest.mark.parametrize("n", [8, 100, 512])
def test_torchs_sum_gives_the_bits_of_the_order_found(n: int) -> None:
    order = probe(lambda x: float(torch.from_numpy(x).sum()), n)
    x = np.random.default_rng(n).standard_normal((50, n)).astype(np.float32)
    sums = np.array([float(torch.from_numpy(row).sum()) for row in x], np.float32)
    assert (sums.view(np.uint32) == order.sum(x.view(np.uint32))[:, 0]).all()


def test_a_matrix_instructions_chain_shows_as_sums_of_sixteen_at_once() -> None:
    model = matrix.variant("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "sm_90a")

    def dot(x: F32, y: F32) -> float:
        a, b = ((one.view(np.uint32) >> 16).astype(np.uint16) for one in (x, y))
        return float(matrix.fused_dot(model, a[None, :], b[:, None]).view(np.float32)[0, 0])

    wanted = Sum((Sum((*leaves(range(16)),)), *leaves(range(16, 32))))
    assert probe_dot(dot, 32).digest == Order.of(32, wanted).digest


def test_an_fp16_sum_needs_a_smaller_mask() -> None:
    def total(x: F32) -> float:
        result = np.float16(0)
        for one in x.astype(np.float16):
            result = np.float16(result + one)
        return float(result)

    order = Order.of(20, chain(leaves(range(20))))
    assert probe(total, 20, big=2.0**15, unit=2.0**-10).digest == order.digest


def test_a_sum_in_wider_precision_is_refused() -> None:
    with pytest.raises(ProbeError, match=r"term \d+ meets terms .* in a subtree of 2, where 1 \+ 9 are"):
        probe(lambda x: float(sum(map(int, x.tolist()))), 10)


def test_an_order_that_changes_from_call_to_call_is_refused() -> None:
    rng = np.random.default_rng(0)

    def total(x: F32) -> float:
        return float(np.cumsum(x[rng.permutation(len(x))])[-1])

    with pytest.raises(ProbeError, match="terms"):
        probe(total, 24)


def test_what_is_no_sum_is_refused_with_the_pair() -> None:
    with pytest.raises(ProbeError, match=r"terms \d+ and \d+ masked: the sum is .*, no number of terms from 0 to 6"):
        probe(lambda x: float(x.max()), 8)
    with pytest.raises(ProbeError, match="1 terms; probes tell orders of 2 to"):
        probe(lambda x: float(x.sum()), 1)


def test_a_sign_that_matters_is_reported() -> None:
    def total(x: F32) -> float:
        return 2.0 if x[0] < 0 or x[1] < 0 or x[2] < 0 or x[3] < 0 else 0.0

    with pytest.raises(
        ProbeError, match=r"terms \d and \d masked: \d or \d others survive, by their signs|terms .* masked"
    ):
        probe(lambda x: total(x) if x[0] > 2 else 0.0, 4)


def test_a_start_at_zero_cannot_be_seen_by_probes() -> None:
    order = Order.of(5, chain(leaves(range(5)), Const(0)))
    assert probe(lambda x: _executed(order, x), 5).digest == Order.of(5, chain(leaves(range(5)))).digest


def test_orders_of_matrix_instructions_execute_as_the_model_does() -> None:
    name = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 sm_90a"
    order = Order.of(32, matrix_chain(range(32), 16, name))
    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal((3, 32)).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000) for _ in range(2))
    model = matrix.variant(*name.split())
    for i in range(3):
        x, y = ((one[i] >> 16).astype(np.uint16) for one in (a, b))
        assert order.dot(a, b)[i, 0] == matrix.fused_dot(model, x[None, :], y[:, None])[0, 0]
