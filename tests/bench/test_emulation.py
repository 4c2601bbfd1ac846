"""What `equiv bench emulator` measures: the micro-kernel does its work, a rate is what was counted in what it took."""

from __future__ import annotations

import numpy as np
import pytest

from equiv.bench import Figure, Measure, emulation, micro, process
from equiv.emulator.launch import LaunchCount
from equiv.errors import EquivError

WARPS = micro.CTAS * micro.THREADS // 32


@pytest.mark.parametrize("products", [True, False])
def test_the_micro_kernel_executes_what_it_says_and_gives_numbers(products: bool) -> None:
    stats, out = micro.launch(products=products)
    assert stats.warp_instructions // WARPS // micro.STEPS == len(micro.step(products=products)) + 3
    assert stats.warp_instructions % WARPS == 0
    assert np.isfinite(out).all()
    assert len(np.unique(out)) > micro.THREADS // 2
    assert 0 < stats.processor < 10


def test_every_kind_of_instruction_of_the_step_is_there() -> None:
    said = "\n".join(micro.step(products=True))
    for opcode in ("shfl.sync", "fma.rn.ftz", "ld.shared.v4", "st.shared.v4", "ex2.approx", "bar.sync", "mma.sync"):
        assert opcode in said
    assert "mma.sync" not in "\n".join(micro.step(products=False))
    assert "%f27" in micro.step(products=True, number=1)[1]


def test_rates_count_the_processors_seconds_of_the_fastest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([[(8, 0.5), (4, 0.1)], [(8, 0.2), (4, 0.3)]])

    class Chosen:
        launches: list[LaunchCount]

    def run(_pair: object, _name: str, _case: object, _inputs: object, chosen: Chosen) -> None:
        one = (1, 1, 1)
        chosen.launches = [
            LaunchCount("image", f"k{at}", one, one, one, 0, count, 32 * count, 9.0, seconds)
            for at, (count, seconds) in enumerate(next(runs))
        ]

    monkeypatch.setattr(emulation, "run_party", run)
    monkeypatch.setattr(emulation, "device", lambda _name: Chosen())
    fastest = emulation.oracle("dsa_index::fp8-b129", repetitions=2)
    assert [(one.kernel, one.processor) for one in fastest] == [("k0", 0.2), ("k1", 0.1)]
    whole = emulation._figure("all", fastest)
    assert whole == Figure("all", whole.seconds, 12, "warp-instructions")
    assert whole.seconds == pytest.approx(0.3)


def test_the_interpreter_must_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "REPETITIONS", 1)
    rows = process.INTERPRETED_ROWS
    monkeypatch.setattr(
        emulation, "child", lambda _task, **_environment: {"seconds": 0.5, "programs": rows, "sum": 8.1}
    )
    with pytest.raises(EquivError, match=r"the interpreter computed another result: 8\.1, the emulator [78]\.[09]"):
        list(emulation.against_interpreter())
    monkeypatch.setattr(
        emulation, "child", lambda _task, **_environment: {"seconds": 0.5, "programs": rows, "sum": 8.0}
    )
    *_, interpreted, ratio = emulation.against_interpreter()
    assert (interpreted.seconds, interpreted.count) == (0.5, rows)  # type: ignore[union-attr]
    assert isinstance(ratio, Measure)
    assert ratio.value > 1


def test_a_long_kernel_is_set_up_and_its_length_is_said() -> None:
    measured = list(emulation.set_up([]))
    assert len(measured) == 1
    assert "parse, contract, decode micro, 20" in measured[0].name
    # Measured 0.13 s; above 0.3 s decoded programs would have to be kept on disk. A busy machine must not fail this.
    assert measured[0].value < 2000


def test_a_process_that_fails_is_quoted() -> None:
    with pytest.raises(EquivError, match=r"(?s)equiv\.bench\.process nothing failed:.*KeyError: 'nothing'"):
        emulation.child("nothing")
