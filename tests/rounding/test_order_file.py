"""Orders as a file: what is written is read back, and what was not written by us is refused by its field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from equiv.errors import RecordError
from equiv.rounding.declaration import Declaration
from equiv.rounding.order_file import OrderFile, render
from equiv.rounding.orders import Order, butterfly, chain, leaves

if TYPE_CHECKING:
    from pathlib import Path

CHAIN = Order.of(4, chain(leaves(range(4)), fused=True))
TREE = Order.of(4, butterfly(leaves(range(4)), (2, 1)), range(4))
ONE = Declaration("oracle", {"triton": "3.8.0"}, "sm_90a", {"sum": CHAIN}, {})
OTHER = Declaration("candidate", {"a": "1", "b": "2"}, "sm_100a", {"sum": TREE, "more": CHAIN}, {}, "wide")


def test_declarations_are_read_back_with_the_variants_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    path.write_text(render([ONE, OTHER]))
    assert len(path.read_text().splitlines()) == 4
    orders = OrderFile.read(path)
    assert orders.find("oracle", {"triton": "3.8.0", "unrelated": "7"}, "sm_90a") == ONE
    found = orders.find("candidate", {"a": "1", "b": "2"}, "sm_100a", "wide", {"row": "other"})
    assert found is not None
    assert {name: order.digest for name, order in found.orders.items()} == {"sum": TREE.digest, "more": CHAIN.digest}
    assert found.variants == {"row": "other"}


@pytest.mark.parametrize(
    ("party", "toolchain", "arch", "form"),
    [
        ("oracle", {"triton": "3.8.1"}, "sm_90a", ""),
        ("oracle", {}, "sm_90a", ""),
        ("oracle", {"triton": "3.8.0"}, "sm_100a", ""),
        ("oracle", {"triton": "3.8.0"}, "sm_90a", "wide"),
        ("candidate", {"triton": "3.8.0"}, "sm_90a", ""),
    ],
)
def test_other_versions_parties_and_forms_are_unknown(
    tmp_path: Path, party: str, toolchain: dict[str, str], arch: str, form: str
) -> None:
    (tmp_path / "orders.json").write_text(render([ONE]))
    assert OrderFile.read(tmp_path / "orders.json").find(party, toolchain, arch, form) is None


def spoilt(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(render([ONE]))
    data["declarations"][0]["orders"]["sum"] |= changes
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], r"\$ is \[\], wanted an object"),
        ({"schema": "other", "version": 1}, "schema 'other' version 1"),
        ({"schema": "equiv orders", "version": 1}, "missing or unknown fields: declarations"),
        ({"schema": "equiv orders", "version": 1, "declarations": [3]}, r"\$\.declarations\[0\] is 3"),
        (spoilt(roots=[]), r"orders\.sum is no order: a root does not add each term once"),
        (spoilt(roots=[0]), r"orders\.sum is no order: a root"),
        (spoilt(roots=["x"]), r"orders\.sum is no order"),
        (spoilt(owner=[7]), r"orders\.sum is no order"),
        (spoilt(terms="many"), r"orders\.sum is no order"),
        (spoilt(nodes=[["leap", 1]]), r"orders\.sum is no order: order \$\.nodes\[0\]"),
        (spoilt(nodes=[["leaf", 0], ["add", 0, 5]]), "points forward"),
        (spoilt(nodes=7), r"orders\.sum is no order"),
    ],
)
def test_a_damaged_file_is_refused_by_its_field(tmp_path: Path, data: Any, said: str) -> None:
    path = tmp_path / "orders.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=said):
        OrderFile.read(path)


def test_what_is_no_json_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("{")
    with pytest.raises(RecordError, match=r"orders\.json: no JSON"):
        OrderFile.read(tmp_path / "orders.json")
    with pytest.raises(RecordError, match="none: No such file"):
        OrderFile.read(tmp_path / "none")
