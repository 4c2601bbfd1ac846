"""The recurrence and the folds of `kda`: C gives NumPy's bits in every declared order, and refuses other trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from equiv.errors import RecordError
from equiv.rounding import arithmetic as fp
from equiv.rounding import kda_native, kda_scan, kda_steps
from equiv.rounding.declarations.kda import DECLARATIONS
from equiv.rounding.kda_faults import BF16
from equiv.rounding.kda_ledger import LEDGER
from equiv.rounding.kda_scan import ROWS, Operands, Tokens
from equiv.rounding.orders import Add, Const, Leaf, Order, Sum, add, butterfly, chain, leaves

U32 = npt.NDArray[np.uint32]
DEFAULT = tuple(group[name] for group, name in (
    (kda_steps.MUL, "rn"), (kda_steps.SUB, "rn"), (kda_steps.MUL, "rn"), (kda_steps.FMA, "fma")))  # fmt: skip
FORMS = {f"{d.party}-{d.form}-{d.arch}": d for d in DECLARATIONS}
CHAIN = Order.of(128, chain(leaves(range(128)), fused=True))


def normal(seed: int, *shape: int) -> U32:
    return fp.bits_of(np.random.default_rng(seed).standard_normal(shape))


def operands(items: int, tokens: int, seed: int = 1) -> Operands:
    q, k, v = (normal(seed + i, items, tokens, 128) for i in range(3))
    rng = np.random.default_rng(seed)
    decay = fp.bits_of(np.exp(-5 * rng.random((items, tokens, 128))))
    return Operands(q, k, decay, v, fp.bits_of(rng.random((items, tokens))))


@pytest.mark.parametrize("name", FORMS)
def test_both_forms_agree_in_every_declared_order(name: str) -> None:
    orders = (FORMS[name].order("dot"), FORMS[name].order("out"))
    state, given = normal(9, 2, 128, 128), operands(2, 2)
    fast, slow = (run(state, given, orders, DEFAULT) for run in (kda_scan.scan, kda_scan.scan_numpy))
    for part in ("states", "o", "u"):
        np.testing.assert_array_equal(getattr(fast, part), getattr(slow, part))
    assert fast.states.shape == (2, 2, 128, 128)


@pytest.mark.parametrize("name", FORMS)
def test_sums_of_squares_agree_in_every_declared_order(name: str) -> None:
    x = normal(3, 5, 2, 128)
    for reduction in ("q.squares", "norm.squares"):
        order = FORMS[name].order(reduction)
        np.testing.assert_array_equal(kda_native.dot(x, x, order), order.dot(x, x))


@pytest.mark.parametrize(
    ("decay", "difference", "product", "update"),
    [("left out", "rn", BF16, "mul_add"), ("rn", BF16, "rn", "mul_add"), ("done twice", BF16, BF16, "fma")],
)
def test_both_forms_agree_where_steps_are_forced(decay: str, difference: str, product: str, update: str) -> None:
    names = (decay, difference, product, update)
    steps = tuple({**LEDGER[row].steps, **LEDGER[row].faults}[name] for row, name in zip(ROWS, names, strict=True))
    state, given = normal(9, 2, 128, 128), operands(2, 2)
    fast, slow = (run(state, given, (CHAIN, CHAIN), steps) for run in (kda_scan.scan, kda_scan.scan_numpy))
    for part in ("states", "o", "u"):
        np.testing.assert_array_equal(getattr(fast, part), getattr(slow, part))
    assert (fast.states != kda_scan.scan(state, given, (CHAIN, CHAIN), DEFAULT).states).any()


def test_a_step_that_c_does_not_know_runs_in_numpy() -> None:
    state, given = normal(9, 1, 128, 128), operands(1, 1)
    steps = (kda_steps.MUL["rz"], *DEFAULT[1:])
    found, plain = (kda_scan.scan(state, given, (CHAIN, CHAIN), each) for each in (steps, DEFAULT))
    np.testing.assert_array_equal(found.states, kda_scan.scan_numpy(state, given, (CHAIN, CHAIN), steps).states)
    assert (found.states != plain.states).any()


def test_special_values_travel_alike() -> None:
    state, given = normal(9, 2, 128, 128), operands(2, 1)
    state[0, 3, :8] = [0x7F800000, 0xFF800000, 0x7FC00001, 0x80000000, 1, 0x80000001, 0x7F7FFFFF, 0xFFC00000]
    state[1, 5] = 0x80000000
    given.v[0, 0, 9] = 0xFF800000
    given.k[1, 0, :4] = [0x80000000, 0x00000001, 0x807FFFFF, 0]
    fast, slow = (run(state, given, (CHAIN, CHAIN), DEFAULT) for run in (kda_scan.scan, kda_scan.scan_numpy))
    for part in ("states", "o", "u"):
        np.testing.assert_array_equal(getattr(fast, part), getattr(slow, part))
    assert set(fast.states[0, 0, 3, [2, 7]]) == {0x7FFFFFFF}


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_both_forms_of_a_fold_agree(name: str) -> None:
    state, counts = normal(9, 3, 128, 128), np.array([1, 3, 2])
    given = operands(3, 3)
    given.k[:, :, 5], given.v[:, :, 7], state[:, 7, 5] = 0x00000001, 0x807FFFFF, 0x80000000  # their product underflows
    tokens = Tokens(given.decay, given.k, given.v)
    step = kda_steps.FOLD[name]
    fast, slow = (run(state, counts, tokens, step) for run in (kda_scan.fold, kda_scan.fold_numpy))
    np.testing.assert_array_equal(fast, slow)


@pytest.mark.parametrize("run", [kda_scan.fold, kda_scan.fold_numpy])
def test_a_backward_fold_keeps_the_sign_of_a_product_that_underflows_of_the_last_of_all_tokens_only(run: Any) -> None:
    state = np.full((2, 128, 128), 0x80000000, np.uint32)
    ones = np.full((2, 2, 128), 0x3F800000, np.uint32)
    tokens = Tokens(ones, np.full((2, 2, 128), 1, np.uint32), np.full((2, 2, 128), 0x80000001, np.uint32))
    tokens.values[0, 0] = 0x80000000
    found = run(state, np.array([2, 1]), tokens, kda_steps.FOLD["backward"])
    assert (np.unique(found[0]).tolist(), np.unique(found[1]).tolist()) == ([0x80000000], [0])


def test_a_fold_that_is_listened_to_has_the_same_bits() -> None:
    heard: list[tuple[Any, ...]] = []
    step = replace(LEDGER, tap=lambda *said: heard.append(said)).step("kda.13p", {"kda.13p": "backward"})
    given = operands(3, 3)
    state, counts, tokens = normal(9, 3, 128, 128), np.array([1, 3, 2]), Tokens(given.decay, given.k, given.v)
    plain = kda_scan.fold(state, counts, tokens, kda_steps.FOLD["backward"])
    np.testing.assert_array_equal(kda_scan.fold(state, counts, tokens, step), plain)
    assert [(row, len(operands)) for row, operands, _ in heard] == [("kda.13p", 4)] * 3


def test_folding_forward_repeats_the_recurrence_and_backward_does_so_up_to_rounding() -> None:
    state, given = normal(9, 2, 128, 128), operands(2, 3)
    done = kda_scan.scan(state, given, (CHAIN, CHAIN), DEFAULT)
    tokens, counts = Tokens(given.decay, given.k, done.u), np.array([3, 3])
    forward, backward = (kda_scan.fold(state, counts, tokens, kda_steps.FOLD[name]) for name in ("forward", "backward"))
    np.testing.assert_array_equal(forward, done.states[:, -1])
    assert (backward != forward).any()
    np.testing.assert_allclose(fp.floats(backward), fp.floats(forward), rtol=0, atol=1e-5)


def test_orders_that_are_no_sum_over_a_row_are_refused() -> None:
    x = normal(1, 1, 128)
    with pytest.raises(RecordError, match="an order of 4 terms in 7 nodes: no sum over 128 channels"):
        kda_native.dot(x, x, Order.of(4, chain(leaves(range(4)))))
    with pytest.raises(RecordError, match="an order of 128 terms in 129 nodes with sum: no sum over 128 channels"):
        kda_native.dot(x, x, Order.of(128, Sum(tuple(leaves(range(128))))))
    lanes = butterfly(leaves(range(128)), (64, 32, 16, 8, 4, 2, 1), fused=True)
    split = Order.of(128, [lanes[0], lanes[127]], [0] * 64 + [1] * 64)
    with pytest.raises(RecordError, match="every value has one sum"):
        kda_scan.scan(normal(1, 1, 128, 128), operands(1, 1), (split, CHAIN), DEFAULT)


def test_a_constant_starts_a_sum() -> None:
    x = normal(1, 2, 128)
    order = Order.of(128, add(Const(0x3F800000), chain([Add(Leaf(0), Leaf(1)), *leaves(range(2, 128))])))
    np.testing.assert_array_equal(kda_native.dot(x, x, order), order.dot(x, x))
