"""Declarations of the front's candidate: one a split, told apart in numbers; its rows on one warp."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv.dsa_front import PAIR
from equiv.errors import UsageError
from equiv.rounding.declarations import find
from equiv.rounding.declarations.front_candidate import row_order
from equiv.rounding.front_ledger import LEDGER

if TYPE_CHECKING:
    from equiv.rounding.orders import Order

CUTE = {"nvidia-cutlass-dsl": "4.8.1"}


@pytest.mark.parametrize("split", [1, 2, 4])
def test_each_form_is_known_and_adds_its_slices_in_ascending_order(split: int) -> None:
    found = find("dsa_front", "candidate", CUTE, "sm_100a", f"split{split}")
    assert found is not None
    LEDGER.check(found.variants)
    assert set(found.orders) == {"row.squares", "projection", "key.sum", "key.squares"}
    projection = found.order("projection")
    chains = [node for node in projection.nodes if node[0] == "mma"]
    assert len(chains) == 96
    assert [projection.covers[i] for i in projection.below(projection.roots[0])] == {
        1: [tuple(range(1520))],
        2: [tuple(range(768)), tuple(range(768, 1536))],
        4: [tuple(range(1152)), tuple(range(1152, 1536))],
    }[split]


def test_forms_that_the_pair_names_are_the_declared_ones() -> None:
    assert PAIR.forms["candidate"] == ("split1", "split2", "split4")
    assert find("dsa_front", "candidate", CUTE, "sm_100a") is None
    assert find("dsa_front", "candidate", CUTE, "sm_90a", "split1") is None  # the Hopper form always has slices
    assert find("dsa_front", "candidate", CUTE, "sm_90a", "split2") is not None


def test_a_rows_squares_go_to_four_chains_a_lane() -> None:
    # 2^24 in column 0 swallows a 1 that meets it alone, but not two of them that have met before.
    def total(*columns: int) -> float:
        return swallowed(row_order(), columns)

    assert total(4, 256) == 2.0**24  # the same chain, one after the other
    assert total(1) == 2.0**24  # c0 + c1
    assert total(2, 3) == 2.0**24 + 2  # c2 + c3 first
    assert total(128) == 2.0**24  # lane 16
    assert total(64, 192) == 2.0**24 + 2  # lanes 8 and 24 meet first


def test_on_hopper_each_slice_of_a_row_is_on_half_a_warp_and_the_slices_are_added_in_order() -> None:
    def total(split: int, *columns: int) -> float:
        return swallowed(row_order("sm_90a", split), columns)

    assert total(4, 4, 128) == 2.0**24  # the same chain: 128 columns on
    assert total(4, 2, 3) == 2.0**24 + 2  # c2 + c3 first
    assert total(4, 64) == 2.0**24  # lane 8, the first partner
    assert total(4, 32, 96) == 2.0**24 + 2  # lanes 4 and 12 meet first
    assert total(4, 384, 768) == 2.0**24  # one slice after the other
    assert total(4, 384, 385) == 2.0**24 + 2  # within the second of four slices
    assert total(2, 384, 388) == 2.0**24  # in the first of two slices still: a chain, one after the other
    assert total(2, 768, 769) == 2.0**24 + 2  # within the second of two


def test_no_order_of_squares_is_given_for_another_architecture() -> None:
    with pytest.raises(UsageError, match=re.escape("arch must be sm_90a or sm_100a; got arch='sm_120a'")):
        row_order("sm_120a")


def swallowed(order: Order, columns: tuple[int, ...]) -> float:
    """The sum of squares of a row of 2^12 in column 0 and 1 in others: a 1 that meets 2^24 alone is lost."""
    x = np.zeros(1536, np.float32)
    x[0] = 2.0**12
    x[list(columns)] = 1
    return float(order.dot(x.view(np.uint32), x.view(np.uint32)).view(np.float32)[0])
