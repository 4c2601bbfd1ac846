"""Seeded faults of `dsa_index` are followed to the changed line, from wrong bits alone or beside the sound kernel."""

from __future__ import annotations

import argparse
import importlib
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import index_faults
import kda_faults
import pytest
from seeded import faulty, package

from equiv import kda
from equiv.casefile import load
from equiv.cute import host
from equiv.device import device
from equiv.dsa_index import PAIR
from equiv.errors import UsageError
from equiv.explain import explain
from equiv.mutate.scene import record
from equiv.report.trail import between
from equiv.report.trail import origin as rendered
from equiv.runner import toolchain
from equiv.trail.between import departure, element
from equiv.trail.command import plays, prepare, wanted
from equiv.trail.stage import Model
from equiv.trail.why import origin

if TYPE_CHECKING:
    from seeded import Fault

    from equiv.explain import Explanation
    from equiv.mutate.scene import Scene
    from equiv.trail.why import Origin

CASE_FILES = Path(__file__).parents[2] / "cases"
CASES = {case.id: case for case in load(CASE_FILES / "dsa_index.toml", PAIR)}
FAULTS = {fault.name: fault for fault in index_faults.FAULTS}
ARCH = "sm_90a"


@pytest.fixture(autouse=True)
def _lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the command, whose process has not loaded the DSL before: it reads the variable once."""
    from cutlass.cutlass_dsl import CuTeDSL

    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    monkeypatch.setattr(CuTeDSL._get_dsl().envar, "lineinfo", True)
    for name, module in list(sys.modules.items()):  # a fault's own copy too, if another test has compiled it
        if module is host or (name.startswith("seeded_") and hasattr(module, "_compiled")):
            monkeypatch.setattr(module, "_compiled", {})


def changed(fault: Fault) -> tuple[str, int]:
    """File and line at which a fault differs from the shipped source."""
    path = Path(importlib.import_module(package(fault)).__path__[0]) / fault.module
    text = path.read_text()
    assert text.count(fault.new) == 1
    return str(path), text[: text.index(fault.new)].count("\n") + 1


@cache
def found(name: str) -> tuple[Scene, Model, Explanation]:
    """A fault's case: recorded, its model, what explains it."""
    fault = FAULTS[name]
    case = CASES[fault.case]
    assert "pr" in case.suites
    pair = faulty(PAIR, fault, "index_faults")
    (one,) = explain(pair, case, device(f"emulated:{ARCH}"))
    scene = record(pair, case, ARCH, sound=False)
    assert pair.ledger is not None
    declared = pair.declared("candidate", toolchain(pair.candidate), ARCH, case)
    return scene, Model(pair, case, scene.inputs, declared, pair.ledger()), one


@cache
def traced(name: str) -> tuple[Origin, str]:
    """What the wrong bits of a fault's case lead to, and the words for it."""
    one = origin(*found(name), None, None)
    return one, rendered(found(name)[0], "candidate", one)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("E4M3 codes cut", "dsa.R14"),
        ("scale rounded down", "dsa.R12"),
        ("eps of the LayerNorm dropped", "dsa.K1d"),
    ],
)
def test_the_instruction_of_a_row_that_departs_is_from_the_changed_line(name: str, row: str) -> None:
    one, text = traced(name)
    assert one.stage is not None
    assert one.stage.row == row
    assert one.named
    assert one.site is not None
    assert one.site.source == changed(FAULTS[name]), text
    made = {value.bits for value in one.site.values if value.result}
    assert one.stage.expected not in {one.bits, *made}
    assert [site.source for site in one.path][-1] == one.site.source


def test_a_trace_says_the_store_the_values_and_the_way() -> None:
    one, text = traced("E4M3 codes cut")
    line = changed(FAULTS["E4M3 codes cut"])[1]
    assert (one.bits, one.expected, one.stage and one.stage.operands) == (0x7D, 0x7E, (0x43D80000,))
    assert one.inputs == ("q",)
    assert "q_codes[0, 0, 0] (request 0, head 0, channel 0): 0x7d, the model has 0x7e" in text
    assert "stored at access.py:21: CTA (0, 0, 0) warp 0 lane 0" in text
    assert f"DEPARTS at convert.py:{line}" in text
    assert "DsaIndex: CTA (0, 0, 0) warp 0 lane 0\n" in text
    assert "kernel_cutlass" not in text
    assert "row dsa.R14 (q: FP8 code), named above: of 0x43d80000 the model makes 0x7e" in text
    assert "0x43d80000 (432)\n         constant  0xfff00000" in text
    assert f"from there to the store: convert.py:{line} -> " in text


