from __future__ import annotations

import pytest

from equiv.errors import RecordError, UsageError
from equiv.rounding.declaration import Declaration, differences
from equiv.rounding.ledger import Ledger, Row
from equiv.rounding.orders import Leaf, Order, add, chain, leaves

ROW = Row("x.1", "half", "f32", "f32", "rn", "variant", {"down": lambda x: x // 2, "up": lambda x: -(-x // 2),
          "keep": lambda x: x}, 2, "keep")  # fmt: skip
FIXED = Row("x.2", "next", "f32", "f32", "rn", "exact", {"rn": lambda x: x + 1})
LEDGER = Ledger((ROW, FIXED))


def test_a_declaration_picks_a_variant_and_the_first_is_the_default() -> None:
    assert LEDGER.step("x.1", {})(5) == 2
    assert LEDGER.step("x.1", {"x.1": "up"})(5) == 3


def test_switching_off_and_replacing_beat_the_declaration_and_leave_the_ledger_alone() -> None:
    assert LEDGER.without("x.1").step("x.1", {"x.1": "up"})(5) == 5
    assert LEDGER.replace("x.1", "down").step("x.1", {"x.1": "up"})(5) == 2
    assert LEDGER.step("x.1", {"x.1": "up"})(5) == 3


def test_what_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"no ledger row 'x\.3'; known: x\.1, x\.2"):
        LEDGER.check({"x.3": "down"})
    with pytest.raises(UsageError, match=r"row x\.1 has no variant 'keep'; known: down, up"):
        LEDGER.check({"x.1": "keep"})
    with pytest.raises(UsageError, match=r"row x\.1 has no step 'off'; known: down, up, keep"):
        LEDGER.replace("x.1", "off")
    with pytest.raises(UsageError, match=r"row x\.2 \(exact\) cannot be switched off"):
        LEDGER.without("x.2")


def test_differences_of_declarations_are_named_and_equal_orders_are_not() -> None:
    one = Order.of(2, add(Leaf(0), Leaf(1)))
    other = Order.of(2, add(Leaf(1), Leaf(0)))
    three, four = Order.of(3, chain(leaves([0, 1, 2]))), Order.of(3, chain(leaves([2, 1, 0])))
    left = Declaration("oracle", {}, "sm_90a", {"a": one, "b": three}, {"x.1": "up"})
    right = Declaration("candidate", {}, "sm_90a", {"a": other, "b": four, "c": one}, {})
    assert differences(left, left) == ()
    assert differences(left, right) == (
        "order b: oracle x0 + x1 + x2; candidate x1 + x2 + x0",
        "order c: declared by candidate only",
        "x.1: oracle up, candidate default",
    )
    assert differences(left, right, LEDGER)[2] == "x.1 (half): oracle up, candidate down"
    assert differences(left, Declaration("x", {}, "sm_90a", left.orders, {"x.1": "down"}), LEDGER) == (
        "x.1 (half): oracle up, x down",
    )
    assert (
        differences(Declaration("y", {}, "sm_90a", {}, {"x.1": "down"}), Declaration("x", {}, "sm_90a", {}, {}), LEDGER)
        == ()
    )
    with pytest.raises(RecordError, match="declaration of oracle on sm_90a: no order for 'c'; declared: a, b"):
        left.order("c")
