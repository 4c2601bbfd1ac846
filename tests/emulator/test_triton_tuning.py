"""Autotuned Triton kernels choose by counted instructions, the same every time."""

from __future__ import annotations

import pytest
import sample_triton
import torch
import triton
from listener import Listener
from triton import knobs

from equiv.emulator import triton_driver
from equiv.emulator.device import EmulatedDevice
from equiv.emulator.triton_tuning import Tuning

ARCHITECTURES = ["sm_90a", "sm_100a"]


def grid(meta: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(500, meta["BLOCK"]),)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_configuration_of_fewest_instructions_runs_and_trials_leave_no_trace(arch: str) -> None:
    device = EmulatedDevice(arch)
    x, runs = torch.zeros(500), torch.zeros(1)
    with device.active():
        sample_triton.tuned[grid](x, runs, 500)
        sample_triton.tuned[grid](x, runs, 500)
    assert x.unique().tolist() == [2.0]
    # Set to zero before each trial and once more before the first launch that counts.
    assert runs.tolist() == [2.0]
    trials = [one for one in device.launches if one.trial]
    assert [one.configuration.split(",")[0] for one in trials] == ["BLOCK=32", "BLOCK=128", "BLOCK=64"]
    chosen = min(trials, key=lambda one: one.warp_instructions)
    rest = device.launches[3:]
    assert [(one.configuration, one.warp_instructions, one.trial) for one in rest] == 2 * [
        (chosen.configuration, chosen.warp_instructions, False)
    ]
    assert chosen.configuration == "BLOCK=128, EVEN=False, num_warps=1, num_stages=3, num_ctas=1"


def test_heuristics_see_the_configuration() -> None:
    device = Listener("sm_90a")
    with triton_driver.active(device):
        sample_triton.tuned[lambda meta: (320 // meta["BLOCK"],)](torch.zeros(320), torch.zeros(1), 320)
    assert [one.configuration.split(", num")[0] for one in device.launches] == [
        "BLOCK=32, EVEN=True",
        "BLOCK=128, EVEN=False",
        "BLOCK=64, EVEN=True",
        "BLOCK=32, EVEN=True",
    ]


def blocks(device: Listener) -> list[tuple[str, bool]]:
    return [(one.configuration.split(",")[0], one.trial) for one in device.launches]


def test_of_equals_the_first_in_the_list_wins() -> None:
    device = Listener("sm_90a")
    with triton_driver.active(device):
        sample_triton.tuned[(1,)](torch.zeros(500), torch.zeros(1), 500)
    assert blocks(device)[-1] == ("BLOCK=32", False)


def test_another_block_chooses_anew_and_a_nested_one_does_not() -> None:
    # The listener counts threads: every configuration has one warp, so the number of blocks decides.
    device, other = Listener("sm_90a"), Listener("sm_90a")
    device.costs, other.costs = {32 * 16: 3, 32 * 4: 2, 32 * 8: 1}, {32 * 16: 1, 32 * 4: 3, 32 * 8: 2}
    operands = torch.zeros(500), torch.zeros(1), 500
    with triton_driver.active(device):
        sample_triton.tuned[grid](*operands)
        with triton_driver.active(device):
            sample_triton.tuned[grid](*operands)
    assert blocks(device)[3:] == [("BLOCK=64", False), ("BLOCK=64", False)]
    with triton_driver.active(other):
        sample_triton.tuned[grid](*operands)
    assert blocks(other)[3:] == [("BLOCK=32", False)]
    assert len(sample_triton.tuned.cache) == 0


def test_a_kernels_own_benchmark_and_the_cache_on_disk_are_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = sample_triton.tuned_by_time
    monkeypatch.setattr(tuner, "cache_results", True)
    monkeypatch.setattr(tuner, "check_disk_cache", None)
    device = Listener("sm_90a")
    with triton_driver.active(device):
        tuner[(2,)](torch.zeros(256))
    assert blocks(device) == [("BLOCK=64", True), ("BLOCK=128", True), ("BLOCK=64", False)]
    assert tuner.do_bench is sample_triton.by_the_clock
    assert tuner.cache_results is True


def test_a_listener_of_triton_hears_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    monkeypatch.setattr(knobs.autotuning, "listener", lambda **facts: heard.append(facts))
    device = Listener("sm_90a")
    device.costs = {32 * 16: 3, 32 * 4: 2, 32 * 8: 1}
    with triton_driver.active(device):
        sample_triton.tuned[grid](torch.zeros(500), torch.zeros(1), 500)
    (facts,) = heard
    assert facts["best_config"].kwargs == {"BLOCK": 64}
    assert [times[0] for times in facts["configs_timings"].values()] == [3.0, 2.0, 1.0]


def test_a_benchmark_without_quantiles_gives_one_number_and_errors_end_the_trial() -> None:
    tuning = Tuning()

    def call() -> None:
        assert tuning.trial
        tuning.executed += 7

    assert tuning.benchmark(call) == 7.0
    assert tuning.benchmark(call, quantiles=(0.5, 0.2)) == [7.0, 7.0]

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        tuning.benchmark(fail)
    assert tuning.trial is False
