"""`equiv budget`: what kernels take, read from what compilers made, against what they may."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from equiv import budget, cli, pairs
from equiv.budget import Use
from equiv.casefile import load
from equiv.emulator import compiling
from equiv.errors import UsageError
from equiv.kernels import Kernel
from equiv.records import Case

CASES = Path(__file__).parent.parent / "cases"
ROOMY = Use("dsa_index", "oracle", "fold_weights_kernel", "sm_90a", "triton 3.8.0", 200, 0, 0, 4096, 4, 2)


@pytest.fixture
def found() -> tuple[Use, ...]:
    """What kernels of `dsa_index` take on Hopper, as they were measured once."""
    candidate = Use("dsa_index", "candidate", "DsaIndex", "sm_90a", "nvidia-cutlass-dsl 4.8.1", 28, 0, 0, 16, 0, 3)
    oracle = replace(candidate, party="oracle", compiler="triton 3.8.0")
    return (candidate, replace(oracle, kernel="fold_weights_kernel"), replace(oracle, kernel="normalise_key_kernel"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of case files with one case of `dsa_index`."""
    (tmp_path / "cases").mkdir()
    text = (CASES / "dsa_index.toml").read_text()
    (tmp_path / "cases" / "dsa_index.toml").write_text(text[: text.index("[[case]]", text.index("[[case]]") + 1)])
    return tmp_path / "cases"


@pytest.mark.slow
def test_every_kernel_of_both_parties_is_compiled_once_and_none_is_run() -> None:
    (case,) = [case for case in load(CASES / "dsa_index.toml") if case.id == "fp8-b17-random"]
    uses, failed = budget.compiled([case, replace(case, seed=99)], ["emulated:sm_90a"])
    assert failed == ()
    assert [(use.party, use.kernel) for use in uses] == [
        ("candidate", "DsaIndex"), ("oracle", "fold_weights_kernel"), ("oracle", "insert_key_fp8_kernel"),
        ("oracle", "normalise_key_kernel"), ("oracle", "quantise_query_fp8_kernel"),
    ]  # fmt: skip
    assert all(8 < use.registers <= 32 for use in uses)
    assert all(use.variants == 1 and not use.spills and not use.stack for use in uses)
    shared = {use.kernel: (use.shared > 0, use.barriers) for use in uses}
    assert shared["normalise_key_kernel"] == (True, 1)
    assert shared["DsaIndex"] == (False, 0)


def test_a_kernel_that_two_pairs_launch_is_each_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = [case for case in load(CASES / "dsa_index.toml") if case.id == "fp8-b17-random"]
    pair = pairs.get("dsa_index")
    pair = replace(pair, candidate=replace(pair.candidate, architectures=()))
    monkeypatch.setattr(pairs, "get", lambda name: replace(pair, name=name))
    uses, failed = budget.compiled([case, replace(case, pair="twin")], ["emulated:sm_90a"])
    assert failed == ()
    assert {use.pair for use in uses} == {"dsa_index", "twin"}
    of = {name: [replace(use, pair="") for use in uses if use.pair == name] for name in ("dsa_index", "twin")}
    assert of["dsa_index"] == of["twin"]
    assert len(of["twin"]) == 4


def run(monkeypatch: pytest.MonkeyPatch, found: tuple[Use, ...], *arguments: str) -> int:
    """The command with figures that were compiled before."""
    monkeypatch.setattr(budget, "compiled", lambda *_: (found, ()))
    return cli.main(["budget", "dsa_index", *arguments])


