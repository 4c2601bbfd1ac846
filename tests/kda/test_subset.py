"""Requests alone: what the model says of them is what it says of them in their batch, also of absent ones."""

from __future__ import annotations

import numpy as np
import pytest

from equiv.kda import PAIR
from equiv.kda.subset import recut, subset
from equiv.plan import cases
from equiv.records import Case


def case(**axes: int | str) -> Case:
    defaults = {axis.name: axis.default for axis in PAIR.axes}
    return Case("kda", "a", "", 3, (), {**defaults, "heads": 6, **axes}, {})


@pytest.mark.parametrize(
    ("mode", "tokens", "steps"), [("step", 1, 2), ("step", 3, 2), ("record", 2, 1), ("commit", 3, 1)]
)
@pytest.mark.parametrize("absent", ["none", "even", "first"])
def test_a_request_alone_gives_what_it_gives_in_its_batch(mode: str, tokens: int, steps: int, absent: str) -> None:
    from dataclasses import replace

    one = case(batch=4, mode=mode, tokens=tokens, steps=steps)
    regimes = {piece: known[0] for piece, known in PAIR.regimes.items()} | {"absent": absent}
    one = replace(one, regimes=regimes | ({"final": "mixed", "boundary": "mixed"} if mode == "commit" else {}))
    inputs = PAIR.inputs(one)
    declared = PAIR.declared("oracle", {"triton": "3.8.0"}, "sm_90a", one)
    whole = PAIR.model(one, inputs, declared)
    for requests in ([0], [1], [3], [3, 2, 1, 0]):
        some = subset(one, inputs, requests)
        found, expected = PAIR.model(some.case, some.inputs, declared), some.part(whole)
        assert {*found} - {*expected} == {"conv_rest", "state_rest"} | ({"record_rest"} if mode != "step" else set())
        assert all(np.array_equal(found[output], bits) for output, bits in expected.items())
        assert expected["y"].shape[1] + expected["y_absent"].shape[1] == len(requests)


def test_only_the_persistent_kernel_has_a_grid_that_is_free() -> None:
    assert [(label, other.axes["ctas"]) for label, other in recut(case())] == [("1 CTA", 1), ("5 CTAs", 5)]
    assert [label for label, _ in recut(case(ctas=5))] == ["1 CTA"]
    assert list(recut(case(kernel="wide"))) == []


def test_every_case_of_the_pair_has_its_subsets() -> None:
    for one in cases(None, ["kda"], ["smoke"]):
        inputs = PAIR.inputs(one)
        some = subset(one, inputs, [0])
        shapes = {spec.name: spec.shape for spec in PAIR.layout(some.case) if spec.role != "output"}
        assert {name: some.inputs[name].shape for name in shapes} == shapes
