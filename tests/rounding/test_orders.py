"""Reduction orders: what they compute, when two are the same, and what a reader and a file get to see."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from equiv.errors import RecordError
from equiv.rounding import arithmetic as fp
from equiv.rounding.orders import Add, Const, Fma, Leaf, Mma, Order, add, butterfly, chain, leaves, pairwise

STRIDES = (16, 8, 4, 2, 1)


def warp(*, fused: bool = False) -> Order:
    lanes = [pairwise(leaves(range(4 * lane, 4 * lane + 4)), fused=fused) for lane in range(32)]
    return Order.of(128, butterfly(lanes, STRIDES))


def terms(seed: int, *shape: int) -> fp.U32:
    return fp.bits_of(np.random.default_rng(seed).standard_normal(shape))


def test_a_chain_adds_from_left_to_right() -> None:
    x = terms(1, 50, 9)
    total = fp.floats(x[:, 0])
    for i in range(1, 9):
        total = total + fp.floats(x[:, i])
    assert np.array_equal(Order.of(9, chain(leaves(range(9)))).sum(x)[:, 0], fp.bits_of(total))


def test_pairwise_and_chain_differ_in_bits_where_rounding_does() -> None:
    x = fp.bits_of([[2.0**24, 1.0, 1.0, 1.0]])
    assert Order.of(4, chain(leaves(range(4)))).sum(x) == fp.bits_of(2.0**24)
    assert Order.of(4, pairwise(leaves(range(4)))).sum(x) == fp.bits_of(2.0**24 + 2)


def test_partial_sums_through_bf16_stall_where_a_running_sum_of_ones_does() -> None:
    running = replace(Order.of(512, chain(leaves(range(512)))), through="bf16")
    ones = fp.bits_of(np.ones((1, 512)))
    assert fp.floats(running.sum(ones)).tolist() == [[256.0]]
    assert fp.floats(Order.of(512, chain(leaves(range(512)))).sum(ones)).tolist() == [[512.0]]
    assert running.digest != Order.of(512, chain(leaves(range(512)))).digest


def test_a_warp_reduction_equals_the_same_shuffles_in_numpy() -> None:
    x = terms(2, 17, 128)
    lanes = fp.floats(x).reshape(17, 32, 4)
    row = (lanes[..., 0] + lanes[..., 1]) + (lanes[..., 2] + lanes[..., 3])
    for stride in STRIDES:
        row = row + row[:, np.arange(32) ^ stride]
    assert len(warp().roots) == 1
    assert np.array_equal(warp().sum(x)[:, 0], fp.bits_of(row[:, 0]))
    assert np.array_equal(fp.bits_of(row), np.repeat(fp.bits_of(row[:, :1]), 32, axis=1))


def test_fused_lanes_keep_results_of_their_own() -> None:
    order = Order.of(32, butterfly(leaves(range(32)), STRIDES, fused=True), owner=range(32))
    x = terms(3, 300, 32)
    seen = order.seen(order.dot(x, x))
    assert len(order.roots) == 2
    assert np.array_equal(seen[:, :16], np.repeat(seen[:, :1], 16, axis=1))
    assert np.array_equal(seen[:, 16:], np.repeat(seen[:, 16:17], 16, axis=1))
    assert np.any(seen[:, 0] != seen[:, 16])
    squares = fp.mul(x, x)
    first = fp.fma(x, x, squares[:, np.arange(32) ^ 16])
    row = fp.floats(first)
    for stride in STRIDES[1:]:
        row = row + row[:, np.arange(32) ^ stride]
    assert np.array_equal(seen, fp.bits_of(row))


def test_lanes_that_differ_need_an_owner() -> None:
    with pytest.raises(ValueError, match="2 trees with different bits and no owner"):
        Order.of(32, butterfly(leaves(range(32)), STRIDES, fused=True))


def test_places_of_products_that_a_matrix_instruction_adds_at_once_do_not_matter_and_others_do() -> None:
    def digest(indices: list[int], variant: str) -> str:
        return Order.of(len(indices), Mma(tuple(indices), Const(0), variant)).digest

    whole = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 sm_100a"
    assert digest([0, 1, 4, 5, 2, 3, *range(6, 16)], whole) == digest(list(range(16)), whole)
    halves = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 sm_100a"  # sums k % 4 < 2, then the others
    assert digest([4, 1, 2, 3, 0, *range(5, 32)], halves) == digest(list(range(32)), halves)
    assert digest([2, 1, 0, *range(3, 32)], halves) != digest(list(range(32)), halves)


def test_digests_are_equal_exactly_for_orders_that_give_equal_bits() -> None:
    swapped = Order.of(3, Add(Leaf(2), Add(Leaf(1), Leaf(0))))
    assert swapped.digest == Order.of(3, chain(leaves(range(3)))).digest
    assert swapped.digest != Order.of(3, Add(Leaf(0), Add(Leaf(1), Leaf(2)))).digest
    assert Order.of(2, Fma(0, Leaf(1))).digest != Order.of(2, Fma(1, Leaf(0))).digest
    assert Order.of(2, chain(leaves(range(2)), Const(0))).digest != Order.of(2, chain(leaves(range(2)))).digest
    views = butterfly(leaves(range(32)), STRIDES, fused=True)
    assert Order.of(32, views[0]).digest == Order.of(32, views[5]).digest != Order.of(32, views[16]).digest


def test_roundings_count_the_longest_path() -> None:
    assert warp().roundings(products=False) == 7
    assert warp().roundings(products=True) == 8
    assert warp(fused=True).roundings(products=True) == 8
    assert Order.of(8, chain(leaves(range(8)))).roundings(products=False) == 7
    assert Order.of(8, chain(leaves(range(8)), Const(0), fused=True)).roundings(products=True) == 8


def test_a_constant_start_makes_minus_zero_positive() -> None:
    x = fp.bits_of([[-0.0, -0.0]])
    assert Order.of(2, chain(leaves(range(2)))).sum(x) == 0x80000000
    assert Order.of(2, chain(leaves(range(2)), Const(0))).sum(x) == 0


def test_json_gives_the_same_order_back() -> None:
    order = Order.of(32, butterfly(leaves(range(32)), STRIDES, fused=True), owner=range(32))
    again = Order.from_json(json.loads(json.dumps(order.to_json())))
    assert again == order
    assert again.digest == order.digest


def test_damaged_json_is_refused_with_the_place() -> None:
    data = Order.of(2, chain(leaves(range(2)))).to_json()
    with pytest.raises(RecordError, match=r"order lacks owner"):
        Order.from_json({k: v for k, v in data.items() if k != "owner"})
    with pytest.raises(RecordError, match=r"order \$\.nodes\[2\]: \['add', 0, 2\] is no node, or points forward"):
        Order.from_json({**data, "nodes": [*data["nodes"][:2], ["add", 0, 2]]})
    with pytest.raises(RecordError, match=r"order \$\.nodes\[0\]: \['mul', 0, 1\] is no node"):
        Order.from_json({**data, "nodes": [["mul", 0, 1]]})


def test_an_order_uses_every_term_exactly_once() -> None:
    with pytest.raises(ValueError, match=r"root 2 uses terms \(0, 2\), not each of 0\.\.2 exactly once"):
        Order.of(3, Add(Leaf(0), Leaf(2)))
    with pytest.raises(ValueError, match=r"uses terms \(0, 0, 1\)"):
        Order.of(2, Fma(0, Add(Leaf(0), Leaf(1))))


def test_wrong_calls_say_what_was_wrong() -> None:
    with pytest.raises(ValueError, match="pairwise over 3 nodes: not a power of two"):
        pairwise(leaves(range(3)))
    with pytest.raises(ValueError, match="stride 2 reaches outside 2 lanes"):
        butterfly(leaves(range(2)), [2])
    with pytest.raises(ValueError, match="chain of no nodes"):
        chain([])
    with pytest.raises(ValueError, match="this order fuses products; use dot"):
        Order.of(2, add(Leaf(0), Leaf(1), fused=True)).sum(terms(4, 2))
    with pytest.raises(ValueError, match="terms=3, expected 2"):
        Order.of(2, add(Leaf(0), Leaf(1))).sum(terms(4, 3))


def test_a_reader_sees_one_line_a_level() -> None:
    assert str(Order.of(8, butterfly(leaves(range(8)), (4, 2, 1)))) == (
        "8 terms, 3 levels, 1 root(s)\n"
        "  1: 4 add: x0 + x4, x1 + x5, x2 + x6, x3 + x7\n"
        "  2: 2 add: {0, 4} + {2, 6}, {1, 5} + {3, 7}\n"
        "  3: 1 add: {0, 2, 4, 6} + {1, 3, 5, 7}"
    )
    assert str(Order.of(2, Fma(0, Leaf(1)))) == "2 terms, 1 levels, 1 root(s)\n  1: 1 fma: fma(x0, x1)"


def test_a_deep_chain_is_built_and_run_without_recursion() -> None:
    order = Order.of(5000, chain(leaves(range(5000))))
    assert order.sum(fp.bits_of(np.ones((1, 5000)))) == fp.bits_of(5000.0)
