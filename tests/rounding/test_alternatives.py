"""Other orders of the same terms: each one is another, and adds every term once."""

from __future__ import annotations

import numpy as np

from equiv.rounding import arithmetic as fp
from equiv.rounding.alternatives import alternatives
from equiv.rounding.orders import Order, add, butterfly, chain, leaves, matrix_chain, pairwise, split_k


def words(order: Order) -> list[str]:
    return [said for said, _ in alternatives(order)]


def test_partial_sums_added_in_a_chain_are_taken_in_reverse_and_in_pairs() -> None:
    parts = [chain(leaves(part)) for part in split_k(16, 4)]
    found = dict(alternatives(Order.of(16, chain(parts))))
    assert found["its last additions taken in reverse"].digest == Order.of(16, chain(parts[::-1])).digest
    assert found["its last additions taken in pairs"].digest == Order.of(16, pairwise(parts)).digest
    assert len(found) == 5
    x = fp.bits_of(np.random.default_rng(1).standard_normal((200, 16)))
    results = np.concatenate([order.sum(x) for order in found.values()], axis=-1)
    assert len({results[:, i].tobytes() for i in range(5)}) == 5  # rows often agree, but no two orders in all


def test_an_order_is_no_alternative_of_itself() -> None:
    serial, pairs = Order.of(8, chain(leaves(range(8)))), Order.of(8, pairwise(leaves(range(8))))
    assert "one term after the other" not in words(serial)
    assert "neighbours in pairs, then pairs of pairs" not in words(pairs)
    assert all(other.digest != serial.digest for _, other in alternatives(serial))


def test_chains_of_matrix_instructions_keep_their_instructions() -> None:
    mma = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 sm_90a"
    slices = [matrix_chain(list(part), 16, mma) for part in split_k(128, 4)]
    found = dict(alternatives(Order.of(128, chain(slices))))
    assert set(found) == {"its last additions taken in reverse", "its last additions taken in pairs"}
    assert all(sum(node[0] == "mma" for node in order.nodes) == 8 for order in found.values())


def test_an_order_that_ends_differently_in_each_lane_has_none() -> None:
    lanes = butterfly(leaves(range(4)), (2, 1), fused=True)
    assert words(Order.of(4, lanes, owner=range(4))) == []


def test_two_equal_halves_have_no_chain_to_reverse() -> None:
    root = add(chain(leaves([0, 1])), chain(leaves([2, 3])))
    assert words(Order.of(4, root)) == ["one term after the other", "one term after the other, from the last"]