def test_a_larger_figure_fails_and_is_shown_and_a_smaller_one_is_shown(
    found: tuple[Use, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ["--cases", str(folder)]
    assert run(monkeypatch, found, *kept) == 3
    out = capsys.readouterr().out
    assert f"{len(found)} kernel(s), 0 over budget, {len(found)} without one for these versions, 0 failed" in out
    assert "without  dsa_index candidate DsaIndex sm_90a: no budget for nvidia-cutlass-dsl 4.8.1" in out
    assert run(monkeypatch, (), *kept) == 3
    capsys.readouterr()
    assert run(monkeypatch, found, *kept, "--update") == 0
    assert capsys.readouterr().out.endswith("; budgets written\n")
    assert run(monkeypatch, found, *kept) == 0
    assert "0 over budget, 0 without one" in capsys.readouterr().out
    first, *others = found
    more = (replace(first, registers=first.registers + 40, spills=3, shared=0), *others)
    assert run(monkeypatch, more, *kept) == 1
    said = "OVER  dsa_index candidate DsaIndex sm_90a: registers 28 -> 68, spills 0 -> 3, shared 16 -> 0"
    assert said in capsys.readouterr().out
    assert run(monkeypatch, (replace(first, registers=first.registers - 1), *others), *kept) == 0
    assert f"under  dsa_index candidate DsaIndex sm_90a: registers {first.registers} -> {first.registers - 1}" in (
        capsys.readouterr().out
    )
    assert run(monkeypatch, tuple(others), *kept) == 0
    gone = "gone  dsa_index candidate DsaIndex sm_90a: has a budget, and no case compiled it"
    assert gone in capsys.readouterr().out
    for part in (["--suite", "smoke"], ["--device", "emulated:sm_100a"]):
        assert run(monkeypatch, tuple(others), *kept, *part) == 0
        assert "gone" not in capsys.readouterr().out


def test_other_versions_keep_their_budgets_and_have_none_of_others(
    found: tuple[Use, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = tuple(replace(use, compiler="triton 9.9", registers=255) for use in found)
    for uses in (found, newer):
        assert run(monkeypatch, uses, "--cases", str(folder), "--update") == 0
    path = folder / "budgets" / "dsa_index.toml"
    assert len(list(budget.read("b", path.read_bytes()))) == 2 * len(found)
    for uses in (found, newer):
        assert run(monkeypatch, uses, "--cases", str(folder), "--json") == 0
    out = capsys.readouterr().out
    read = json.loads(out[out.rindex("\n{\n") :])
    assert {(kernel["budget"]["registers"], tuple(kernel["over"])) for kernel in read["kernels"]} == {(255, ())}


def test_budgets_of_a_revision_are_read_from_git(
    found: tuple[Use, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*command: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", "-C", str(folder.parent), *who, *command], check=True, capture_output=True)

    assert run(monkeypatch, found, "--cases", str(folder), "--update") == 0
    git("init")
    git("add", ".")
    git("commit", "-m", "budgets")
    more = tuple(replace(use, registers=use.registers + 1) for use in found)
    assert run(monkeypatch, more, "--cases", str(folder), "--update") == 0
    assert run(monkeypatch, more, "--cases", str(folder)) == 0
    assert run(monkeypatch, more, "--cases", str(folder), "--against", "main") == 1
    assert f"{len(found)} over budget" in capsys.readouterr().out
    assert run(monkeypatch, more, "--cases", str(folder), "--against", "nobody") == 2
    assert "--against: git rev-parse --verify nobody^{commit}: " in capsys.readouterr().err
    kept = folder.parent / "kept"
    shutil.copytree(folder / "budgets", kept)
    assert run(monkeypatch, found, "--cases", str(folder), "--against", str(kept)) == 0
    assert "0 over budget, 0 without" in capsys.readouterr().out


def test_damaged_budgets_are_refused_by_entry_and_field(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "budgets").mkdir()
    path = folder / "budgets" / "dsa_index.toml"
    for text, said in (
        ("[[kernel]", "not TOML"),
        ('[[kernel]]\npair = "dsa_index"\n', "$.kernel[0]: missing, unknown or of another kind: party, name"),
        ("kernel = 3\n", "$.kernel[0]: missing, unknown or of another kind: pair"),
    ):
        path.write_text(text)
        assert cli.main(["budget", "dsa_index", "--cases", str(folder)]) == 2
        assert said in capsys.readouterr().err
    good = {**dict.fromkeys(budget.FIGURES, 1), **dict.fromkeys(("pair", "party", "name", "arch", "compiler"), "x")}
    lines = [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in good.items()]
    text = "\n".join(["[[kernel]]", *lines])
    assert len(list(budget.read("b", text.encode()))) == 1
    with pytest.raises(UsageError, match=re.escape("b: $.kernel[0]: missing, unknown or of another kind: figure")):
        list(budget.read("b", f"{text}\nfigure = 1".encode()))


def test_what_cannot_be_compiled_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SimpleNamespace(arch="sm_90a", name="emulated:sm_90a", launches=(), active=contextlib.nullcontext)
    monkeypatch.setattr(compiling, "CompilingDevice", lambda _arch: silent)
    case = Case("fake", "x", "w", 1, ("pr",), {"n": 8, "behaviour": "raises"}, {})
    uses, failed = budget.compiled([case], ["emulated:sm_90a"])
    assert uses == ()
    assert failed == ("fake::x candidate emulated:sm_90a: ValueError: seven is not a tile size",)
    lacking = replace(case, axes={"n": 8, "behaviour": "needs_moon"})
    _, failed = budget.compiled([lacking], ["emulated:sm_90a"])
    assert len(failed) == 1
    assert "moon" in failed[0]


def test_a_case_that_a_party_does_not_do_is_not_compiled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SimpleNamespace(arch="sm_90a", name="emulated:sm_90a", launches=(), active=contextlib.nullcontext)
    monkeypatch.setattr(compiling, "CompilingDevice", lambda _arch: silent)
    picky = Kernel(
        entry="equiv_fake:candidate", packages=(), pair="fake", summary="", supports={"behaviour": ("good",)}
    )
    pair = replace(pairs.get("fake"), candidate=picky)
    monkeypatch.setattr(pairs, "get", lambda _name: pair)
    case = Case("fake", "x", "w", 1, ("pr",), {"n": 8, "behaviour": "raises"}, {})
    assert budget.compiled([case], ["emulated:sm_90a"]) == ((), ())


def test_a_larger_budget_is_kept() -> None:
    assert ROOMY.over(replace(ROOMY, shared=4095, registers=300)) == ("shared",)
    assert pairs.get("dsa_index").name == ROOMY.pair
