"""`equiv explain`: seeded faults are named by the change of the model that gives their bits, or as faults of place."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equiv_fake
import numpy as np
import pytest
from dsa_faults import faulty

from equiv.casefile import load
from equiv.cli import main
from equiv.device import device
from equiv.dsa_index import PAIR
from equiv.errors import UsageError
from equiv.explain import Explanation, explain
from equiv.report.explanation import render

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.pairs import Pair
    from equiv.records import Bits, Case

CASES = {case.id: case for case in load(Path(__file__).parents[1] / "cases" / "dsa_index.toml", PAIR)}
DEVICE = "emulated:sm_90a"
TRITON = {"triton": version("triton")}


def found(pair: Pair, name: str) -> Explanation:
    (one,) = explain(pair, CASES[name], device(DEVICE))
    assert one.party == "candidate"
    return one


def text(one: Explanation, name: str) -> str:
    return " ".join(render(CASES[name], DEVICE, [one]).split())


def test_a_fault_of_one_row_is_named_by_that_row_and_nothing_else() -> None:
    one = found(faulty("doubled_exact_powers"), "fp8-b16-amax-edges")
    assert one.explained
    assert [reading.changes for reading in one.readings] == [
        ("dsa.R12 (q: scale, the power of two >= s) were doubled where exact",)
    ]
    assert "AS IF dsa.R12 (q: scale, the power of two >= s) were doubled where exact: this gives every bit" in text(
        one, "fp8-b16-amax-edges"
    )


def test_a_helper_used_by_two_rows_is_found_as_two_changes_and_what_the_case_cannot_tell_apart_is_said() -> None:
    one = found(faulty("truncating_e4m3"), "fp8-b17-ties")
    assert one.explained
    cut = "were mantissa cut first"
    both = (f"dsa.R14 (q: FP8 code) {cut}", f"dsa.K3d (key: FP8 code) {cut}")
    assert both in [reading.changes for reading in one.readings]
    assert all(len(reading.changes) == 2 for reading in one.readings)
    assert all(reading.what == tuple(words.split()[0] for words in reading.changes) for reading in one.readings)
    assert ("dsa.R14", "dsa.K3d") in [reading.what for reading in one.readings]
    assert "this case cannot tell these apart" in text(one, "fp8-b17-ties")


def test_bytes_that_nothing_writes_are_a_fault_of_place_and_no_row_is_blamed() -> None:
    one = found(faulty("wrapping_slots"), "fp8-b15-skip-even")
    assert (one.placed, one.readings, one.explained) == (("cache_rest",), (), True)
    said = text(one, "fp8-b15-skip-even")
    assert "all in slot 127 (page 1), which nothing writes" in said
    assert "STATE FAULT in cache_rest" in said
    assert "AS IF" not in said


def test_another_order_is_named_where_it_is_declared_wrongly() -> None:
    def mistaken(party: str, versions: Mapping[str, str], arch: str, form: str) -> Any:
        said = PAIR.declaration(party, versions, arch, form)
        orders = {**said.orders, "key.squares": PAIR.declaration("oracle", TRITON, arch, form).orders["key.squares"]}
        return replace(said, orders=orders) if (party, arch) == ("candidate", "sm_90a") else said

    one = found(replace(PAIR, declaration=mistaken), "fp8-key-aimed-ties")
    assert one.explained
    right = "the terms of key.squares were added in another order: as the candidate on sm_100a declares"
    assert (right,) in [reading.changes for reading in one.readings]
    assert {reading.what for reading in one.readings} == {("order key.squares",)}


def test_an_input_that_was_misread_is_named_in_the_words_of_the_pair() -> None:
    def without_bias(case: Case, tensors: Mapping[str, Any]) -> None:
        from equiv.dsa_index.parties import candidate

        candidate(case, {**tensors, "norm_b": tensors["norm_b"] * 0})

    def misreadings(case: Case, inputs: Mapping[str, Bits]) -> Iterator[tuple[str, Mapping[str, Bits]]]:
        yield "the LayerNorm's bias were not added", {"norm_b": np.zeros_like(inputs["norm_b"])}

    equiv_fake.without_bias = without_bias  # type: ignore[attr-defined]
    candidate = replace(PAIR.candidate, entry="equiv_fake:without_bias")
    one = found(replace(PAIR, candidate=candidate, misreadings=misreadings), "fp8-b17-random")
    assert [reading.changes for reading in one.readings] == [("the LayerNorm's bias were not added",)]
    assert [reading.what for reading in one.readings] == [("inputs",)]


def test_what_nothing_explains_is_said_with_the_best_that_was_found() -> None:
    def noisy(case: Case, tensors: Mapping[str, Any]) -> None:
        from equiv.dsa_index.parties import candidate

        candidate(case, tensors)
        tensors["q_out"][3, 5] ^= 1

    equiv_fake.noisy = noisy  # type: ignore[attr-defined]
    one = found(replace(PAIR, candidate=replace(PAIR.candidate, entry="equiv_fake:noisy")), "fp8-b17-random")
    assert not one.explained
    assert one.wrong["q_codes"].count == 1
    assert f"nothing that was tried ({one.tried} models) gives every bit of q_codes" in text(one, "fp8-b17-random")


def test_the_command_says_that_there_is_nothing_to_explain_and_takes_one_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "dsa_index::fp8-b17-random"]) == 0
    assert "both parties equal their models: there is nothing to explain" in capsys.readouterr().out
    assert main(["explain", "dsa_index"]) == 2
    assert "explain takes one, PAIR::CASE" in capsys.readouterr().err


def test_a_pair_without_a_ledger_or_a_declaration_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="pair 'dsa_index' brings no rounding ledger"):
        explain(replace(PAIR, ledger=None), CASES["fp8-b17-random"], device(DEVICE))
    unknown = replace(PAIR, declaration=lambda *_: None)
    with pytest.raises(UsageError, match=r"oracle: nothing is declared for triton .* on sm_90a: no model to change"):
        explain(unknown, CASES["fp8-b17-random"], device(DEVICE))
