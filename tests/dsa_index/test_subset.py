"""Requests alone: what the model says of them is what it says of them in their batch."""

from __future__ import annotations

import numpy as np
import pytest

from equiv import pairs
from equiv.plan import cases


@pytest.mark.parametrize(
    "name", ["dsa_index::fp8-b17-ties", "dsa_index::fp8-b15-skip-even", "dsa_index::fp4-b15", "dsa_front::fp8-b4"]
)
def test_a_request_alone_gives_what_it_gives_in_its_batch(name: str) -> None:
    (case,) = cases(None, [name], [])
    pair = pairs.get(case.pair)
    assert pair.subset is not None
    inputs, batch = pair.inputs(case), int(case.axes["batch"])
    declared = pair.declared("oracle", {"triton": "3.8.0"}, "sm_90a", case)
    whole = pair.model(case, inputs, declared)
    for requests in ([0], [batch // 2], [batch - 1], list(range(batch))[::-1], [1, 0]):
        some = pair.subset(case, inputs, requests)
        found, expected = pair.model(some.case, some.inputs, declared), some.part(whole)
        assert {*found} - {*expected} == {"cache_rest"}
        assert all(np.array_equal(found[output], bits) for output, bits in expected.items())
        assert len(expected["weights"]) == len(requests)


def test_a_request_that_is_not_there_is_refused() -> None:
    (case,) = cases(None, ["dsa_index::fp8-b17-ties"], [])
    pair = pairs.get(case.pair)
    assert pair.subset is not None
    with pytest.raises(IndexError):
        pair.subset(case, pair.inputs(case), [17])
