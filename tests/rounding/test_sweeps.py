"""The C twins against the checksums of the H200, binade by binade."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest

from equiv.rounding import sweeps


def chosen(instruction: str) -> list[int]:
    """Binades where something special happens, and one that changes from one instruction to the next."""
    return [0, 127, 382, 511, sum(instruction.encode()) % sweeps.BINADES]


@pytest.mark.parametrize("instruction", sweeps.TWINS)
def test_chosen_binades_equal_the_gpu(instruction: str) -> None:
    assert sweeps.differing(instruction, chosen(instruction)) == []


@pytest.mark.slow
@pytest.mark.parametrize("instruction", sweeps.TWINS)
def test_every_input_equals_the_gpu(instruction: str) -> None:
    assert sweeps.differing(instruction) == []


def test_a_wrong_result_is_found_in_its_binade(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = sweeps.measured()["tanh.approx.f32"].copy()
    wrong[124] ^= np.uint64(1)
    monkeypatch.setattr(sweeps, "measured", lambda: MappingProxyType({"tanh.approx.f32": wrong}))
    assert sweeps.differing("tanh.approx.f32", [123, 124, 125]) == [124]


def test_measurements_cover_every_instruction_and_binade() -> None:
    for instruction, sums in sweeps.measured().items():
        assert sums.shape == (512,), instruction
        assert sums.dtype == np.uint64
