"""Declarations: who is known, that unknown versions stay unknown, and the trees in numbers that tell them apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from dsa_reference import case, inputs, run

from equiv.dsa_index import PAIR
from equiv.rounding.conversions import widen
from equiv.rounding.declaration import differences
from equiv.rounding.declarations import DECLARATIONS, find
from equiv.rounding.declarations.dsa import STRIDES, cute_order, triton_order
from equiv.rounding.dsa import REDUCTIONS, Shape, normalise, runner
from equiv.rounding.dsa_ledger import LEDGER
from equiv.rounding.formats import BF16
from equiv.rounding.orders import Order, butterfly, leaves, pairwise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration

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
    assert PAIR.declaration(party, toolchain, arch, "") is found


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


def rivals(party: str) -> list[Order]:
    """Orders of the squares that a misreading of the PTX would declare: none fused, the others, the other party's."""
    if party == "candidate":
        flipped = [pairwise(leaves([4 * lane + c for c in (1, 0, 3, 2)]), fused=True) for lane in range(32)]
        return [cute_order(fused=False), Order.of(128, butterfly(flipped, STRIDES)[0]), triton_order(fused=True)]
    warps = [butterfly(leaves(range(32 * w, 32 * (w + 1))), STRIDES, fused=True)[16] for w in range(4)]
    return [triton_order(fused=False), Order.of(128, butterfly(warps, (2, 1))[0]), cute_order(fused=True)]


def normed(given: Mapping[str, Bits], keys: Bits, declaration: Declaration, one: Case) -> Bits:
    """The model's keys before quantisation, float32 bits [T, 128]."""
    return normalise(Shape.of(one), given, widen(keys, BF16), declaration, runner(declaration))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("party", "toolchain"), [("oracle", TRITON), ("candidate", CUTE)])
def test_a_bias_that_cancels_the_declared_result_leaves_zeros(party: str, toolchain: dict[str, str], arch: str) -> None:
    """With b = -(d * rstd) of the declared trees the key is 0 to the bit; an ulp in the variance would show as codes.

    The keys are such that every rival order has another `rstd`, so a kernel that used it would fail here.
    """
    declared = find("dsa_index", party, toolchain, arch)
    assert declared is not None
    one = case(batch=1, key_round="f32", key_floor=1e-10)
    given = inputs(one)
    given["norm_w"][:] = np.float32(1).view(np.uint32)
    given["norm_b"][:] = 0
    keys = (np.random.default_rng(3).standard_normal((4000, 128)).astype(np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )
    products = normed(given, keys, declared, one)
    telling = np.ones(len(keys), dtype=np.bool_)
    for rival in rivals(party):
        other = replace(declared, orders={**declared.orders, "key.squares": rival})
        telling &= (normed(given, keys, other, one) != products).mean(axis=1) > 0.5
    chosen = np.flatnonzero(telling)[:2]
    assert len(chosen) == 2, "no key tells all orders apart"
    for row in chosen:
        given["projected"][0, :128] = keys[row]
        given["norm_b"][:] = products[row] ^ 0x80000000
        outputs = run(party, one, given, arch)
        assert not (outputs["key_codes"] & 0x7F).any(), f"key {row}"
        assert outputs["key_scale"].tolist() == [(127 - 42) << 23], f"key {row}"