@pytest.mark.parametrize(
    ("output", "index", "said"),
    [
        ("nosuch", None, "no output 'nosuch'; known: q_codes"),
        ("nosuch", (0,), "no output 'nosuch'; known: q_codes"),
        ("q_codes", (400, 0, 0), r"output 'q_codes' has shape \(\d+, 32, 128\): no element \(400, 0, 0\)"),
        ("q_codes", (1, 2), r"output 'q_codes' has shape \(\d+, 32, 128\): no element \(1, 2\)"),
        ("q_codes", (-1, 0, 0), r"no element \(-1, 0, 0\)"),
        ("weights", (0, 0), r"weights\[0, 0\] is as the model has it: 0x[0-9a-f]+$"),
        ("weights", None, "output 'weights': every element is as the model has it"),
    ],
)
def test_an_output_or_element_that_is_not_there_or_not_wrong_is_refused(
    output: str, index: tuple[int, ...] | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        origin(*found("E4M3 codes cut"), output, index)


def test_an_element_that_was_asked_for_is_traced() -> None:
    first = traced("E4M3 codes cut")[0]
    assert origin(*found("E4M3 codes cut"), "q_codes", first.index) == first


@pytest.mark.parametrize("name", ["E4M3 codes cut", "scale doubled where exact"])
def test_a_version_of_the_kernel_departs_from_the_shipped_one_at_the_changed_line(name: str) -> None:
    fault = FAULTS[name]
    case = CASES[fault.case]
    one, other = plays(PAIR, case, "candidate", ARCH, f"index_faults:{name}")
    chosen = element(one, other, None, None)
    assert chosen is not None
    parted = departure(one, other, *chosen)
    text = between(case, "candidate", one, other, parted)
    sources = [site.source for site in parted.ends[0].sites if site is not None]
    assert sources[-1] is not None
    assert sources[-1][1] == changed(fault)[1], text
    assert Path(sources[-1][0]).name == Path(fault.module).name, text


@pytest.mark.slow
def test_a_row_of_the_recurrence_is_followed_out_of_a_cut_slice_through_shared_memory() -> None:
    fault = next(fault for fault in kda_faults.FAULTS if fault.name == "eps added to the mean")
    case = next(case for case in load(CASE_FILES / "kda.toml", kda.PAIR) if case.id == fault.case)
    pair = faulty(kda.PAIR, fault, "kda_faults")
    (explained,) = explain(pair, case, device(f"emulated:{ARCH}"))
    scene = record(pair, case, ARCH, sound=False)
    assert pair.ledger is not None
    declared = pair.declared("candidate", toolchain(pair.candidate), ARCH, case)
    one = origin(scene, Model(pair, case, scene.inputs, declared, pair.ledger()), explained, None, None)
    scene.close()
    assert one.cut
    assert one.missing == ()
    assert one.stage is not None
    assert (one.stage.row, one.named) == ("kda.13a", True)
    assert one.site is not None
    assert [value.bits for value in one.site.values][1] == 0x390637BD  # 128e-6, not 1e-6


def test_options_that_do_not_fit_each_other_are_refused() -> None:
    def options(**given: object) -> argparse.Namespace:
        known = {"against": None, "trace": False, "output": None, "at": None, "device": "emulated:sm_90a"}
        return argparse.Namespace(**{**known, **given})

    assert not wanted(options())
    assert wanted(options(against="late"))
    assert not wanted(options(trace=True, output="y", at="1,2"))
    for given, said in (
        ({"output": "y"}, "--output and --at say where --against or --trace begin"),
        ({"trace": True, "at": "1"}, "--at is an element of --output, which is missing"),
        ({"trace": True, "against": "late"}, "not both at once"),
    ):
        with pytest.raises(UsageError, match=said):
            wanted(options(**given))
    with pytest.raises(UsageError, match="--at '1;2' is no index such as 3,0,17"):
        prepare(options(at="1;2"))
    with pytest.raises(UsageError, match="device 'cuda:0' does not show its instructions"):
        prepare(options(device="cuda:0"))
