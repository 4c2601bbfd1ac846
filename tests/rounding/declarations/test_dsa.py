"""Declarations: who is known, that unknown versions stay unknown, and the trees in numbers that tell them apart."""

from __future__ import annotations

import numpy as np
import pytest

from equiv.dsa_index import PAIR
from equiv.rounding.declaration import Declaration, differences
from equiv.rounding.declarations import DECLARATIONS, find
from equiv.rounding.declarations.dsa import cute_order, triton_order
from equiv.rounding.dsa import REDUCTIONS
from equiv.rounding.dsa_ledger import LEDGER
from equiv.rounding.orders import Order

TRITON = {"triton": "3.8.0"}
CUTE = {"nvidia-cutlass-dsl": "4.8.1"}
ARCHES = ("sm_90a", "sm_100a")


@pytest.mark.parametrize("declaration", DECLARATIONS["dsa_index"], ids=lambda d: f"{d.party}-{d.arch}-{d.toolchain}")
def test_every_declaration_names_known_variants_and_all_reductions(declaration: Declaration) -> None:
    LEDGER.check(declaration.variants)
    assert set(declaration.orders) == set(REDUCTIONS)
    assert all(order.terms == 128 for order in declaration.orders.values())


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("party", "toolchain"), [("oracle", TRITON), ("candidate", CUTE)])
def test_the_installed_versions_are_known_and_other_packages_do_not_matter(
    party: str, toolchain: dict[str, str], arch: str
) -> None:
    found = find("dsa_index", party, toolchain | {"torch": "2.13.0"}, arch)
    assert found is not None
    assert (found.party, found.arch, found.toolchain) == (party, arch, toolchain)
    assert PAIR.declaration(party, toolchain, arch) is found


@pytest.mark.parametrize(
    ("pair", "party", "toolchain", "arch"),
    [
        ("dsa_index", "oracle", {"triton": "3.7.0"}, "sm_90a"),
        ("dsa_index", "oracle", {"triton": "3.8.0+git1"}, "sm_90a"),
        ("dsa_index", "oracle", {}, "sm_90a"),
        ("dsa_index", "oracle", CUTE, "sm_90a"),
        ("dsa_index", "candidate", {"nvidia-cutlass-dsl": "4.8.2"}, "sm_100a"),
        ("dsa_index", "oracle", TRITON, "sm_120a"),
        ("dsa_index", "model", TRITON, "sm_90a"),
        ("kda", "oracle", TRITON, "sm_90a"),
    ],
)
def test_what_nobody_read_is_unknown(pair: str, party: str, toolchain: dict[str, str], arch: str) -> None:
    assert find(pair, party, toolchain, arch) is None


def test_the_parties_differ_in_the_two_orders_and_in_named_rows() -> None:
    oracle, candidate = find("dsa_index", "oracle", TRITON, "sm_90a"), find("dsa_index", "candidate", CUTE, "sm_90a")
    assert oracle is not None
    assert candidate is not None
    found = differences(oracle, candidate)
    assert [line.split(":")[0] for line in found] == [
        "order key.squares",
        "order key.sum",
        "dsa.F1",
        "dsa.F3a",
        "dsa.K3b",
        "dsa.K3c",
        "dsa.K4a",
        "dsa.R11",
        "dsa.R12",
        "dsa.R13",
        "dsa.R15a",
    ]
    assert "dsa.R11: oracle mul, candidate div.rn" in found


@pytest.mark.parametrize(("order", "neighbour"), [(triton_order(fused=False), 16), (cute_order(fused=False), 1)])
def test_term_0_meets_its_declared_neighbour_before_all_others(order: Order, neighbour: int) -> None:
    """2^24 + 1 rounds to 2^24, and so it does again; but 2^24 + (1 + 1) is 2^24 + 2."""
    big = 2.0**24

    def total(values: dict[int, float]) -> float:
        terms = np.zeros(128, dtype=np.float32)
        terms[list(values)] = list(values.values())
        return float(order.sum(terms.view(np.uint32)).view(np.float32)[0])

    assert total({0: 1.0, neighbour: 1.0, 127: big}) == big + 2
    assert total({0: 1.0, neighbour: big, 127: 1.0}) == big


@pytest.mark.parametrize(
    ("order", "fused"),
    [
        (triton_order(fused=True), {i for i in range(128) if i % 32 < 16}),
        (cute_order(fused=True), {i for i in range(128) if i % 2 == 0}),
    ],
)
def test_exactly_the_declared_squares_are_fused(order: Order, fused: set[int]) -> None:
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: rounded it loses 2^-24, fused with -(1 + 2^-11) of the partner it keeps it."""
    for channel in range(128):
        a, b = np.zeros(128, dtype=np.float32), np.zeros(128, dtype=np.float32)
        partner = channel ^ 16 if len(fused & {0, 1}) == 2 else channel ^ 1
        a[channel] = b[channel] = 1 + 2.0**-12
        a[partner], b[partner] = 1.0, -(1 + 2.0**-11)
        left = float(order.dot(a.view(np.uint32), b.view(np.uint32)).view(np.float32)[0])
        assert left == (2.0**-24 if channel in fused else 0.0), channel
