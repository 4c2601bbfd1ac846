"""Other people's kernels: found by entry point, run in the candidate's place, judged by the envelope."""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import brought
import equiv_fake
import pytest

from equiv import casefile, changed, cli, kernels, pairs, running
from equiv.errors import UsageError
from equiv.records import Status
from equiv.verify import verify
from equiv.workers import run_plan

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = Path(__file__).parent / "support" / "cases"

SOURCE = """
import equiv_fake
from equiv.kernels import Kernel, axis, tensor

def double(x, out, pool, n):
    assert len(x) == n
    out.copy_(x + x)
    pool[1] = 255

def lazy(x, out, n):
    out.copy_(x + x)

def returning(values, extra):
    return extra, values * 2

def nothing(values, extra):
    return values

def narrow(values, extra):
    return extra, (values * 2)[:-1]

def declared(toolchain, arch, form):
    return equiv_fake.declares(f"{form} on {arch}", carry=False)

ARGUMENTS = {"x": tensor("x"), "out": tensor("y"), "pool": tensor("pool"), "n": axis("n")}
COMMON = dict(pair="fake", summary="y = x + x", packages=("numpy",))
PLAIN = Kernel(entry="brought_kernels:double", arguments=ARGUMENTS, **COMMON)
WRONG = {"behaviour": ("wrong", "raises")}
PICKY = Kernel(entry="brought_kernels:double", arguments=ARGUMENTS, supports=WRONG, **COMMON)
FORMS = dict(declaration=declared, forms=("a",), form=lambda _: "a")
TOLD = Kernel(entry="brought_kernels:double", arguments=ARGUMENTS, **FORMS, **COMMON)
BY_CASE = Kernel(entry="equiv_fake:oracle", **COMMON)
HALF = {name: value for name, value in ARGUMENTS.items() if name != "pool"}
LAZY = Kernel(entry="brought_kernels:lazy", arguments=HALF, **COMMON)
PART = Kernel(entry="brought_kernels:lazy", arguments=HALF, omits={"pool": "has no pool"}, **COMMON)
NONE = Kernel(entry="brought_kernels:lazy", arguments=HALF, omits={"pool": "", "y": ""}, **COMMON)
GIVEN = {"values": tensor("x"), "extra": lambda case, tensors: tensors["pool"].fill_(255)}
RETURNS = Kernel(
    entry="brought_kernels:returning", arguments=GIVEN, returns=(None, "y"), omits={"pool": "all set"}, **COMMON
)
NOTHING = Kernel(entry="brought_kernels:nothing", arguments=GIVEN, returns=(None, "y"), **COMMON)
NARROW = Kernel(entry="brought_kernels:narrow", arguments=GIVEN, returns=(None, "y"), **COMMON)
ASTRAY = Kernel(entry="brought_kernels:double", arguments=ARGUMENTS | {"x": tensor("z")}, **COMMON)
ABSENT = Kernel(
    entry="brought_kernels:double", arguments=ARGUMENTS | {"n": tensor("z", optional=True)}, **COMMON
)
HOMELESS = Kernel(entry="brought_kernels:double", arguments=ARGUMENTS, pair="fake2", summary="", packages=())
AXELESS = Kernel(entry="brought_kernels:double", arguments={"m": axis("m")}, **COMMON)
CHOOSY = Kernel(entry="brought_kernels:double", supports={"behaviour": ("good", "odd")}, **COMMON)
EMPTY = Kernel(entry="brought_kernels:double", supports={"n": ()}, **COMMON)
NO_KERNEL = {"pair": "fake"}
BLIND = Kernel(entry="brought_kernels:returning", returns=("y",), **COMMON)
"""
NAMES = (
    "plain", "picky", "told", "by_case", "lazy", "part", "none", "returns", "nothing", "narrow", "astray", "absent",
    "blind", "homeless", "axeless", "choosy", "empty", "no_kernel",
)  # fmt: skip


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages with kernels, of which one cannot be imported."""
    points = {name: f"brought_kernels:{name.upper()}" for name in NAMES}
    brought.install(
        tmp_path, "brought_kernels", SOURCE, {"equiv.kernels": points | {"misspelt": "brought_kernels:PLIAN"}}
    )
    brought.install(tmp_path, "brought_rubble", "1 / 0\n", {"equiv.kernels": {"rubble": "brought_rubble:KERNEL"}})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    for name in ("brought_kernels", "brought_rubble"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def judged(name: str, case: str = "good") -> Any:
    pair = pairs.get(f"fake+{name}")
    (chosen,) = [one for one in casefile.load(CASES / "fake.toml", pair) if one.id == case]
    return verify(pair, chosen, equiv_fake.HostDevice())


def test_an_undeclared_kernel_is_within_at_best_and_the_report_says_of_what_nothing_is_known() -> None:
    verdict = judged("plain")
    assert (verdict.case, verdict.status) == ("fake+plain::good", Status.WITHIN)
    assert verdict.summary == (
        "y: declaration of candidate unknown; oracle and candidate agree bit for bit; "
        "pool: declaration of candidate unknown; oracle and candidate agree bit for bit"
    )
    (note,) = verdict.notes
    assert note.startswith("candidate: nothing is declared for numpy ")


def test_a_kernel_that_declares_is_compared_with_the_model_of_its_form() -> None:
    assert judged("told").status is Status.IDENTICAL
    told = pairs.get("fake+told")
    (case, *_) = casefile.load(CASES / "fake.toml", told)
    assert told.declared("candidate", {}, "sm_90a", case).party == "a on sm_90a"
    assert told.declared("oracle", {}, "sm_90a", case).party == "oracle"


def test_a_kernel_may_take_the_case_itself() -> None:
    assert judged("by_case").status is Status.WITHIN


def test_what_a_kernel_does_not_do_is_a_mismatch_unless_it_says_so() -> None:
    verdict = judged("lazy")
    assert verdict.status is Status.MISMATCH
    assert [one.output for one in verdict.outputs if one.status is Status.MISMATCH] == ["pool"]
    part = judged("part")
    assert (part.status, [one.output for one in part.outputs]) == (Status.WITHIN, ["y"])
    assert part.notes[-1] == "candidate: pool is not compared: has no pool"
    with pytest.raises(UsageError, match="kernel 'none' omits every output of fake\\+none::good: nothing is left"):
        judged("none")


def test_codes_and_scales_are_judged_as_pairs_where_a_kernel_omits_neither() -> None:
    both, one = SimpleNamespace(codes="y", scales="y"), SimpleNamespace(codes="y", scales="pool")
    fake = replace(pairs.get("fake"), quantised=lambda _case, _inputs, _declared: (both, one))
    (case, *_) = casefile.load(CASES / "fake.toml", fake)
    for name, kept in (("lazy", (both, one)), ("part", (both,))):
        found = kernels.in_place(fake, name).quantised
        assert found is not None
        assert found(case, {}, None) == kept
    assert kernels.in_place(pairs.get("fake"), "part").quantised is None


def test_values_that_a_kernel_returns_are_kept_if_they_fit() -> None:
    assert judged("returns").status is Status.WITHIN
    for name, said in (
        ("nothing", "brought_kernels:nothing returned 1 value(s), expected 2"),
        ("narrow", "brought_kernels:narrow returned for 'y' torch.float32 (7,), expected torch.float32 (8,)"),
        ("astray", "fake+astray::good has no tensor 'z'; its tensors: x, y, pool"),
    ):
        verdict = judged(name)
        assert verdict.status is Status.ERROR
        assert said in verdict.summary
    assert "assert len(x) == n" in judged("absent").summary  # it got None for the tensor that is not there


def test_a_case_that_a_kernel_does_not_support_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equiv_fake, "oracle", lambda *_: pytest.fail("ran"))
    verdict = judged("picky")
    assert (verdict.status, verdict.summary) == (
        Status.UNSUPPORTED,
        "needs axis:behaviour=good: candidate of fake+picky",
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("homeless", "(brought_kernels:HOMELESS): no pair named 'fake2'; known: "),
        ("axeless", "(brought_kernels:AXELESS): fake has no axis 'm'; known: n, behaviour"),
        ("choosy", "(brought_kernels:CHOOSY): supports.behaviour: expected 'good', 'carries', "),
        ("choosy", "got 'odd'"),
        ("empty", "(brought_kernels:EMPTY): supports.n: expected at least one value, got none"),
        ("no_kernel", "(brought_kernels:NO_KERNEL) gives a dict, not a Kernel"),
        ("blind", "(brought_kernels:BLIND): `returns` needs `arguments`"),
        ("misspelt", "(brought_kernels:PLIAN) cannot be loaded: AttributeError: "),
        ("rubble", "(brought_rubble:KERNEL) cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_wrong_with_an_entry_point_is_said_by_its_name(name: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        pairs.get(f"fake+{name}")
    assert str(caught.value).startswith(f"entry point equiv.kernels '{name}'")
    assert said in str(caught.value)


def test_a_kernel_that_is_not_there_and_one_of_another_pair_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no kernel named 'moon'; known: absent, astray, .*"):
        pairs.get("fake+moon")
    with pytest.raises(UsageError, match=r"kernel 'plain' is made for fake: fake\+plain"):
        pairs.get("fake_unknown+plain")
    with pytest.raises(UsageError, match="no pair named 'fak'"):
        pairs.get("fak+plain")


def test_two_packages_that_claim_one_name_are_both_named(packages: Path) -> None:
    brought.install(packages, "brought_again", "", {"equiv.kernels": {"plain": "brought_again:KERNEL"}})
    with pytest.raises(UsageError) as caught:
        pairs.get("fake+plain")
    assert str(caught.value) == (
        "entry point equiv.kernels 'plain' is claimed by brought_again:KERNEL and brought_kernels:PLAIN: uninstall one"
    )
    assert pairs.get("fake+told").name == "fake+told"


def test_list_shows_kernels_of_what_it_lists_and_those_that_cannot_be_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["list", "fake", "--cases", str(CASES)]) == 0
    out = capsys.readouterr().out
    assert "kernels of other packages, which run as PAIR+KERNEL\n" in out
    assert "  fake+part: y = x + x\n    pool is not compared: has no pool\n" in out
    assert "  fake+picky: y = x + x\n    only behaviour = wrong, raises\n" in out
    assert "  not loaded: entry point equiv.kernels 'rubble' (brought_rubble:KERNEL) cannot be loaded: ZeroDiv" in out
    assert cli.main(["list", "fake_unknown", "--cases", str(CASES)]) == 0
    assert "fake+" not in capsys.readouterr().out
    assert cli.main(["list", "fake", "--cases", str(CASES), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["fake"]["kernels"]
    assert {"name": "told", "summary": "y = x + x"} in listed


@pytest.mark.parametrize("more", [[], ["--in-process"]], ids=["workers", "in-process"])
def test_run_takes_pair_and_kernel_like_a_pair_beside_broken_entry_points(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, packages: Path, more: list[str]
) -> None:
    monkeypatch.setattr(sys.modules["equiv.device"], "device", equiv_fake.HostDevice)
    monkeypatch.setattr(running, "run_plan", functools.partial(run_plan, run=equiv_fake.run_on_host))
    monkeypatch.chdir(packages)
    run: Callable[..., int] = lambda *rest: cli.main(["run", "--cases", str(CASES), *more, *rest])  # noqa: E731
    assert run("fake+told::good", "fake+picky::good", "fake::good") == 0
    out = capsys.readouterr().out
    assert "3 case(s): 2 IDENTICAL, 0 REORDERED, 0 WITHIN, 1 UNSUPPORTED" in out
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["fake", "fake+picky", "fake+told"]
    assert run("fake+plain::good", "--strict") == 1
    assert "WITHIN 1 case(s): " in capsys.readouterr().out
    assert run("fake+rubble::good") == 2
    assert "entry point equiv.kernels 'rubble'" in capsys.readouterr().err


def test_a_change_of_the_kernel_s_module_affects_it(packages: Path) -> None:
    assert pairs.homes("fake+plain") == ("equiv_fake", "brought_kernels")
    changed._reach.cache_clear()
    assert changed._reached(packages, "fake+plain", ["brought_kernels.py"]) == "brought_kernels.py changed"
    assert changed._reached(packages, "fake", ["brought_kernels.py"]) == ""


def test_what_else_a_pair_says_of_omitted_outputs_is_left_out_and_its_forms_stay_the_oracle_s() -> None:
    part = pairs.get("fake+part")
    (case, *_) = casefile.load(CASES / "fake.toml", part)
    assert part.undefined(case, {}) == {}
    assert part.forms == {}
    assert pairs.get("fake+told").forms == {"candidate": ("a",)}
    assert [pairs.known(name) for name in ("fake", "fake+part", "fake+moon", "fak+part")] == [True, True, False, False]


def test_every_kernel_that_is_there_is_found_in_order_of_its_name() -> None:
    names = sorted([*NAMES, "misspelt", "rubble"])
    found = [one for one in kernels.found() if one.name in names]  # others may be installed
    assert [one.name for one in found] == names
    assert {one.name for one in found if one.kernel is None} == {
        "axeless", "blind", "choosy", "empty", "homeless", "misspelt", "no_kernel", "rubble",
    }  # fmt: skip
