"""Verdicts survive the way through JSON, whole."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from equiv import wire
from equiv.errors import RecordError
from equiv.records import Difference, Element, OutputVerdict, Status, Verdict

ELEMENT = Element((1, 2), "request 1, head 2", 0x7F, 0x80, math.nan, -0.0, None)
VERDICT = Verdict(
    "fake::a",
    "emulated:sm_90a",
    7,
    Status.MISMATCH,
    "two lines\nof text",
    (
        OutputVerdict(
            "y",
            Status.MISMATCH,
            "1 of 6",
            (Difference("y", "model", "candidate", "f32", 1, 6, (ELEMENT,), "row 1"),),
            "candidate",
            0.25,
            3,
        ),
    ),
    ("order of y",),
    ("by published model",),
    1.5,
    0.5,
    1000,
    {"triton": "3.8.0"},
    "equiv run fake::a",
)


def test_a_verdict_comes_back_as_it_went() -> None:
    data = json.loads(json.dumps(wire.encode(VERDICT), allow_nan=False))
    back = wire.verdict(data)
    assert repr(back) == repr(VERDICT)  # repr, because NaN equals nothing
    assert math.isnan(back.outputs[0].differences[0].worst[0].expected)
    assert math.copysign(1, back.outputs[0].differences[0].worst[0].got) == -1
    assert isinstance(back.status, Status)


def test_what_is_written_has_plain_types_only() -> None:
    data = wire.encode(Element((np.int64(3),), "", np.uint16(5), 6, np.float32(1.5), math.inf, np.int64(1)))  # type: ignore[arg-type]
    assert [type(data[key]) for key in ("expected_bits", "expected", "got", "ulps")] == [int, float, str, int]
    assert type(data["index"][0]) is int
    assert type(wire.encode(VERDICT)["status"]) is str
    assert data["got"] == "inf"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"status": "FINE"}, "not a Verdict: 'FINE' is not a valid Status"),
        ({"colour": "red"}, "not a Verdict: .*unexpected keyword argument 'colour'"),
    ],
)
def test_a_damaged_verdict_is_named(change: dict[str, str], text: str) -> None:
    with pytest.raises(RecordError, match=text):
        wire.verdict(wire.encode(VERDICT) | change)
