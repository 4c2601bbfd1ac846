"""`equiv order`: what the parties of dsa_index do is what is declared, and a wrong declaration is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from equiv import cli, pairs
from equiv.errors import UnsupportedError
from equiv.order import Discovered, Traced, discover, smallest, trace
from equiv.pairs import Party
from equiv.plan import cases
from equiv.report.order import render
from equiv.rounding.order_file import OrderFile
from equiv.rounding.orders import Order, butterfly, chain, leaves

if TYPE_CHECKING:
    from pathlib import Path

    from equiv.records import Case

PAIR = pairs.get("dsa_index")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("party", ["oracle", "candidate"])
def test_the_orders_of_dsa_index_are_those_declared(party: str, arch: str) -> None:
    found = trace(PAIR, party, smallest(PAIR, cases(None, ["dsa_index"], [])), arch)
    assert [(one.reduction, one.problem) for one in found] == [("key.sum", ""), ("key.squares", "")]
    assert all(one.order is not None and one.order.terms == 128 for one in found)


def test_a_tampered_declaration_is_reported_with_the_first_node_that_differs() -> None:
    def tampered(party: str, versions: Any, arch: str, form: str) -> Any:
        said = PAIR.declaration(party, versions, arch, form)
        lanes = [butterfly(leaves(range(32 * w, 32 * w + 32)), (16, 8, 4, 1, 2))[0] for w in range(4)]
        wrong = Order.of(128, butterfly(lanes, (2, 1))[0])
        return replace(said, orders={"key.sum": wrong})

    pair = replace(PAIR, declaration=tampered)
    total, squares = trace(pair, "oracle", smallest(pair, cases(None, ["dsa_index"], [])), "sm_90a")
    assert total.problem.startswith(
        "declared at level 4 {0, 4, 8, 12, ...} + {1, 5, 9, 13, ...}; traced at level 4 {0, 4,"
    )
    assert squares.problem == "not declared"
    said = render("dsa_index::x", [total, squares], ["candidate on sm_90a: needs package:x"])
    assert "key.sum" in said
    assert "NOT AS DECLARED: declared at level 4" in said
    assert said.endswith("2 orders traced, 2 not as declared, 1 not traced")


def test_what_a_pair_does_not_describe_is_discovered() -> None:
    case = smallest(PAIR, cases(None, ["dsa_index"], []))
    found = discover(replace(PAIR, terms=None), "candidate", case, "sm_90a")
    assert {(one.form, one.terms, one.buffers) for one in found} == {
        ("values", 128, ("projected",)),
        ("squares", 128, ("projected",)),
    }
    declared = PAIR.declared("candidate", found[0].toolchain, "sm_90a", case)
    assert {one.order.digest for one in found} == {order.digest for order in declared.orders.values()}
    assert all(one.count == 1 for one in found)


def test_discovered_reductions_are_told_in_words_and_make_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(_pair: object, party: str, _case: object, arch: str) -> tuple[Discovered, ...]:
        if party == "candidate":
            raise UnsupportedError("package:nothing")
        order = Order.of(4, chain(leaves(range(4))))
        return (Discovered(party, arch, {"triton": "1"}, "squares", 4, ("x", "y"), order, 7),)

    monkeypatch.setattr("equiv.order.discover", fake)
    monkeypatch.setattr("equiv.pairs.get", lambda _name: replace(PAIR, terms=None))
    assert cli.main(["order", "dsa_index"]) == 3
    said = capsys.readouterr().out
    assert "oracle (triton 1) on sm_90a and sm_100a: 7 of 4 squares of x, y  " in said
    assert "not traced: candidate on sm_100a: needs package:nothing" in said
    assert cli.main(["order", "dsa_index", "--json"]) == 2
    assert "pair 'dsa_index' describes no reduction (`terms`), and a file needs" in capsys.readouterr().err


def test_the_smallest_case_is_one_that_both_parties_can_do() -> None:
    class Picky(Party):
        def unsupported(self, case: Case) -> str:
            return "" if case.id == "fp8-b17-random" else "axis:x"

    wanted = cases(None, ["dsa_index"], ["smoke"])
    assert smallest(PAIR, wanted).id != "fp8-b17-random"
    assert smallest(replace(PAIR, candidate=Picky("m:f", ())), wanted).id == "fp8-b17-random"
    assert smallest(replace(PAIR, candidate=Picky("m:f", ())), wanted[1:]) in wanted[1:]


def test_a_pair_without_described_terms_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="terms:dsa_index: no reduction of this pair is described"):
        trace(replace(PAIR, terms=None), "oracle", cases(None, ["dsa_index"], [])[0], "sm_90a")


@pytest.mark.parametrize(
    ("problem", "missing", "code"),
    [("", False, 0), ("not declared", False, 1), ("", True, 3), ("not declared", True, 1)],
)
def test_the_exit_code_is_one_for_a_wrong_order_and_three_for_what_could_not_be_traced(
    problem: str, missing: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = Order.of(4, chain(leaves(range(4))))

    def fake(_pair: object, party: str, _case: object, arch: str) -> tuple[Traced, ...]:
        if missing and party == "candidate":
            raise UnsupportedError("package:nothing")
        return (Traced(party, arch, {"triton": "1"}, "key.sum", order, problem),)

    monkeypatch.setattr("equiv.order.trace", fake)
    assert cli.main(["order", "dsa_index", "--device", "emulated:sm_90a"]) == code
    said = capsys.readouterr().out
    assert "oracle (triton 1) on sm_90a: key.sum" in said
    assert ("not traced: candidate on sm_90a: needs package:nothing" in said) == missing


def test_a_gpu_cannot_be_traced(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["order", "dsa_index", "--device", "cuda:0"]) == 2
    assert "device 'cuda:0' cannot be traced; known: emulated:sm_90a, emulated:sm_100a" in capsys.readouterr().err


def test_as_json_the_orders_are_a_file_to_declare_with_whatever_is_declared_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    order = Order.of(4, chain(leaves(range(4))))

    def fake(_pair: object, party: str, _case: object, arch: str) -> tuple[Traced, ...]:
        lost = party == "candidate"
        found = Traced(party, arch, {"triton": "1"}, "key.sum", order, "nothing is declared for these versions", "wide")
        return (found, replace(found, reduction="more", order=None, problem="in 2 orders")) if lost else (found,)

    monkeypatch.setattr("equiv.order.trace", fake)
    assert cli.main(["order", "dsa_index", "--device", "emulated:sm_90a", "--json"]) == 1
    said = capsys.readouterr()
    assert said.err == "equiv: not traced: more of candidate on sm_90a: in 2 orders\n"
    (tmp_path / "orders.json").write_text(said.out)
    orders = OrderFile.read(tmp_path / "orders.json")
    for party in ("oracle", "candidate"):
        found = orders.find(party, {"triton": "1"}, "sm_90a", "wide")
        assert found is not None
        assert found.orders == {"key.sum": order}
