"""What a kernel may have read instead: each hypothesis is another computation, its outputs cut as the case says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kda_cases import case

from equiv.kda import PAIR
from equiv.kda.misreadings import misread, misreadings
from equiv.rounding.kda_ledger import LEDGER

if TYPE_CHECKING:
    from equiv.records import Case

ABSENT = {"absent": "even", "null": "negative"}
CASES = {
    "step": case(),
    "dim-first": case(window="dim_first", bias=True),
    "tokens": case(tokens=3, regimes={"accepted": "all"}),
    "steps": case(tokens=2, steps=2),
    "absent": case(ABSENT, batch=3, tokens=2),
    "record": case({"absent": "last"}, tokens=3, mode="record"),
    "commit": case({"counts": "each", "final": "other", "boundary": "source"}, batch=4, tokens=3, mode="commit"),
    "nobody": case({"absent": "all"}),
}


def declared(one: Case) -> Any:
    return PAIR.declared("candidate", {"nvidia-cutlass-dsl": "4.8.1"}, "sm_90a", one)


def found(one: Case) -> dict[str, set[str]]:
    """Hypothesis -> outputs that differ under it, for those that show in the case."""
    given, declaration = PAIR.inputs(one), declared(one)
    sound = PAIR.model(one, given, declaration)
    shown = {}
    for words, changed in misreadings(one, given):
        other = misread(one, given, changed, declaration, LEDGER)
        assert {name: (x.shape, x.dtype) for name, x in other.items()} == {
            name: (x.shape, x.dtype) for name, x in sound.items()
        }, words
        shown[words] = {name for name in sound if not np.array_equal(other[name], sound[name])}
    return shown


@pytest.mark.parametrize("name", CASES)
def test_every_hypothesis_gives_outputs_of_the_same_shapes_and_most_of_them_other_bits(name: str) -> None:
    shown = found(CASES[name])
    assert sum(map(bool, shown.values())) >= 0.8 * len(shown)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_that_reads_what_is_there_gives_the_models_outputs(name: str) -> None:
    one = CASES[name]
    given, declaration = PAIR.inputs(one), declared(one)
    sound, read = PAIR.model(one, given, declaration), misread(one, given, {}, declaration, LEDGER)
    for output, bits in sound.items():
        np.testing.assert_array_equal(read[output], bits, err_msg=output)


def test_what_is_copied_shows_a_wrong_place_and_what_is_computed_from_it_follows() -> None:
    step, tokens, absent, commit = (found(CASES[name]) for name in ("step", "tokens", "absent", "commit"))
    everything = {"y", "conv", "state", "conv_rest", "state_rest"}
    assert step["each request's slot were its number in the batch + 1"] == everything
    assert step["the windows were read one column late"] == {"y", "conv", "state"}
    assert step["the states were not read, but zero"] == {"y", "state"}
    assert step["dt_bias were not added"] == {"y", "state"}
    assert tokens["the windows were read from their first column, whatever was accepted"] == {"y", "conv", "state"}
    assert tokens["accepted counts were not read, but 1"] == {"y", "conv", "state"}
    assert tokens["each token's state were left in the next token's slot"] == {"state"}
    assert absent["a negative slot were slot 0"] >= {"y_absent", "conv_rest", "state_rest"}
    assert absent["a negative slot were counted from the last one"] >= {"y_absent", "conv_rest", "state_rest"}
    assert commit["a token fewer than was accepted were committed"] >= {"conv_final", "state"}
    assert commit["the boundary's slot got nothing"] == {"conv", "conv_final", "state"}


def test_nobody_reads_anything_where_nobody_has_a_slot() -> None:
    assert set(found(CASES["nobody"])) == {"every slot <= 0 were slot 0"}
