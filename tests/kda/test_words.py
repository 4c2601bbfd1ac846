"""Where an element of `kda` lies, in words, and what differing ones share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kda_cases import case

from equiv.kda import PAIR

HALF: dict[str, str] = {"slots": "in_order", "absent": "even"}
STEP: dict[str, Any] = {"batch": 5, "tokens": 2}
RECORD: dict[str, Any] = {"batch": 5, "tokens": 2, "mode": "record"}
COMMIT: dict[str, Any] = {"batch": 2, "tokens": 2, "mode": "commit"}
BOTH: dict[str, str] = {"slots": "in_order", "final": "other", "boundary": "source", "counts": "all"}


@pytest.mark.parametrize(
    ("axes", "regimes", "output", "index", "words"),
    [
        (STEP, HALF, "y", (0, 1, 1, 5, 9), "step 0, request 3, token 1, head 5, channel 9"),
        (STEP, HALF, "y_absent", (0, 2, 1, 130), "step 0, request 4, token 1, head 1, channel 2"),
        (STEP, HALF, "state", (2, 5, 7, 9), "slot 7 (request 3, token 0), head 5, value 7, key 9"),
        (STEP, HALF, "conv", (1, 768 + 130, 3), "slot 7 (request 3), k of head 1, channel 2, column 3"),
        (STEP, HALF, "state_rest", (98304 + 16384 * 5 + 129,), "slot 1, head 5, value 1, key 1, which nothing writes"),
        (STEP, HALF, "conv_rest", (2304 * 4 + 4 * 1536 + 2,),
         "slot 1, v of head 0, channel 0, column 2, which nothing writes"),
        (RECORD, HALF, "corrections", (1, 5, 1, 9), "request 3, head 5, token 1, value 9"),
        (RECORD, HALF, "record_rest", (6 * 512 + 513,), "corrections of absent request 2, head 1, word 1"),
        (RECORD, HALF, "record_rest", (4 * 6 * 512 + 7,), "key_gate of absent request 2, head 0, word 7"),
        (COMMIT, BOTH, "state", (3, 0, 0, 0), "slot 2 (request 1, boundary), head 0, value 0, key 0"),
        (COMMIT, BOTH, "conv_final", (2, 0, 0), "slot 4 (request 1, final), q of head 0, channel 0, column 0"),
    ],
)  # fmt: skip
def test_an_element_is_placed_by_request_slot_and_head(
    axes: dict[str, Any], regimes: dict[str, str], output: str, index: tuple[int, ...], words: str
) -> None:
    wanted = case(regimes, **axes)
    assert PAIR.place is not None
    assert PAIR.place(wanted, PAIR.inputs(wanted), output, index) == words


@pytest.mark.parametrize(
    ("output", "indices", "words"),
    [
        ("state", [(2, 0, 0, 0), (2, 5, 127, 1)], "all in slot 7 (request 3, token 0)"),
        ("state", [(at, 0, 0, 0) for at in range(4)], ""),
        ("y", [(0, 1, 0, 0, 0), (0, 1, 1, 5, 0)], "all in request 3"),
        ("y", [(0, 0, 0, 0, 0), (0, 1, 1, 5, 0)], ""),
        ("y_absent", [(0, 1, 0, 0), (0, 2, 1, 5)], "all in request 2, request 4"),
        ("conv", [(0, 5, 0), (0, 7, 3)], "all in slot 3 (request 1)"),
        ("state_rest", [(98304 + 16384 * 5 + 1,), (98304 + 16384 * 5 + 9,)],
         "all in head 5 of slot 1, which nothing writes"),
        ("state_rest", [(98304 * slot + 16384 * head,) for slot in range(3) for head in range(6)],
         "all in slots 0..2, which nothing writes"),
        ("state_rest", [(98304 * slot + 16384 * head,) for slot in range(9) for head in range(6)],
         "all in 9 slots, which nothing writes"),
        ("conv_rest", [(4 * (128 * at + 5),) for at in range(18)], "all in slot 0, which nothing writes"),
        ("conv_rest", [(4 * (128 * at + 5),) for at in (1, 7, 13)], "all in head 1 of slot 0, which nothing writes"),
    ],
)  # fmt: skip
def test_what_elements_share_is_said_by_slot_request_and_head(
    output: str, indices: list[tuple[int, ...]], words: str
) -> None:
    wanted = case(HALF, **STEP)
    assert PAIR.shared is not None
    assert PAIR.shared(wanted, PAIR.inputs(wanted), output, np.array(indices)) == words


def test_records_of_absent_requests_are_said_by_their_requests() -> None:
    wanted = case(HALF, **RECORD)
    assert PAIR.shared is not None
    found = PAIR.shared(wanted, PAIR.inputs(wanted), "record_rest", np.array([[6 * 512 + 5], [4 * 6 * 512 + 5]]))
    assert found == "all in records of absent request 2"
