"""Cases recorded and played again, and what becomes of mutants."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mutant_pair
import numpy as np
import pytest

from equiv.emulator.ptx_emitter import spelt
from equiv.emulator.store import shared_store
from equiv.errors import EmulatorError, IllegalAccessError
from equiv.mutate import OPERATORS
from equiv.mutate.kill import Outcome, Stage
from equiv.mutate.mutants import Mutant, Target
from equiv.mutate.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.emulator.engine import Program
    from equiv.mutate.kill import Key


@contextmanager
def stage_of(*values: str) -> Iterator[tuple[Stage, dict[Key, Target]]]:
    with Stage(mutant_pair.PAIR, [mutant_pair.case(one) for one in values], "sm_100a") as stage:
        targets = {key: Target(shared_store().get(key[0]), key[1]) for key in stage.kernels}
        stage.rehearse(targets)
        yield stage, targets


@pytest.fixture(scope="module")
def staged() -> Iterator[tuple[Stage, dict[Key, Target]]]:
    with stage_of("normal", "ones") as found:
        yield found


def mutant(targets: dict[Key, Target], operator: str, after: str) -> tuple[Mutant, Target]:
    for target in targets.values():
        for one in target.mutants((operator,)):
            if spelt(one.after) == after or spelt(one.before) == after.removeprefix("no "):
                return one, target
    raise AssertionError(after)


def outcome(staged: tuple[Stage, dict[Key, Target]], operator: str, after: str, *, every: bool = False) -> Outcome:
    stage, targets = staged
    found, target = mutant(targets, operator, after)
    return stage.outcome(found, target, every=every)


def test_a_case_plays_again_to_the_same_bytes_with_what_the_host_wrote_between(
    staged: tuple[Stage, dict[Key, Target]],
) -> None:
    stage, _ = staged
    assert stage.left_out == {}
    assert [scene.case.id for scene in stage.scenes] == ["normal-1", "ones-1"]
    scene = stage.scenes[0]
    assert len(scene.steps) == 2
    assert scene.cost == sum(step.instructions for step in scene.steps) > 0
    for buffer in scene.buffers:
        buffer.image.bytes[:] = 5
    assert scene.difference() == "y: 40 of 40 elements"
    scene.play(stage.sound)
    assert scene.difference() == ""


def test_a_bit_that_differs_kills_and_the_first_output_that_has_it_is_named(
    staged: tuple[Stage, dict[Key, Target]],
) -> None:
    found = outcome(staged, "exchange", "sub.f32 %f5, %f4, 0f3F800000;")
    assert (found.status, found.killers) == ("killed", ("normal-1",))
    assert found.how == "y: 40 of 40 elements"


def test_the_case_that_kills_is_looked_for_among_all(staged: tuple[Stage, dict[Key, Target]]) -> None:
    found = outcome(staged, "rounding", "cvt.rz.bf16.f32 %rs1, %f2;", every=True)
    assert (found.status, found.killers, found.played) == ("killed", ("normal-1",), 2)
    found = outcome(staged, "constant", "mul.f32 %f2, %f1, 0f40400001;")
    assert found.status == "survived"
    assert found.played == 2


def test_a_fault_kills_and_is_told(staged: tuple[Stage, dict[Key, Target]]) -> None:
    found = outcome(staged, "comparison", "setp.gt.u32 %p1, %r1, %r2;")
    assert found.status == "killed"
    assert found.how.startswith(f"{IllegalAccessError.__name__}: ")
    assert "read of 4 bytes at 0x..., just past the end of `x` (160 bytes at 0x..., " in found.how
    assert outcome(staged, "predicate", "@%p2 trap;").status == "killed"


def test_what_no_case_comes_to_is_not_reached_but_a_false_guard_is(staged: tuple[Stage, dict[Key, Target]]) -> None:
    stage, targets = staged
    (key,) = [key for key in targets if key[1] == "scale"]
    trap = next(at for at, one in enumerate(targets[key].kernel.instructions) if one.opcode == "trap")
    assert stage.reaching(key, trap) == stage.scenes
    assert stage.reaching(key, 10**6) == []


def test_a_missing_barrier_is_found(staged: tuple[Stage, dict[Key, Target]]) -> None:
    found = outcome(staged, "ordering", "no bar.sync 0;")
    assert (found.status, found.killers) == ("killed", ("normal-1",))
    assert "never written" in found.how


def test_an_ordering_mutant_is_played_in_every_way_and_the_way_that_kills_is_told(
    staged: tuple[Stage, dict[Key, Target]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, targets = staged
    found, target = mutant(targets, "ordering", "no bar.sync 0;")
    harmless = replace(found, after=found.before)
    assert stage.outcome(harmless, target) == Outcome("survived", played=2)
    plays = []
    play = Scene.play

    def races(scene: Scene, programs: Mapping[Key, Program], **how: Any) -> None:
        plays.append((programs is stage.sound, how))
        if how == {"check": "race"} and programs is not stage.sound:
            raise EmulatorError("a race\nand where")
        play(scene, programs, **how)

    monkeypatch.setattr(Scene, "play", races)
    assert stage.outcome(harmless, target) == Outcome("killed", ("normal-1 (race)",), "EmulatorError: a race", 1)
    assert [how for sound, how in plays if not sound] == [{}, {"completion": "late"}, {"seed": 1}, {"check": "race"}]


def test_undefined_elements_do_not_kill() -> None:
    with stage_of("open") as (stage, _):
        scene = stage.scenes[0]
        scene.play(stage.sound)
        y = scene.buffers[1].elements
        y[3] ^= 1
        assert scene.difference() == ""
        y[4] ^= 1
        assert scene.difference() == "y: 1 of 40 elements"


def test_bytes_outside_of_a_tensor_kill() -> None:
    with stage_of("normal") as (stage, _):
        scene = stage.scenes[0]
        scene.play(stage.sound)
        scene.buffers[0].elements[0] ^= 1
        assert "`x` an input that must not change: 1 byte(s) changed" in scene.difference()


def test_a_case_whose_host_computes_behind_the_last_launch_is_left_out_by_name() -> None:
    with stage_of("host", "normal") as (stage, _):
        assert [scene.case.id for scene in stage.scenes] == ["normal-1"]
        assert stage.left_out == {"host-1": "its launches alone do not repeat it: t: 1 of 64 elements"}


def test_dead_and_invisible_mutants_are_not_played(staged: tuple[Stage, dict[Key, Target]]) -> None:
    found = outcome(staged, "exchange", "sub.f32 %f9, %f4, %f4;")
    assert found == Outcome("equivalent", how="its result is not needed")
    found = outcome(staged, "deletion", "no bra.uni OUT;")
    assert found == Outcome("equivalent", how="a jump to the next instruction")


def test_every_mutant_gets_an_outcome(staged: tuple[Stage, dict[Key, Target]]) -> None:
    stage, targets = staged
    seen = {
        stage.outcome(one, target).status for target in targets.values() for one in target.mutants(tuple(OPERATORS))
    }
    assert {"killed", "survived", "equivalent"} <= seen


def test_what_the_plain_schedule_hides_is_searched_for_races(staged: tuple[Stage, dict[Key, Target]]) -> None:
    found = outcome(staged, "comparison", "setp.le.u32 %p1, %r1, 0;")
    assert found.killers == ("normal-1 (race)",)  # thread 0 stores where thread 63, of a later warp, stores after it
    every = outcome(staged, "comparison", "setp.le.u32 %p1, %r1, 0;", every=True)
    assert every.killers == ("normal-1 (race)", "ones-1 (race)")


def test_values_are_as_the_kernel_says(staged: tuple[Stage, dict[Key, Target]]) -> None:
    stage, _ = staged
    scene = next(scene for scene in stage.scenes if scene.case.id == "ones-1")
    scene.play(stage.sound)
    np.testing.assert_array_equal(scene.buffers[1].elements, np.full(40, 0x4080_0000, np.uint32))
