from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from equiv import bench
from equiv.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_figure_is_a_name_a_time_and_a_rate() -> None:
    line = str(bench.Figure("2^24 rcp.approx.f32", 0.25, 1 << 24, "values"))
    assert re.split(r" {2,}", line) == ["2^24 rcp.approx.f32", "250.00 ms", "67.1 M values/s"]


def test_a_slow_rate_and_a_number_that_is_no_rate_are_shown_as_they_are() -> None:
    assert re.split(r" {2,}", str(bench.Figure("interpreter", 0.025, 8, "programs")))[1:] == [
        "25.00 ms",
        "320 programs/s",
    ]
    assert re.split(r" {2,}", str(bench.Measure("ratio", 412.9, "x"))) == ["ratio", "412.90 x"]


def test_the_best_call_counts_and_the_first_one_does_not() -> None:
    calls: list[int] = []
    clock = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    assert bench.best(lambda: calls.append(1), 3, lambda: next(clock)) == 2.0
    assert len(calls) == 4


def test_a_bf16_product_of_128_cubed_is_timed() -> None:
    figure = bench.matrix_product(*bench.MATRICES[0], repetitions=1)
    assert figure.name == "[128,128]x[128,128] mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    assert figure.count == 128**3
    # The target is 2 ms; what a busy machine adds must not fail a test, a lost vectorisation (25 ms) must.
    assert 0 < figure.seconds < 0.02


def test_every_matrix_in_the_table_can_be_timed() -> None:
    assert all(bench.matrix_product(name, arch, repetitions=1).seconds > 0 for name, arch in bench.MATRICES)


def test_the_command_prints_each_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def figures() -> Iterator[bench.Figure]:
        yield bench.Figure("a", 0.001, 1000, "products")
        yield bench.Figure("b", 0.002, 1000, "values")

    monkeypatch.setattr(bench, "numerics", figures)
    assert main(["bench", "numerics"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
    assert main(["bench", "numerics", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {"name": "b", "seconds": 0.002, "count": 1000, "unit": "values"}


def test_another_subject_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "poetry"])
    assert (
        "invalid choice: 'poetry' (choose from 'numerics', 'emulator', 'kda', 'dsa_front')" in capsys.readouterr().err
    )


@pytest.mark.parametrize("subject", ["kda", "dsa_front"])
def test_a_benchmark_of_a_gpu_says_that_there_is_none(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert main(["bench", subject]) == 3
    assert capsys.readouterr().err == "equiv: needs gpu: this benchmark measures a GPU and there is none\n"
