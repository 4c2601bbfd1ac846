"""Orders of a projection taken apart: chains of matrix instructions and sums of them, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from equiv.errors import UsageError
from equiv.rounding.declarations.front import MATRIX, projection
from equiv.rounding.orders import Order, butterfly, leaves, matrix_chain
from equiv.rounding.projection import Chain, Plus, chains, part_of
from equiv.rounding.trees import Add, Const, Mma

WGMMA = MATRIX["sm_90a"]


def test_one_slice_is_one_chain_over_all_columns() -> None:
    part = part_of(projection(WGMMA))
    assert part == Chain(tuple(range(1536)), WGMMA)
    operand = np.arange(3072).reshape(2, 1536)
    assert np.shares_memory(Chain(tuple(range(1536)), WGMMA).of(operand), operand)


def test_slices_are_added_from_the_left() -> None:
    part = part_of(projection(WGMMA, 4))
    assert isinstance(part, Plus)
    assert [chain.indices for chain in chains(part)] == [tuple(range(384 * i, 384 * i + 384)) for i in range(4)]
    assert isinstance(part.left, Plus)
    assert isinstance(part.right, Chain)
    assert part.right.indices[0] == 1152


def test_a_chain_keeps_its_order_of_k() -> None:
    part = part_of(Order.of(64, matrix_chain([*range(32, 64), *range(32)], 16, WGMMA)))
    assert isinstance(part, Chain)
    assert part.of(np.arange(128).reshape(2, 64))[1, :3].tolist() == [96, 97, 98]
    assert part.indices[32:34] == (0, 1)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order.of(4, butterfly(leaves(range(4)), (2, 1))[0]), r"holds leaf x\d, not matrix chains from \+0"),
        (Order.of(16, Mma(tuple(range(16)), Const(0x3F800000), WGMMA)), "holds const const, not matrix chains"),
        (
            Order.of(32, Mma(tuple(range(16)), Mma(tuple(range(16, 32)), Const(0), MATRIX["sm_100a"]), WGMMA)),
            r"holds mma mma\(\{0\.\.15\}, \{16\.\.31\}\), not matrix chains",
        ),
        (
            Order.of(32, [matrix_chain(range(32), 16, WGMMA), matrix_chain(range(31, -1, -1), 16, WGMMA)], [0, 1]),
            "has 2 results, not one for all outputs",
        ),
        (Order.of(16, Add(Const(0), matrix_chain(range(16), 16, WGMMA))), "holds add"),
    ],
    ids=["leaves", "start", "two instructions", "two results", "a constant added"],
)
def test_other_orders_are_refused_by_what_they_hold(order: Order, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        part_of(order)
