"""The kernels as a stranger calls them: torch tensors, plain arguments, no case; and how a case becomes such a call."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from dsa_reference import case, inputs, run

import equiv
from equiv.dsa_index import parties
from equiv.errors import UsageError

KERNELS = ("equiv.triton_ref.dsa", "equiv.cute.dsa.index")


def tensors(batch: int) -> dict[str, torch.Tensor]:
    """Small integers as data, slots from the last of the first page on."""
    count = torch.arange(batch * 4096)
    return {
        "q": (count % 97 - 48).to(torch.bfloat16).view(batch, 32, 128),
        "projected": (count[: batch * 160] % 89 - 44).to(torch.bfloat16).view(batch, 160),
        "norm_w": torch.ones(128),
        "norm_b": torch.zeros(128),
        "cache": torch.full((2, 64 * 132), 0x5A, dtype=torch.uint8),
        "slots": 63 + torch.arange(batch),
        "q_out": torch.zeros((batch, 4096), dtype=torch.uint8),
        "w_out": torch.zeros((batch, 32), dtype=torch.bfloat16),
    }


@pytest.mark.parametrize("module", KERNELS)
def test_a_kernel_runs_without_a_case_and_with_its_defaults(module: str) -> None:
    given = tensors(3)
    with equiv.device("emulated:sm_90a").active():
        importlib.import_module(module).dsa_index(**given, key_at=0, weight_at=128)
    assert given["w_out"][0].tolist() == [(at % 89 - 44) * 2.0**-3 * 2.0**-6 for at in range(128, 160)]  # 48 / 448
    values = given["q_out"][0].view(torch.float8_e4m3fn).float()
    assert values[:49].tolist() == (torch.arange(-48, 1) * 8.0).to(torch.float8_e4m3fn).float().tolist()
    spared = torch.ones(2, 64 * 132, dtype=torch.bool)
    spared[0, [*range(63 * 128, 64 * 128), *range(8192 + 252, 8448)]] = False
    spared[1, [*range(2 * 128), *range(8192, 8200)]] = False
    assert (given["cache"][spared] == 0x5A).all()
    assert given["cache"][0, -4:].view(torch.float32).tolist() == [2.0**-7]


@pytest.mark.parametrize("module", KERNELS)
def test_an_unknown_rounding_of_the_key_is_refused(module: str) -> None:
    with pytest.raises(UsageError, match=r"^key_round must be 'bf16' or 'f32'; got key_round='fp16'$"):
        importlib.import_module(module).dsa_index(**tensors(1), key_at=0, weight_at=128, key_round="fp16")


@pytest.mark.parametrize("party", ["oracle", "candidate"])
def test_every_axis_that_a_kernel_must_know_reaches_it(party: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    module = KERNELS[party == "candidate"]
    monkeypatch.setattr(f"{module}.dsa_index", lambda **given: seen.update(given))
    one = case(format="fp4", scale="mx", rows="packed", key_round="f32", key_floor=1e-10, eps=1e-3)
    getattr(parties, party)(one, {"q": 1, "w_out": 2})
    assert seen == {
        "q": 1, "w_out": 2, "key_at": 2112, "weight_at": 2240, "fp4": True, "mx": True, "key_round": "f32",
        "key_floor": 1e-10, "eps": 1e-3,
    }  # fmt: skip


def test_both_parties_agree_through_their_adapters() -> None:
    one = case()
    given = inputs(one)
    oracle, candidate = (run(party, one, given, "sm_90a") for party in ("oracle", "candidate"))
    for name in ("q_codes", "weights", "cache_rest"):
        np.testing.assert_array_equal(oracle[name], candidate[name], err_msg=name)
