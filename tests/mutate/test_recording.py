"""Cases recorded by several processes, or left to this one."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mutant_pair
import numpy as np
import pytest

from equiv.emulator.store import shared_store
from equiv.errors import DeviceError
from equiv.mutate import moving
from equiv.mutate.kill import Stage
from equiv.mutate.mutants import Target
from equiv.mutate.recording import _kinds, recorded
from equiv.mutate.scene import Scene
from equiv.pairs import Soak

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.pairs import Pair
    from equiv.records import Case


def pair_of(before: Callable[[Case], object]) -> Pair:
    """Calls `before` before it launches."""

    def candidate(case: Case, tensors: Mapping[str, Any]) -> None:
        before(case)
        mutant_pair.candidate(case, tensors)

    return replace(mutant_pair.PAIR, candidate=SimpleNamespace(load=lambda: candidate))  # type: ignore[arg-type]


def rehearsed(jobs: int, *values: str) -> Stage:
    cases = [mutant_pair.case(one) for one in values]
    with Stage(mutant_pair.PAIR, cases, "sm_100a", jobs) as stage:
        stage.rehearse({key: Target(shared_store().get(key[0]), key[1]) for key in stage.kernels})
    return stage


def test_processes_record_what_one_records_in_the_order_of_the_cases() -> None:
    pids: list[int] = []

    def sometimes(case: Case) -> None:
        if case.axes["values"] == "ones":
            raise DeviceError("no ones here")
        pids.append(os.getpid())

    pair = pair_of(sometimes)
    cases = [mutant_pair.case(values, seed) for seed in range(3) for values in ("normal", "ones", "open")]
    one, two = (recorded(pair, cases, "sm_100a", jobs) for jobs in (1, 2))
    assert pids == [os.getpid()] * 6  # those of two processes are not seen here
    for case, mine, theirs in zip(cases, one, two, strict=True):
        if case.axes["values"] == "ones":
            assert mine == theirs == "no ones here"
        else:
            assert isinstance(mine, Scene)
            assert isinstance(theirs, Scene)
            assert mine.case is case
            assert (theirs.case, theirs.cost) == (case, mine.cost)


def test_a_case_over_which_a_process_dies_is_recorded_here() -> None:
    here = os.getpid()
    pids: list[int] = []

    def dies(case: Case) -> None:
        pids.append(os.getpid())
        if os.getpid() != here and case.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    cases = [mutant_pair.case("normal", seed) for seed in range(3)]
    found = recorded(pair_of(dies), cases, "sm_100a", 2)
    assert [one.case for one in found if isinstance(one, Scene)] == cases
    assert pids == [here]


def test_cases_that_agree_in_the_compiled_axes_are_of_one_kind() -> None:
    cases = [mutant_pair.case(values, seed) for values, seed in (("normal", 1), ("ones", 1), ("normal", 2))]
    first, second, third = _kinds(mutant_pair.PAIR, cases)
    assert first == third != second
    assert len(set(_kinds(replace(mutant_pair.PAIR, soak=Soak(compiled=())), cases))) == 1


@pytest.mark.parametrize("broken", [False, True])
def test_two_processes_stage_what_one_stages_even_if_no_scene_can_be_moved(
    monkeypatch: pytest.MonkeyPatch, *, broken: bool
) -> None:
    one = rehearsed(1, "normal", "host", "ones")
    if broken:
        monkeypatch.setattr(moving._Moves, "_inside", lambda _, data: np.zeros_like(data))
    two = rehearsed(2, "normal", "host", "ones")
    assert two.left_out == one.left_out == {"host-1": "its launches alone do not repeat it: t: 1 of 64 elements"}
    assert [scene.case.id for scene in two.scenes] == [scene.case.id for scene in one.scenes] == ["normal-1", "ones-1"]
    assert [bool(scene.kept) for scene in two.scenes] == [broken, broken]  # what was recorded here keeps its tensors
    assert {key: count.tolist() for key, count in two._reached.items()} == {
        key: count.tolist() for key, count in one._reached.items()
    }
    for scene in two.scenes:
        scene.play(two.sound)
        assert scene.difference() == ""
