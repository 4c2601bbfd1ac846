"""Orders in one line: what a reader must be able to tell apart by reading."""

from __future__ import annotations

import pytest

from equiv.rounding.declarations.dsa import cute_order, triton_order
from equiv.rounding.orders import Add, Const, Fma, Leaf, Node, Order, butterfly, chain, leaves, pairwise
from equiv.rounding.phrases import phrase, phrases


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (triton_order(fused=False), "x0 + x16, then 8, 4, 2, 1, 64, 32 apart"),
        (triton_order(fused=True), "fma(x0, x16), then 8, 4, 2, 1, 64, 32 apart"),
        (cute_order(fused=False), "x0 + x1, then 2, 64, 32, 16, 8, 4 apart"),
        (cute_order(fused=True), "fma(x0, x1), then 2, 64, 32, 16, 8, 4 apart"),
    ],
)
def test_declared_orders_are_told_by_their_first_step_and_distances(order: Order, words: str) -> None:
    assert phrase(order) == words


def test_which_product_is_fused_shows() -> None:
    lanes = butterfly(leaves(range(4)), (2, 1), fused=True)
    assert phrase(Order.of(4, lanes[0])) == "fma(x0, x2), then 1 apart"
    assert phrase(Order.of(4, lanes[2])) == "fma(x2, x0), then 1 apart"
    mixed = Order.of(4, Add(Fma(0, Leaf(1)), Add(Leaf(2), Leaf(3))))
    assert phrase(mixed) == "x1 + fma x0 + {2..3}"


def test_chains_are_told_by_their_ends_and_irregular_trees_by_the_way_of_a_term() -> None:
    assert phrase(Order.of(128, chain(leaves(range(128))))) == "x0 + x1 + ... + x127"
    assert phrase(Order.of(128, chain(leaves(reversed(range(128)))))) == "x126 + x127 + x125 + x124 + ... + x0"
    assert phrase(Order.of(6, chain(leaves(range(6)), Const(0)))) == "const + x0 + x1 + ... + x5"
    assert phrase(Order.of(6, chain(leaves(range(6)), fused=True))) == "x0 + fma x1 + fma x2 + ... + fma x5"
    fours: list[Node] = [pairwise(leaves(range(4 * i, 4 * i + 4))) for i in range(3)]
    assert phrase(Order.of(12, chain(fours))) == "x0 + x1 + {2..3} + {4..7} + {8..11}"


def test_a_long_irregular_way_is_cut_and_says_how_much_is_missing() -> None:
    squares = [i * i % 17 for i in range(1, 9)]  # 1 4 9 16 8 2 15 13: no two equal distances
    rest = [i for i in range(17) if i not in squares]
    words = phrase(Order.of(17, chain(leaves(squares + rest))))
    assert words == "x1 + x4 + x9 + x16 + x8 + x2 + ... (11 more)"


def test_results_that_differ_by_consumer_are_counted() -> None:
    lanes = butterfly(leaves(range(4)), (2, 1), fused=True)
    order = Order.of(4, [lanes[0], lanes[2]], owner=[0, 1, 0, 1])
    assert phrase(order) == "2 results for different consumers, one of them fma(x0, x2), then 1 apart"


def test_two_orders_of_the_same_words_are_told_apart_by_digest() -> None:
    squares = [i * i % 17 for i in range(1, 9)]
    rest = [i for i in range(17) if i not in squares]
    left, right = (Order.of(17, chain(leaves([*squares, *tail]))) for tail in (rest, rest[::-1]))
    assert phrase(left) == phrase(right)
    assert phrases(left, right) == (f"{phrase(left)} [{left.digest}]", f"{phrase(right)} [{right.digest}]")
    assert phrases(left, left) == (phrase(left), phrase(left))
