"""Declarations of the front: who is known, and the trees in numbers that tell them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv.dsa_front import PAIR
from equiv.rounding.declaration import differences
from equiv.rounding.declarations import DECLARATIONS, find
from equiv.rounding.declarations.front import MATRIX, ROW_ORDERS, projection, row_order
from equiv.rounding.front import REDUCTIONS
from equiv.rounding.front_ledger import LEDGER
from equiv.rounding.matrix import variant
from equiv.rounding.projection import chains, part_of

if TYPE_CHECKING:
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.orders import Order

ORACLES = [one for one in DECLARATIONS["dsa_front"] if one.party == "oracle"]


@pytest.mark.parametrize("declaration", DECLARATIONS["dsa_front"], ids=lambda d: f"{d.party}-{d.arch}-{d.toolchain}")
def test_every_declaration_names_known_variants_and_all_reductions(declaration: Declaration) -> None:
    LEDGER.check(declaration.variants)
    assert set(declaration.orders) == set(REDUCTIONS)
    columns = [k for chain in chains(part_of(declaration.order("projection"))) for k in chain.indices]
    assert columns == list(range(1536))
    assert {chain.variant.split()[1] for chain in chains(part_of(declaration.order("projection")))} == {
        declaration.arch
    }


def test_two_versions_of_triton_are_known_on_both_architectures() -> None:
    assert {(one.toolchain["triton"], one.arch) for one in ORACLES} == set(ROW_ORDERS)
    assert find("dsa_front", "oracle", {"triton": "3.7.0"}, "sm_90a") is None
    found = find("dsa_front", "oracle", {"triton": "3.8.0", "torch": "2.13.0"}, "sm_100a")
    assert found is PAIR.declaration("oracle", {"triton": "3.8.0"}, "sm_100a", "")


@pytest.mark.parametrize("arch", MATRIX)
def test_both_instructions_have_the_same_numbers_so_the_oracles_bits_do_not_depend_on_them(arch: str) -> None:
    model = variant(*MATRIX[arch].split())
    assert (model.k, model.row.align, len(model.blocks)) == (16, 25, 1)


def test_the_four_row_orders_differ_in_form_and_the_two_of_a_version_in_value_only_where_they_pair_otherwise() -> None:
    orders = {key: row_order(of_lane) for key, of_lane in ROW_ORDERS.items()}
    assert len({order.digest for order in orders.values()}) == 4
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((64, 1536)).astype(np.float32).view(np.uint32) >> 16 << 16).astype(np.uint32)
    totals = {key: order.dot(x, x)[:, 0] for key, order in orders.items()}
    # The packed chain of 3.6 fuses other squares than the plain one; squares of BF16 values are exact, so it is equal.
    np.testing.assert_array_equal(totals["3.6.0", "sm_90a"], totals["3.6.0", "sm_100a"])
    for one, other in (("3.6.0", "sm_90a"), ("3.8.0", "sm_90a")), (("3.8.0", "sm_90a"), ("3.8.0", "sm_100a")):
        assert (totals[one] != totals[other]).any()


def total(order: Order, values: dict[int, float]) -> float:
    """The sum of squares of a few elements, the others 0."""
    terms = np.zeros(1536, dtype=np.float32)
    terms[list(values)] = list(values.values())
    bits = terms.view(np.uint32)
    return float(order.dot(bits, bits).view(np.float32)[0])


@pytest.mark.parametrize(
    ("version", "arch", "partner"),
    [("3.6.0", "sm_90a", 1), ("3.6.0", "sm_100a", 1), ("3.8.0", "sm_90a", 1), ("3.8.0", "sm_100a", 2)],
)
def test_column_0_meets_its_partner_first_and_other_lanes_last(version: str, arch: str, partner: int) -> None:
    """2^24 + 1 rounds to 2^24, and so it does again; but 2^24 + (1 + 1) is 2^24 + 2."""
    order, big = row_order(ROW_ORDERS[version, arch]), 2.0**12
    assert total(order, {0: 1.0, partner: 1.0, 1535: big}) == big * big + 2
    assert total(order, {0: 1.0, partner: big, 1535: 1.0}) == big * big


def test_slices_are_added_after_their_chains() -> None:
    whole, sliced = (projection(MATRIX["sm_90a"], split) for split in (1, 4))
    assert whole.digest != sliced.digest
    known = ORACLES[0]
    assert differences(known, known) == ()
    assert str(sliced).splitlines()[0] == "1536 terms, 27 levels, 1 root(s)"
