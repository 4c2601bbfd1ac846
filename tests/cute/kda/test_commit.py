"""`RecoverCommit`: record, then commit, leaves the bits of the sequential step; and touches nothing but its slots."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from kda_fused import ARCHES, PLAN, bits, commit, run
from kda_plain import Step, strided_copy

from equiv.cute.kda.commit import RecoverCommit
from equiv.errors import UsageError

T = 3
REQUESTS = 6
# Per request: accepted, final slot, second slot, its tokens; the sources are slots 1 .. 6.
PLANNED = (
    (1, 1, 0, 0),  # into its own slot
    (3, 7, 8, 2),
    (2, 9, 3, 1),  # the second destination is its own slot
    (0, 10, 11, 0),  # nothing accepted
    (3, 0, 12, 1),  # no final slot
    (2, 13, 14, 0),  # no token for the second slot
)
FORMS = {"f32-dim-last": (torch.float32, False), "bf16-dim-first": (torch.bfloat16, True)}


def inputs(form: str, *, record: bool) -> Step:
    """The same rows and source states for both ways; T slots a request for the sequential one."""
    state, dim_first = FORMS[form]
    step = Step(batch=REQUESTS, tokens=T, state=state, dim_first=dim_first, record=record, seed=4)
    source = torch.arange(1, REQUESTS + 1).int()[:, None]
    step.tensors["slots"] = source if record else source + REQUESTS * torch.arange(T).int()
    step.tensors["accepted"] = torch.ones(REQUESTS, dtype=torch.int32)
    return step


@cache
def committed(form: str, arch: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Pools after the sequential step, after the record, and after the commit."""
    sequential = run(inputs(form, record=False), arch)
    step = inputs(form, record=True)
    left = run(step, arch)
    before = {name: strided_copy(left[name]) for name in ("state", "conv_state")}
    commit(step, arch, left, dict(zip(PLAN, torch.tensor(PLANNED).int().T.contiguous(), strict=True)))
    return sequential, before, left


def destinations() -> list[tuple[int, int, int]]:
    """(request, slot, tokens) of everything that the plan writes."""
    found = []
    for request, (count, final, second, some) in enumerate(PLANNED):
        if count and final:
            found.append((request, final, count))
            if second and some:
                found.append((request, second, some))
    return found


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("form", FORMS)
def test_a_committed_state_has_the_bits_of_the_sequential_one(form: str, arch: str) -> None:
    sequential, _, left = committed(form, arch)
    for request, slot, tokens in destinations():
        after = sequential["state"][request + 1 + REQUESTS * (tokens - 1)]
        np.testing.assert_array_equal(bits(left["state"][slot]), bits(after), err_msg=f"request {request}, slot {slot}")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("form", FORMS)
def test_a_committed_window_begins_after_the_accepted_tokens(form: str, arch: str) -> None:
    _, before, left = committed(form, arch)
    for request, slot, tokens in destinations():
        source = before["conv_state"][request + 1][:, tokens - 1 : tokens + 2]
        np.testing.assert_array_equal(bits(left["conv_state"][slot][:, :3]), bits(source))
        np.testing.assert_array_equal(bits(left["conv_state"][slot][:, 3:]), bits(before["conv_state"][slot][:, 3:]))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("form", FORMS)
def test_slots_outside_the_plan_stay_as_they_were(form: str, arch: str) -> None:
    _, before, left = committed(form, arch)
    for pool in ("state", "conv_state"):
        rest = np.setdiff1d(np.arange(len(before[pool])), [slot for _, slot, _ in destinations()])
        assert len(rest) > REQUESTS
        np.testing.assert_array_equal(bits(left[pool][rest]), bits(before[pool][rest]), err_msg=pool)


def test_a_record_of_one_token_or_a_third_type_is_refused() -> None:
    with pytest.raises(UsageError, match="record needs more than one token a request; got tokens=1"):
        RecoverCommit(2, 1)
    with pytest.raises(UsageError, match="state must be 'f32' or 'bf16'; got state='f16'"):
        RecoverCommit(2, 2, state="f16")
