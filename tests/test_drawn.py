"""Random cases: the same number gives the same case, each is legal by the pair's own rules, few need new kernels."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import equiv_fake
import pytest

from equiv import casefile, pairs
from equiv.drawn import ILLEGAL, LONG, MENDED, SHARING, SPAN, WIDE, Cases, seconds
from equiv.errors import UsageError
from equiv.pairs import Axis, Soak
from equiv.records import Case, TensorSpec
from equiv.report import entry

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = ("dsa_front", "dsa_index", "kda")


@pytest.mark.parametrize("name", PAIRS)
def test_a_case_depends_on_seed_and_number_alone(name: str) -> None:
    pair = pairs.get(name)
    one, other = Cases(pair, 7), Cases(pair, 7)
    forward = [one.case(number) for number in range(45)]
    backward = [other.case(number) for number in reversed(range(45))][::-1]
    assert forward == backward
    assert [case.id for case in forward[:2]] == ["soak-7-0", "soak-7-1"]
    assert forward[0].why == f"Case 0 of `equiv soak {name} --seed 7`."
    assert len({(case.seed, *case.axes.values(), *case.regimes.values()) for case in forward}) == 45
    different = [Cases(pair, 8).case(number) for number in range(5)]
    assert all(case.seed != like.seed for case, like in zip(different, forward, strict=False))


@pytest.mark.parametrize("name", PAIRS)
def test_cases_are_legal_short_and_share_what_kernels_are_compiled_for(name: str) -> None:
    pair = pairs.get(name)
    drawn = Cases(pair, 1)
    cases = [drawn.case(number) for number in range(10 * SHARING)]
    assert pair.soak.compiled
    for case in cases:
        assert not casefile.problems(case, pair)
        assert seconds(pair, case) <= pair.soak.most
        assert list(case.axes) == [axis.name for axis in pair.axes]
        assert list(case.regimes) == list(pair.regimes)
    shapes = {tuple(case.axes[axis] for axis in pair.soak.compiled) for case in cases}
    assert 5 < len(shapes) <= 10
    assert drawn.refused[MENDED]
    assert drawn.refused[LONG]


@pytest.mark.parametrize("name", PAIRS)
def test_every_regime_and_every_choice_comes_up(name: str) -> None:
    pair = pairs.get(name)
    drawn = Cases(pair, 3)
    cases = [drawn.case(number) for number in range(1200)]
    never = {"slots": {"far", "far_pages"}}  # need a pool of just the right stride, which hardly comes up
    for piece, known in pair.regimes.items():
        assert set(known) - {case.regimes[piece] for case in cases} <= never.get(piece, set()), piece
    for axis in pair.axes:
        found = {case.axes[axis.name] for case in cases}
        if axis.name != "heads":  # 96 heads are no short case
            assert found >= set(axis.choices), axis.name
        assert len(found) >= 2, axis.name


def test_a_case_pasted_into_a_file_is_the_same_case(tmp_path: Path) -> None:
    for name in PAIRS:
        drawn = [Cases(pairs.get(name), 5).case(number) for number in (3, 60)]
        path = tmp_path / f"{name}.toml"
        path.write_text("\n\n".join(map(entry.toml, drawn)))
        assert tomllib.loads(path.read_text())["case"][0]["id"] == "soak-5-3"
        read = casefile.load(path)
        assert [(case.name, case.seed, case.axes, case.regimes) for case in read] == [
            (case.name, case.seed, case.axes, case.regimes) for case in drawn
        ]


def fake(**changes: Any) -> pairs.Pair:
    return equiv_fake.make(**changes)


def test_what_the_check_refuses_gets_its_default_or_is_drawn_again_and_is_counted() -> None:
    def refuses(case: Case) -> list[tuple[str, str]]:
        odd = int(case.axes["n"]) % 2
        return [("axes.n", "must be even")] * odd + [("$", "no")] * (case.axes["behaviour"] == "good")

    drawn = Cases(fake(check=refuses, soak=Soak(compiled=("behaviour",))), 0)
    cases = [drawn.case(number) for number in range(50 * SHARING)]
    assert all(int(case.axes["n"]) % 2 == 0 and case.axes["behaviour"] != "good" for case in cases)
    assert drawn.refused[MENDED] > 50
    assert sum(case.axes["n"] == 8 for case in cases) >= drawn.refused[MENDED]
    assert drawn.refused[ILLEGAL] > 0
    assert drawn.refused[LONG] == drawn.refused[WIDE] == 0


def test_what_would_take_long_or_span_much_is_not_drawn() -> None:
    def wide(case: Case) -> tuple[TensorSpec, ...]:
        return (TensorSpec("x", "inout", "f32", (2,), (SPAN // 2 if case.axes["n"] == 1 else 1,), sparse=True),)

    slow = Soak(compiled=(), seconds=lambda case: int(case.axes["n"]) / 100, most=2.0)
    drawn = Cases(fake(layout=wide, soak=slow), 0)
    sizes = {drawn.case(number).axes["n"] for number in range(100)}
    assert max(map(int, sizes)) <= 200
    assert 1 not in sizes
    assert drawn.refused[LONG] > 20
    assert drawn.refused[WIDE] > 2
    assert max(int(Cases(drawn.pair, 0, 40.0).case(number).axes["n"]) for number in range(100)) > 1000


def test_a_pair_without_a_legal_case_says_so() -> None:
    drawn = Cases(fake(soak=Soak(seconds=lambda _: 3.0)), 0)
    said = "fake: no legal shape 0 of seed 0 in 10000 draws (10000 too long); cases may take 1 s"
    with pytest.raises(UsageError, match=re.escape(said)):
        drawn.case(0)
    with pytest.raises(UsageError, match=re.escape("seed -1 is not an integer from 0 to 2**64 - 1")):
        Cases(fake(), -1)


def test_a_float_between_bounds_of_one_sign_has_any_magnitude() -> None:
    axes = (
        Axis("e", "float", 1e-6, "small", low=1e-12, high=1.0),
        Axis("b", "float", -5.0, "low", low=-5.0, high=-0.001),
        Axis("c", "float", 0.0, "either", low=-1.0, high=1.0),
        Axis("free", "float", 2.0, "any"),
    )
    drawn = Cases(fake(axes=axes, layout=lambda _: (), soak=Soak(compiled=())), 0)
    cases = [drawn.case(number) for number in range(300)]
    found = {axis.name: [float(case.axes[axis.name]) for case in cases] for axis in axes}
    assert 1e-12 <= min(found["e"]) < 1e-10
    assert 0.1 < max(found["e"]) <= 1.0
    assert -5.0 == min(found["b"]) < max(found["b"]) < -0.001
    assert min(found["c"]) < 0 < max(found["c"])
    assert set(found["free"]) == {2.0}
