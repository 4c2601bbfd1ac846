"""What `equiv doctor --numerics` runs: every check is right on this machine and sees a planted fault."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.cli import main
from equiv.errors import UnsupportedError
from equiv.rounding import checks, matrix, matrix_measured, matrix_native, mufu, sweeps
from equiv.rounding.checks import Check, Outcome

if TYPE_CHECKING:
    from equiv.rounding.conversion_checks import Count


def test_every_kind_of_check_is_there_under_a_name_of_its_own() -> None:
    names = [(check.name, check.compares) for check in checks.checks()]
    assert len(set(names)) == len(names)
    said = " ".join(compares for _, compares in names)
    for kind in ("Python = exact value", "C twin = H200, stored", "Python = H200, stored", "second formulation in C",
                 "Python = C twin, low 12 bits", "checksum of the period", "checksums of 512 binades"):  # fmt: skip
        assert kind in said, kind
    assert sum("512 binades" in compares for _, compares in names) == len(sweeps.TWINS)


@pytest.mark.slow
@pytest.mark.parametrize("period", checks.PERIODS, ids=lambda period: f"{period[0]} from {period[1]:#x}")
def test_the_definition_gives_the_gpus_checksum_of_each_period(period: tuple[str, int, int, int]) -> None:
    name, *rest = period
    assert checks.period(getattr(mufu, name), *rest) == (rest[1], 0)


def test_one_wrong_row_of_a_table_changes_the_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    start, count = 0x3F800000, 1 << 18
    results = mufu.rcp(np.arange(start, start + count, dtype=np.uint32)).astype(object)
    checksum = sum(int(result) * (2 * at + 1) for at, result in enumerate(results)) % (1 << 64)
    assert checks.period(mufu.rcp, start, count, checksum) == (count, 0)
    table = mufu.rows("rcp").copy()
    table[3, 0] += 1
    monkeypatch.setattr(mufu, "rows", lambda _name: table)
    assert checks.period(mufu.rcp, start, count, checksum) == (count, 1)


def test_a_binade_that_differs_from_the_gpu_is_one_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.sweep("tanh.approx.f32", [123, 124]) == (1 << 24, 0)
    wrong = sweeps.measured()["tanh.approx.f32"].copy()
    wrong[124] ^= np.uint64(1)
    monkeypatch.setattr(sweeps, "measured", lambda: MappingProxyType({"tanh.approx.f32": wrong}))
    assert checks.sweep("tanh.approx.f32", [123, 124]) == (1 << 24, 1)


@pytest.mark.parametrize("fused_dot", [matrix.fused_dot, matrix_native.fused_dot], ids=["python", "c"])
def test_stored_products_are_reproduced_and_one_bit_less_of_alignment_is_seen(fused_dot: Any) -> None:
    def narrower(model: matrix.MatrixVariant, *operands: Any, **options: Any) -> matrix.Codes:
        row = replace(model.row, align=model.row.align - 1)
        return fused_dot(replace(model, row=row), *operands, **options)  # type: ignore[no-any-return]

    assert checks.products("mma.sync", fused_dot) == (11480, 0)
    assert checks.products("wgmma", fused_dot) == (7405, 0)
    checked, mismatches = checks.products("wgmma", narrower)
    assert checked == 7405
    assert mismatches > 300


def test_stored_products_have_their_whole_size() -> None:
    assert sum(path.stat().st_size for path in matrix_measured.DATA.iterdir()) < 300_000
    sets = [one for file in matrix_measured.FILES for one in matrix_measured.load(matrix_measured.DATA / file)]
    assert len({one.model.instruction for one in sets}) == 36


def check(name: str, result: Count | Exception) -> Check:
    def count() -> Count:
        if isinstance(result, Exception):
            raise result
        return result

    return Check(name, "this = that", "inputs", count)


def test_outcomes_come_in_the_order_of_the_checks_and_an_error_comes_out() -> None:
    chosen = [check("a", (10, 0)), check("b", (1 << 32, 3)), check("c", (0, 0))]
    outcomes = list(checks.run(chosen))
    assert [(one.name, one.ok) for one in outcomes] == [("a", True), ("b", False), ("c", False)]
    line = str(replace(outcomes[1], seconds=2.25))
    assert re.split(r" {2,}", line) == [
        "MISMATCH b", "4,294,967,296 inputs", "3 mismatches", "2.2 s", "this = that",
    ]  # fmt: skip
    with pytest.raises(UnsupportedError, match="tool:gcc"):
        list(checks.run([check("a", (1, 0)), check("d", UnsupportedError("tool:gcc"))]))


@pytest.mark.parametrize(("mismatches", "code"), [(0, 0), (2, 1)])
def test_the_command_prints_a_line_a_check_and_fails_on_a_mismatch(
    mismatches: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [
        Outcome("a", "this = that", "inputs", 1000, 0, 0.5),
        Outcome("b", "x = y", "codes", 24, mismatches, 0.1),
    ]
    monkeypatch.setattr(checks, "run", lambda: iter(outcomes))
    assert main(["doctor", "--numerics"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["ok", "a"], ["MISMATCH" if mismatches else "ok", "b"]]
    assert lines[2].startswith(f"2 checks, 1,024 values compared, {mismatches} mismatches, ")
    assert main(["doctor", "--numerics", "--json"]) == code
    assert f'"mismatches": {mismatches},' in capsys.readouterr().out
