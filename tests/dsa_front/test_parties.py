"""The kernels as a stranger calls them, how a case becomes such a call, and what serves which batch."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from front_cases import FP4, case

from equiv.device import device
from equiv.dsa_front import PAIR, parties
from equiv.errors import UsageError
from equiv.runner import run_party

if TYPE_CHECKING:
    from equiv.records import Bits

ORACLE = "equiv.triton_ref.dsa_front"


@pytest.mark.parametrize("party", ["oracle", "candidate"])
def test_every_axis_that_a_kernel_must_know_reaches_it(party: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    module = ORACLE if party == "oracle" else "equiv.cute.dsa.front_host"
    monkeypatch.setattr(f"{module}.dsa_front", lambda **given: seen.update(given))
    one = case(rows="packed", key_round="f32", key_floor=1e-10, eps=1e-3, key_eps=1e-4, **FP4)
    getattr(parties, party)(one, {"projected": 1, "w_out": 2})
    assert seen == {
        "projected": 1, "q_c": None, "w_out": 2, "key_at": 2112, "weight_at": 2240, "fp4": True, "mx": True,
        "key_round": "f32", "key_floor": 1e-10, "eps": 1e-3, "key_eps": 1e-4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "batch", "split"),
    [
        *(("sm_100a", batch, split) for batch, split in [(1, 4), (48, 4), (49, 2), (128, 2), (129, 1), (1024, 1)]),
        *(("sm_90a", batch, split) for batch, split in [(1, 4), (32, 4), (33, 2), (1024, 2)]),
    ],
)
def test_the_candidates_form_is_its_number_of_slices(arch: str, batch: int, split: int) -> None:
    assert PAIR.form is not None
    assert PAIR.form("candidate", case(batch=batch), arch) == f"split{split}"
    assert PAIR.form("oracle", case(batch=batch), arch) == ""
    assert f"split{split}" in PAIR.forms["candidate"]


def test_an_architecture_without_a_tiling_is_refused_by_name() -> None:
    assert PAIR.form is not None
    with pytest.raises(UsageError, match=re.escape("the front has no tiling for sm_120a, only for sm_90a, sm_100a")):
        PAIR.form("candidate", case(), "sm_120a")


def test_the_oracle_runs_without_a_case_and_with_its_defaults() -> None:
    latent, weights = torch.zeros(2, 1536), torch.zeros(4096, 1536)
    latent[0, 5], latent[1, 7] = 3, -5
    weights[129, 5], weights[130, 7] = 64, 1
    given = {
        "projected": torch.ones(2, 1696, dtype=torch.bfloat16),
        "q_c": latent.bfloat16(),
        "w_q": weights.bfloat16(),
        "w_qa": torch.ones(1536, dtype=torch.bfloat16),
        "norm_w": torch.ones(128),
        "norm_b": torch.zeros(128),
        "cache": torch.zeros((1, 64 * 132), dtype=torch.uint8),
        "slots": torch.tensor([-1, 3]),
        "q_out": torch.zeros((2, 4096), dtype=torch.uint8),
        "w_out": torch.zeros((2, 32), dtype=torch.bfloat16),
    }
    with device("emulated:sm_90a").active():
        importlib.import_module(ORACLE).dsa_front(**given, key_at=1536, weight_at=1664)
    codes = given["q_out"].view(torch.float8_e4m3fn).float()
    assert codes[0].nonzero().tolist() == [[129]]
    assert codes[0, 129] == 192 / 2.0**-1  # 192 = 384 * 2^-1: the scale is the least 2^k with 192 / 2^k <= 448
    assert codes[1].nonzero().tolist() == [[130]]
    assert codes[1, 130] == -320  # -5 = -320 * 2^-6
    assert given["w_out"][0, :2].tolist() == [2.0**-48, 2.0**-7]


def first(inputs: dict[str, Bits], count: int) -> dict[str, Bits]:
    """The inputs of the first few requests of a batch."""
    return {name: bits[:count] if name in {"projected", "q_c", "slots"} else bits for name, bits in inputs.items()}


@pytest.mark.parametrize(
    ("party", "arch", "batches"), [("oracle", "sm_90a", (37, 20, 1)), ("candidate", "sm_100a", (16, 3))]
)
def test_a_request_does_not_depend_on_the_others_of_its_tiling(party: str, arch: str, batches: tuple[int, ...]) -> None:
    """The oracle has one tiling for all batches, the candidate one for 1 to 16."""
    large = case(batch=batches[0])
    inputs, here = PAIR.inputs(large), device(f"emulated:{arch}")
    whole = run_party(PAIR, party, large, inputs, here).outputs
    for batch in batches[1:]:
        found = run_party(PAIR, party, case(batch=batch, pages=2), first(inputs, batch), here).outputs
        for name in ("q_codes", "weights", "key_codes"):
            np.testing.assert_array_equal(found[name], whole[name][:batch], err_msg=f"{name} of {batch}")


def test_between_tilings_with_other_slices_the_candidates_bits_change_as_declared() -> None:
    """From 48 to 49 requests the slices go from four to two: the same requests, other sums, some other codes."""
    inputs = PAIR.inputs(case({"latent": "mirrored", "w_q": "mirrored"}, batch=49, normalized=True))
    found = []
    for batch in (48, 49):
        one = case(batch=batch, normalized=True, pages=2)
        declared = PAIR.declared("candidate", {"nvidia-cutlass-dsl": "4.8.1"}, "sm_100a", one)
        found.append(PAIR.model(one, first(inputs, batch), declared)["q_codes"][:48])
    assert 0.001 < (found[0] != found[1]).mean() < 0.2
