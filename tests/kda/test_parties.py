"""How a case of `kda` becomes calls of kernels: one a step, on its rows, and one more for a commit."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from kda_cases import case

from equiv.kda import PAIR, parties

MODULES = {"oracle": "equiv.triton_ref.kda", "candidate": "equiv.cute.kda.host"}


def called(party: str, monkeypatch: pytest.MonkeyPatch, **axes: Any) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """The tensors that a party got, and (function, keywords) of each call it made."""
    wanted = case(**axes)
    calls: list[Any] = []
    module = ModuleType(MODULES[party])
    for name in ("kda_step", "kda_record", "kda_commit"):
        setattr(module, name, lambda _name=name, **given: calls.append((_name, given)))
    monkeypatch.setitem(sys.modules, MODULES[party], module)
    tensors = {
        spec.name: torch.arange(spec.shape[0]).view(-1, *[1] * (len(spec.shape) - 1)).expand(spec.shape)
        for spec in PAIR.layout(wanted)
    }
    tensors["slots"] = tensors["slots"] - 1
    getattr(parties, party)(wanted, tensors)
    return tensors, calls


STEP = {"rows", "conv_w", "conv_bias", "conv_state", "a_log", "dt_bias", "f_b", "norm_w", "slots", "accepted", "state",
        "y", "heads", "tokens", "gate_mode", "lower_bound", "scale", "eps"}  # fmt: skip


@pytest.mark.parametrize("party", MODULES)
def test_each_step_gets_its_own_rows_counts_and_outputs(party: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, calls = called(party, monkeypatch, batch=3, tokens=2, steps=3, kernel="wide", ctas=5)
    assert [name for name, _ in calls] == ["kda_step"] * 3
    for at, (_, given) in enumerate(calls):
        assert given["rows"][:, 0].tolist() == list(range(6 * at, 6 * at + 6))
        assert given["y"][:, 0].tolist() == list(range(6 * at, 6 * at + 6))
        assert given["accepted"].tolist() == [at] * 3
        assert set(given) == STEP | ({"kernel", "ctas"} if party == "candidate" else set())
    assert calls[0][1]["conv_bias"] is None


def test_every_axis_that_a_kernel_must_know_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ((_, given),) = called(
        "candidate", monkeypatch, heads=12, tokens=2, gate_mode=1, bias=True, lower_bound=-1.0, eps=0.5, ctas=7
    )
    names = ("heads", "tokens", "gate_mode", "lower_bound", "eps", "kernel", "ctas")
    assert [given[name] for name in names] == [12, 2, 1, -1.0, 0.5, "ws", 7]
    assert torch.tensor(given["scale"]).view(torch.int32).item() == 0x3DB504F3
    assert given["conv_bias"].shape == (4608,)


@pytest.mark.parametrize("party", MODULES)
def test_a_commit_follows_its_record(party: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, calls = called(party, monkeypatch, tokens=2, mode="commit")
    assert [name for name, _ in calls] == ["kda_record", "kda_commit"]
    assert set(calls[0][1]) - {"kernel", "ctas"} == STEP | {"corrections", "key_gate"}
    given = calls[1][1]
    assert set(given) - {"kernel", "ctas"} == {
        "conv_state", "state", "corrections", "key_gate", "a_log", "dt_bias", "slots", "counts", "final", "boundary",
        "boundary_counts", "heads", "tokens", "lower_bound",
    }  # fmt: skip
    assert given["counts"] is tensors["counts"]


def test_only_the_oracle_gets_zero_for_a_negative_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {party: called(party, monkeypatch, batch=3)[1][0][1]["slots"][:, 0].tolist() for party in MODULES}
    assert seen == {"oracle": [0, 0, 1], "candidate": [-1, 0, 1]}
