"""Determinism matrices and pinned workers on a real GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from equiv import pairs
from equiv.determinism import matrix
from equiv.plan import Settings, cases
from equiv.records import Status
from equiv.report.outcome import PASSING
from equiv.workers import run_plan

if TYPE_CHECKING:
    from equiv.device import Device

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["dsa_index::fp8-b17-ties", "kda::ws-b3-t1"])
def test_streams_graphs_and_other_batches_give_the_same_bits(gpu: Device, name: str) -> None:
    (case,) = cases(None, [name], [])
    found = {cell.output: cell for cell in matrix(pairs.get(case.pair), case, gpu).outputs}
    for output, cell in found.items():
        expected = Status.UNSUPPORTED if output.split()[1] in {"warps", "late"} else Status.IDENTICAL
        assert cell.status is expected, f"{output}: {cell.summary}"
    assert {"oracle graph", "candidate graph", "candidate stream", "oracle batch"} <= {*found}


def test_workers_pinned_to_all_gpus_or_one_give_the_same_verdict(gpu: Device) -> None:
    (case,) = cases(None, ["dsa_index::fp8-b17-ties"], [])
    tasks = list(Settings((gpu.name, "cuda")).tasks(case))
    by_number, pinned = sorted(run_plan(tasks, 2, 300), key=lambda verdict: verdict.device != gpu.name)
    assert by_number.status is pinned.status
    assert by_number.status in PASSING, by_number.summary
    assert pinned.notes[-1].startswith("on GPU ")
