"""The command line, the report and the arguments, on a pair that needs no compiler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mutant_pair
import pytest

from equiv import cli, pairs
from equiv.errors import CaseFileError
from equiv.mutate import argued, command
from equiv.mutate.kill import Outcome
from equiv.mutate.mutants import Mutant
from equiv.mutate.report import Result, killers, percent, render

if TYPE_CHECKING:
    from pathlib import Path

CASES = """
pair = "mutant_pair"
[[case]]
id = "normal"
why = "Ordinary numbers."
seed = 1
suites = ["pr"]
axes = { values = "normal" }
[[case]]
id = "ones"
why = "Ones, of which little is rounded."
seed = 2
suites = ["pr"]
axes = { values = "ones" }
"""
ARGUED = """
[[argued]]
code = "x * 3"
operators = ["constant"]
opcode = "mul.f32"
why = "For the test: whoever knows the kernel says so."
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pairs, "get", lambda _: mutant_pair.PAIR)
    monkeypatch.setattr(pairs, "names", lambda: ("mutant_pair",))
    (tmp_path / "mutant_pair.toml").write_text(CASES)
    return tmp_path


def mutate(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> tuple[int, str]:
    code = cli.main(["mutate", "mutant_pair", "--cases", str(folder), *more])
    return code, capsys.readouterr().out


def test_the_report_counts_and_names_survivors_with_both_instructions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = mutate(capsys, folder, "--operator", "constant", "--operator", "exchange")
    assert code == 0
    assert "mutant_pair on emulated:sm_100a, suite pr: 2 cases, 2 kernels, 16 mutants" in text
    assert "[constant] mul.f32 %f2, %f1, 0f40400000; -> mul.f32 %f2, %f1, 0f40400001;" in text
    assert "(2 cases)" in text
    assert "1 cases kill whatever dies" in text


def test_json_has_every_mutant_and_the_counts_add_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = mutate(capsys, folder, "--json", "--every")
    found: dict[str, Any] = json.loads(text)
    assert code == 0
    assert sum(found["counts"].values()) == len(found["found"]) == found["mutants"] == found["sampled"]
    assert {kernel["kernel"] for kernel in found["kernels"]} == {"scale", "total"}
    assert found["killers"][0]["case"] == "normal"
    live = found["counts"]["killed"] + found["counts"]["survived"] + found["counts"]["not reached"]
    assert found["score"] == round(100 * found["counts"]["killed"] / live, 2)


def test_a_sample_is_drawn_with_its_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = [
        [(one["index"], one["after"]) for one in json.loads(mutate(capsys, folder, "--json", *more)[1])["found"]]
        for more in (["--limit", "9"], ["--limit", "9"], ["--limit", "9", "--seed", "1"])
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(one) for one in drawn] == [9, 9, 9]


def test_what_time_allows_is_the_first_of_the_same_sample(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [json.loads(mutate(capsys, folder, "--json", "--limit", str(n))[1])["found"] for n in (5, 1000)]
    clock = iter(range(1000))
    monkeypatch.setattr("equiv.mutate.command.monotonic", lambda: next(clock))
    found = json.loads(mutate(capsys, folder, "--json", "--time-limit", "5")[1])
    assert found["sampled"] == 5 < found["mutants"]
    assert found["found"] == whole[0]
    assert all(one in whole[1] for one in whole[0])


def test_only_at_least_makes_the_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate(capsys, folder, "--operator", "constant", "--at-least", "100")[0] == 1
    assert mutate(capsys, folder, "--operator", "predicate", "--at-least", "100")[0] == 0


def test_a_score_that_no_live_mutant_shows_meets_no_demand(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equiv.mutate.command.run", lambda *_: result(Outcome("equivalent")))
    code, said = mutate(capsys, folder, "--at-least", "0")
    assert "score none: 0 of 0 live mutants die" in said
    assert code == 1
    assert mutate(capsys, folder)[0] == 0


def test_two_processes_find_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (json.loads(mutate(capsys, folder, "--json", "-j", jobs)[1]) for jobs in ("1", "2"))
    assert one == two


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--device", "cuda:0"], "device 'cuda:0' runs no mutants; known: emulated:sm_90a, emulated:sm_100a"),
        (["--device", "sm_100a"], "device 'sm_100a' runs no mutants"),
        (["--seed", "-1"], "seed -1 is not an integer from 0 to 2**64 - 1"),
    ],
)
def test_bad_arguments_are_usage_errors(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert cli.main(["mutate", "mutant_pair", "--cases", str(folder), *arguments]) == 2
    assert problem in capsys.readouterr().err


def a_mutant(
    operator: str = "constant", source: tuple[str, int] | None = None, near: tuple[str, int] | None = None
) -> Mutant:
    from equiv.emulator.ptx import Immediate, Instruction, Register

    def one(bits: int) -> Instruction:
        return Instruction("mul.f32", (Register("%f2"), Register("%f1"), Immediate(bits, "f32")))

    return Mutant("image", "k", 0, operator, one(0x40400000), one(0x40400001), source, near)


def test_an_argument_for_what_no_case_comes_to_is_for_nothing_else(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("first\n    y = x * 3\n")
    (folder / argued.FOLDER).mkdir()
    (folder / argued.FOLDER / "mutant_pair.toml").write_text(ARGUED + "unreached = true\n")
    arguments = argued.read(mutant_pair.PAIR, folder)
    mutant = a_mutant(source=(str(tmp_path / "kernel.py"), 2))
    for status, told in (("not reached", "argued"), ("survived", "survived"), ("killed", "killed")):
        found, refuted, _ = command._argued(arguments, {("image", "k"): []}, [(mutant, Outcome(status))])
        assert ([outcome.status for _, outcome in found], refuted) == ([told], [])


def test_an_argument_covers_what_its_words_describe(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("first\n    y = x * 3\n")
    (folder / argued.FOLDER).mkdir()
    (folder / argued.FOLDER / "mutant_pair.toml").write_text(ARGUED)
    (argument,) = argued.read(mutant_pair.PAIR, folder)
    there, elsewhere = (str(tmp_path / "kernel.py"), 2), (str(tmp_path / "kernel.py"), 1)
    assert argument.covers(a_mutant(source=there), [{"values": "ones"}])
    assert not argument.covers(a_mutant(source=elsewhere), [])
    assert not argument.covers(a_mutant(source=None), [])
    assert not argument.covers(a_mutant("rounding", there), [])
    assert argument.covers(a_mutant(source=elsewhere, near=there), [])
    assert not argument.covers(a_mutant(source=elsewhere, near=elsewhere), [])
    (folder / argued.FOLDER / "mutant_pair.toml").write_text(ARGUED.replace('"x * 3"', '["x * 4", "x * 3"]'))
    (argument,) = argued.read(mutant_pair.PAIR, folder)
    assert argument.covers(a_mutant(source=there), [])
    assert not argument.covers(a_mutant(source=elsewhere), [])
    (folder / argued.FOLDER / "mutant_pair.toml").write_text(ARGUED + 'axes = { values = "ones" }\nnow = "*001;"\n')
    (argument,) = argued.read(mutant_pair.PAIR, folder)
    assert argument.covers(a_mutant(source=there), [{"values": "ones"}])
    assert not argument.covers(a_mutant(source=there), [{"values": "ones"}, {"values": "normal"}])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x", "$: not TOML"),
        ("other = 1", "$: wanted [[argued]] tables, found other"),
        (ARGUED + "more = 1", "$.argued[0].more: unknown key"),
        (ARGUED.replace("why", "now"), "$.argued[0].why: missing"),
        (ARGUED.replace('["constant"]', '["nothing"]'), "$.argued[0].operators: unknown 'nothing'"),
        (ARGUED + "axes = { format = 1 }", "$.argued[0].axes: unknown axis 'format'"),
        (ARGUED.replace('"x * 3"', '" "'), "$.argued[0].code: is empty"),
        (ARGUED.replace('"x * 3"', "[]"), "$.argued[0].code: is empty"),
        (ARGUED.replace('"x * 3"', '["x * 3", 3]'), "$.argued[0].code: is empty, or holds what is not text"),
        (ARGUED.replace('"x * 3"', "3"), "$.argued[0].code: expected a str or list, got 3"),
        (ARGUED + 'partly = "yes"', "$.argued[0].partly: expected a bool, got 'yes'"),
    ],
)
def test_a_faulty_file_of_arguments_is_told(folder: Path, text: str, fault: str) -> None:
    (folder / argued.FOLDER).mkdir()
    (folder / argued.FOLDER / "mutant_pair.toml").write_text(text)
    with pytest.raises(CaseFileError) as caught:
        argued.read(mutant_pair.PAIR, folder)
    assert fault in str(caught.value)


def test_without_a_file_nothing_is_argued(folder: Path) -> None:
    assert argued.read(mutant_pair.PAIR, folder) == ()


def result(*outcomes: Outcome) -> Result:
    return Result("p", "d", (), {("image", "k"): ("a",)}, [(a_mutant(), one) for one in outcomes], len(outcomes), {})


@pytest.mark.parametrize(
    ("source", "near", "said"),
    [
        (("a/kernel.py", 7), ("a/other.py", 3), "kernel.py:7"),
        (("a/kernel.py", 0), ("a/other.py", 3), "other.py:3"),
        (("a/kernel.py", 0), None, "PTX line 0:"),
    ],
)
def test_a_survivor_is_shown_with_the_nearest_line_that_is_known(
    source: tuple[str, int], near: tuple[str, int] | None, said: str
) -> None:
    symbol = "kernel_cutlass_kernel_equivcutekdawsKdaWS_object_at__tensorptrbf16gmemoi64_0"
    cases = {("image", symbol): ("a",)}
    text = render(Result("p", "d", (), cases, [(a_mutant(source=source, near=near), Outcome("survived"))], 1, {}))
    assert f"  {said} [constant] mul.f32" in text
    assert "\nKdaWS, image image, 1 cases (a)\n" in text


def test_the_score_leaves_out_what_is_not_live() -> None:
    found = result(Outcome("killed"), Outcome("killed"), Outcome("survived"), Outcome("not reached"), Outcome("argued"),
                   Outcome("equivalent"), Outcome("invisible"))  # fmt: skip
    assert found.score == 50
    assert percent({}) is None


def test_a_small_set_of_cases_is_found_greedily() -> None:
    found = result(*(Outcome("killed", which) for which in (("a", "b"), ("b",), ("b", "c"), ("c (late)",), ("a", "c"))))
    assert killers(found) == [("c", 3), ("b", 2)]
