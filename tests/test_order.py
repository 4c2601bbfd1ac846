"""`equiv order`: what parties do is what is declared; a wrong declaration is named, and so is what is not traced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from equiv import cli, order, pairs
from equiv.emulator.reductions import Reduction
from equiv.errors import UnsupportedError
from equiv.order import Discovered, Traced, discover, smallest, trace
from equiv.pairs import Party
from equiv.plan import cases
from equiv.report.order import render
from equiv.rounding.declaration import Declaration, Terms
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


KDA = pairs.get("kda")
PARTIES = [(party, arch) for party in ("oracle", "candidate") for arch in ("sm_90a", "sm_100a")]


@pytest.fixture(scope="module", params=PARTIES, ids=" ".join)
def traced_kda(request: pytest.FixtureRequest) -> tuple[str, str, Any]:
    """A party, an architecture, and what the party adds in the smallest case of kda."""
    party, arch = request.param
    return party, arch, order._reductions(KDA, party, smallest(KDA, cases(None, ["kda"], [])), arch)


@pytest.mark.slow
def test_the_orders_of_kda_are_those_declared_and_a_wrong_one_is_found(
    traced_kda: tuple[str, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    party, arch, reductions = traced_kda
    monkeypatch.setattr("equiv.order._reductions", lambda *_: reductions)
    case = smallest(KDA, cases(None, ["kda"], []))
    found = trace(KDA, party, case, arch)
    done = ["gate.0", "q.squares", "dot", "out", "norm.squares"]
    assert [(one.reduction, one.problem) for one in found if one.order] == [(name, "") for name in done]
    left = {one.reduction: one.untraced for one in found if not one.order}
    assert left.pop("gate.1") == "this case does not add so; one with gate_mode = 1 does"
    assert left == (
        {"commit.squares": "this case does not add so; one with mode = commit does"} if party == "candidate" else {}
    )
    for name in done:

        def tampered(*asked: Any, name: str = name) -> Any:
            said = KDA.declaration(*asked)
            return replace(said, orders={**said.orders, name: Order.of(128, chain(leaves(range(128))))})

        again = trace(replace(KDA, declaration=tampered), party, case, arch)
        assert [one.reduction for one in again if one.problem] == [name]


FRONT = pairs.get("dsa_front")


@pytest.mark.slow
@pytest.mark.parametrize(("party", "arch"), PARTIES)
def test_the_orders_of_dsa_front_are_those_declared_and_its_projection_is_said_to_be_untraced(
    party: str, arch: str
) -> None:
    found = trace(FRONT, party, smallest(FRONT, cases(None, ["dsa_front"], [])), arch)
    done = ["row.squares", "key.sum", "key.squares"]
    assert [(one.reduction, one.problem) for one in found if one.order] == [(name, "") for name in done]
    assert [one.untraced[:38] for one in found if not one.order] == ["operands of wgmma and tcgen05.mma are "]
    assert all(one.partly for one in found)


def _said(
    orders: dict[str, Order], terms: dict[str, Terms], *found: Reduction, partly: tuple[str, ...] = (), **axes: Any
) -> list[Traced]:
    """What is said of a pair that declares some orders and describes some terms, where these reductions were found."""
    case = smallest(KDA, cases(None, ["kda"], []))
    told = replace(
        KDA, terms=lambda: terms, declaration=lambda *_: Declaration("oracle", {}, "sm_90a", orders, {}, "packed")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("equiv.order._reductions", lambda *_: ({}, list(found), partly))
        return list(trace(told, "oracle", replace(case, axes={**case.axes, **axes}), "sm_90a"))


def _squares(order: Order, *buffers: str) -> Reduction:
    terms = tuple(tuple((buffer, 2 * i, 2) for buffer in buffers) for i in range(order.terms))
    return Reduction("squares", terms, (), "", order)


UP, DOWN = (Order.of(4, chain(leaves(indices))) for indices in (range(4), range(3, -1, -1)))


def test_what_nothing_describes_or_no_trace_shows_is_said_to_be_not_traced() -> None:
    terms = {
        "inside": Terms("products", 4, ("rows",), unfollowed="it is inside wgmma"),
        "other": Terms("squares", 4, ("rows",), where={"gate_mode": 1}),
        "commit": Terms("squares", 4, ("rows",), where={"mode": "commit"}),
    }
    orders = dict.fromkeys(("inside", "other", "plain"), UP)
    found = _said(orders, terms, _squares(UP, "rows"))
    assert [(one.reduction, one.order, one.problem) for one in found] == [
        ("inside", None, ""), ("other", None, ""), ("plain", None, ""),
    ]  # fmt: skip
    assert [one.untraced for one in found] == [
        "it is inside wgmma",
        "this case does not add so; one with gate_mode = 1 does",
        "the pair does not describe its terms (`terms`)",
    ]
    text = render("kda::x", found, [], ["oracle multi: kda::y"])
    assert "oracle packed () on sm_90a: inside  not traced: it is inside wgmma" in text
    assert "  as declared" not in text
    assert text.endswith(
        "not traced, as this case has other forms (`equiv order CASE`):\n  oracle multi: kda::y\n\n"
        "0 orders traced, 0 not as declared, 3 not traced"
    )
    assert [one.problem for one in _said(orders, terms, _squares(UP, "rows"), gate_mode=1)] == ["", "", ""]
    assert _said({}, terms, _squares(UP, "rows"), mode="commit")[0].problem == "not declared"


def test_an_order_that_is_described_and_not_found_is_no_order_as_declared() -> None:
    (one,) = _said({"x": UP}, {"x": Terms("squares", 4, ("rows",))}, _squares(UP, "rows", "state"))
    assert (one.order, one.untraced) == (None, "")
    assert one.problem == "no traced reduction is a sum of 4 squares of rows"


def test_what_is_not_found_where_a_launch_was_followed_in_part_is_not_traced() -> None:
    terms = {"x": Terms("squares", 4, ("rows",))}
    (one,) = _said({"x": UP}, terms, partly=("k in 2 of 8 clusters",))
    assert (one.problem, one.untraced) == ("", "not found; followed in part: k in 2 of 8 clusters")
    assert "followed in part: oracle on sm_90a: k in 2 of 8 clusters" in render("kda::x", [one], [])
    (one,) = _said({"x": UP}, terms, _squares(DOWN, "rows"), partly=("k in 2 of 8 clusters",))
    assert one.problem.startswith("declared at level")


def test_copies_of_weights_and_memory_that_is_no_tensor_do_not_hide_a_sum() -> None:
    terms = {"x": Terms("squares", 4, ("rows",), ("conv_w",))}
    for buffers in (("rows",), ("conv_w", "rows"), ("rows", "tensor#2")):
        assert [one.problem for one in _said({"x": UP}, terms, _squares(UP, *buffers))] == [""]


def test_names_that_share_their_terms_must_declare_together_what_is_traced() -> None:
    terms = dict.fromkeys(("x", "y"), Terms("squares", 4, ("rows",)))
    up, down = (_squares(one, "rows") for one in (UP, DOWN))
    assert [one.problem for one in _said({"x": UP, "y": DOWN}, terms, up, down)] == ["", ""]
    assert [one.problem for one in _said({"x": UP, "y": UP}, terms, up)] == ["", ""]
    assert "2 traced reductions are" in _said({"x": UP, "y": UP}, terms, up, down)[0].problem
    assert [bool(one.problem) for one in _said({"x": UP, "y": DOWN}, terms, up)] == [False, True]


def test_forms_that_the_case_does_not_have_are_named_with_cases_that_do() -> None:
    traced = [Traced("oracle", "sm_90a", {}, "dot", UP, "", "packed")]
    found = dict(line.split(": ") for line in order.other_forms(KDA, cases(None, ["kda"], []), traced))
    assert list(found) == [f"oracle {form}" for form in KDA.forms["oracle"] if form != "packed"]
    for form, name in found.items():
        (case,) = cases(None, [name], [])
        assert KDA.form_of("oracle", case, "sm_90a") == form.removeprefix("oracle ")
    assert order.other_forms(KDA, [], traced)[0] == "oracle packed-bf16: no case has it"


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
        four = Order.of(4, chain(leaves(range(4))))
        return (Discovered(party, arch, {"triton": "1"}, "squares", 4, ("x", "y"), four, 7),)

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
    four = Order.of(4, chain(leaves(range(4))))

    def fake(_pair: object, party: str, _case: object, arch: str) -> tuple[Traced, ...]:
        if missing and party == "candidate":
            raise UnsupportedError("package:nothing")
        return (Traced(party, arch, {"triton": "1"}, "key.sum", four, problem),)

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
    four = Order.of(4, chain(leaves(range(4))))

    def fake(_pair: object, party: str, _case: object, arch: str) -> tuple[Traced, ...]:
        lost = party == "candidate"
        found = Traced(party, arch, {"triton": "1"}, "key.sum", four, "nothing is declared for these versions", "wide")
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
        assert found.orders == {"key.sum": four}


def test_what_cannot_be_traced_is_said_and_changes_no_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(_pair: object, party: str, _case: object, arch: str) -> tuple[Traced, ...]:
        found = Traced(party, arch, {"triton": "1"}, "key.sum", UP, "")
        return found, replace(found, reduction="more", order=None, untraced="it is inside wgmma")

    monkeypatch.setattr("equiv.order.trace", fake)
    assert cli.main(["order", "dsa_index", "--device", "emulated:sm_90a"]) == 0
    assert "2 orders traced, 0 not as declared, 2 not traced" in capsys.readouterr().out
    assert cli.main(["order", "dsa_index", "--device", "emulated:sm_90a", "--json"]) == 0
    assert "equiv: not traced: more of oracle on sm_90a: it is inside wgmma\n" in capsys.readouterr().err
