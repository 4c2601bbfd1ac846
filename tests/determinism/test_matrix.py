"""Parties that do not give the same bits again are told from those that do, by the condition that shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equiv_fake
import numpy as np
import pytest

from equiv import pairs, wire
from equiv.determinism import CONDITIONS, matrix
from equiv.device import device
from equiv.errors import DeviceError
from equiv.pairs import Party, Subset
from equiv.plan import cases
from equiv.records import Case, OutputSpec, Status, TensorSpec, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.records import Bits
    from equiv.rounding.declaration import Declaration


def case(behaviour: str = "good", n: int = 8) -> Case:
    return Case("fake", behaviour, "", 3, ("pr",), {"n": n, "behaviour": behaviour, "batch": n}, {})


def elements(case: Case, given: Mapping[str, Bits], requests: Sequence[int]) -> Subset:
    """A request of the fake pair is an element."""
    rows = list(requests)
    axes = {**case.axes, "n": len(rows), "batch": len(rows)}
    return Subset(replace(case, axes=axes), {**given, "x": given["x"][rows]}, lambda outputs: {"y": outputs["y"][rows]})


PAIR = equiv_fake.make(subset=elements, recut=lambda case: iter([("half as many", case)]))


def statuses(verdict: Verdict, party: str = "candidate") -> dict[str, Status]:
    cells = {cell.output: cell.status for cell in verdict.outputs}
    return {name.partition(" ")[2]: status for name, status in cells.items() if name.startswith(party)}


def changed(behaviour: str) -> set[str]:
    found = matrix(PAIR, case(behaviour), equiv_fake.HostDevice())
    assert Status.MISMATCH not in statuses(found, "oracle").values()
    return {name for name, status in statuses(found).items() if status is Status.MISMATCH}


def test_a_party_that_computes_the_same_is_the_same_under_every_condition_that_the_device_can_do() -> None:
    found = matrix(PAIR, case(), equiv_fake.HostDevice(), again="again")
    unsupported = dict.fromkeys(("stream", "graph", "warps", "late"), Status.UNSUPPORTED)
    same = dict.fromkeys(("repeat", "poison", "batch"), Status.IDENTICAL)
    assert statuses(found, "oracle") == same | unsupported
    assert statuses(found) == same | unsupported | {"ctas": Status.IDENTICAL}
    assert (found.status, found.again) == (Status.IDENTICAL, "again")
    summaries = {cell.output: cell.summary for cell in found.outputs}
    assert summaries["candidate repeat"] == "same bits: run 2, run 3"
    assert summaries["oracle stream"] == "needs device:cuda: stream on emulated:sm_100a"
    alone = "request 0 alone, request 4 alone, request 7 alone, in reverse"
    assert summaries["oracle batch"] == f"same bits: {alone}"
    assert wire.verdict(wire.encode(found)) == found


@pytest.mark.parametrize(
    ("behaviour", "conditions"),
    [
        ("counts", {"repeat", "poison", "ctas", "batch"}),
        ("reads_poison", {"poison", "batch"}),
        ("reads_scratch", {"poison"}),
        ("carries", {"batch"}),
    ],
)
def test_a_party_that_does_not_is_caught_by_the_conditions_that_show_it(behaviour: str, conditions: set[str]) -> None:
    found = changed(behaviour)
    assert conditions == found or (behaviour == "reads_scratch" and conditions < found)  # freed memory comes back


def test_what_changed_is_told_with_the_first_run_that_differs() -> None:
    equiv_fake.CALLS.clear()
    found = matrix(PAIR, case("counts"), equiv_fake.HostDevice(), repeats=3, only=["repeat"])
    (cell,) = [cell for cell in found.outputs if cell.output == "candidate repeat"]
    assert cell.summary == "3 of 3 differ (run 2, run 3, run 4); run 2: y (2 of 8)"
    (difference,) = cell.differences
    assert (difference.left, difference.right) == ("first run", "run 2")
    assert [element.index for element in difference.worst] == [(1,), (2,)]
    assert found.status is Status.MISMATCH
    assert {cell.output for cell in found.outputs} == {"oracle repeat", "candidate repeat"}


def test_a_batch_of_1_may_differ_where_other_orders_are_declared_for_it() -> None:
    def declaration(party: str, toolchain: Mapping[str, str], arch: str, form: str) -> Declaration:
        return replace(equiv_fake.declares(party, carry=form == "one"), form=form)

    pair = equiv_fake.make(
        subset=elements,
        declaration=declaration,
        forms={"candidate": ("one", "many")},
        form=lambda party, case, arch: "one" if case.axes["n"] == 1 else "many",
        candidate=Party(f"{__name__}:only_alone", ("numpy",)),
    )
    found = matrix(pair, case(), equiv_fake.HostDevice(), only=["batch"])
    cell = found.outputs[-1]
    assert cell.status is Status.REORDERED
    assert cell.summary.startswith("3 of 4 differ (request 0 alone, ")
    assert cell.summary.endswith("), as declared; request 0 alone: y (1 of 1)")
    assert found.declared == ("candidate batch: fake.1: many in the batch no carry, one alone carry",)
    assert found.status is Status.REORDERED


def test_a_condition_that_asks_nothing_of_a_case_is_unsupported_and_no_error() -> None:
    found = matrix(equiv_fake.make(subset=None, recut=None), case(), equiv_fake.HostDevice(), only=["ctas"])
    assert found.status is Status.UNSUPPORTED
    assert found.summary.count("there is nothing to ask of this case") == len(found.outputs) == 2


def only_alone(case: Case, tensors: Mapping[str, Any]) -> None:
    behaviour = "carries" if case.axes["n"] == 1 else "good"
    equiv_fake.candidate(replace(case, axes={**case.axes, "behaviour": behaviour}), tensors)


def test_what_a_contract_leaves_open_may_change() -> None:
    open_ = np.ones(8, dtype=np.bool_)
    pair = equiv_fake.make(undefined=lambda _case, _given: {"y": open_})
    assert matrix(pair, case("counts"), equiv_fake.HostDevice(), only=["repeat"]).status is Status.IDENTICAL


def test_a_pair_that_does_not_say_what_a_request_is_is_unsupported_by_name() -> None:
    found = matrix(equiv_fake.PAIR, case(), equiv_fake.HostDevice(), only=["batch"])
    assert found.status is Status.UNSUPPORTED
    assert found.summary.startswith("oracle batch: needs pair:subset: fake does not say what one request alone is")


@pytest.mark.parametrize(("behaviour", "status"), [("raises", "ERROR"), ("overruns", "MISMATCH")])
def test_what_stops_a_party_or_spills_is_in_its_row(behaviour: str, status: str) -> None:
    found = matrix(PAIR, case(behaviour), equiv_fake.HostDevice())
    assert str(statuses(found)["once"]) == status
    assert str(found.status) == status
    assert Status.ERROR not in statuses(found, "oracle").values()


class BreakingGpu(equiv_fake.HostDevice):
    """Claims to be a GPU and fails at the fourth wait, for good."""

    kind = "cuda"
    waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        if self.waits >= 4:
            raise DeviceError("CUDA error: unspecified launch failure")


def test_after_an_error_on_a_gpu_the_other_cells_are_not_run() -> None:
    found = matrix(PAIR, case(), BreakingGpu(), only=["repeat", "poison"])
    assert [str(cell.status) for cell in found.outputs] == ["IDENTICAL", "ERROR", "NOT_RUN"]
    assert found.outputs[-1].output == "candidate once"
    assert found.outputs[-1].summary == ("not reached: oracle poison failed, and may have left the GPU unusable")
    assert found.status is Status.ERROR


def atomic_pair() -> pairs.Pair:
    """y [1] = the sum of x [128], added in whatever order the warps come."""
    x = np.float32(3.0) ** np.arange(128, dtype=np.float32).__mod__(7) * np.float32(1.1)
    return equiv_fake.make(
        "fake_atomic",
        oracle=Party("equiv_fake:oracle", ("numpy",)),
        candidate=Party("atomic_sum:party", ("triton",)),
        layout=lambda _case: (
            TensorSpec("x", "input", "f32", (128,), (1,)),
            TensorSpec("y", "inout", "f32", (1,), (1,)),
        ),
        inputs=lambda _case: {"x": x.view(np.uint32), "y": np.zeros(1, np.uint32)},
        outputs=lambda _case, _given, after: {"y": after["y"].copy()},
        output_specs=lambda _case: (OutputSpec("y", "f32", ("sum",), "envelope", "any order"),),
    )


def test_a_sum_by_atomics_changes_with_the_order_of_its_warps() -> None:
    found = matrix(atomic_pair(), case(), device("emulated:sm_90a"), repeats=3, only=["repeat", "warps", "late"])
    assert statuses(found) == {
        "repeat": Status.IDENTICAL, "warps": Status.MISMATCH, "late": Status.MISMATCH,
    }  # fmt: skip
    assert any("float additions to memory, whose order the hardware leaves open" in note for note in found.notes)


def test_late_copies_and_orders_of_warps_reach_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    from equiv.emulator import engine

    seen: list[tuple[int | None, str]] = []
    launch = engine.launch

    def watched(*arguments: Any, **how: Any) -> engine.LaunchStats:
        seen.append((how["seed"], how["completion"]))
        return launch(*arguments, **how)

    monkeypatch.setattr(engine, "launch", watched)
    matrix(atomic_pair(), case(), device("emulated:sm_90a"), only=["warps", "late"])
    assert seen == [(None, "eager"), (1, "eager"), (2, "eager"), (None, "late"), (1, "late")]


@pytest.mark.parametrize("name", ["dsa_index::fp8-b17-ties", pytest.param("kda::ws-b3-t1", marks=pytest.mark.slow)])
def test_both_parties_of_a_real_pair_are_the_same_under_every_condition(name: str) -> None:
    (one,) = cases(None, [name], [])
    found = matrix(pairs.get(one.pair), one, device("emulated:sm_90a"), repeats=1)
    expected = {name: Status.UNSUPPORTED if name in {"stream", "graph"} else Status.IDENTICAL for name in CONDITIONS}
    for party in ("oracle", "candidate"):
        without = {"ctas"} if party == "oracle" or one.pair == "dsa_index" else set()
        assert statuses(found, party) == {name: status for name, status in expected.items() if name not in without}


def test_a_real_pair_declares_that_its_split_follows_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front's candidate adds 2 slices at 65 requests and 4 at 1; nothing is compiled for this."""
    pair = pairs.get("dsa_front")
    (one,) = cases(None, ["dsa_front::fp8-b65"], [])
    from equiv.determinism import _Lab

    lab = _Lab(pair, one, equiv_fake.HostDevice("emulated:sm_90a"), 1)
    toolchain = {"nvidia-cutlass-dsl": "4.8.1", "triton": "3.8.0"}
    alone = pair.subset(one, pair.inputs(one), [3]).case  # type: ignore[misc]
    assert lab._declared("oracle", toolchain, alone) == ()
    lines = lab._declared("candidate", toolchain, alone)
    assert len(lines) == 2
    for line, name in zip(lines, ("projection", "row.squares"), strict=True):
        assert line.startswith(f"order {name}: split2 in the batch ")
        assert "; split4 alone " in line
