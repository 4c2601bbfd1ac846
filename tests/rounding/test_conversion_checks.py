"""The conversions' second formulation agrees with the twin, and each comparison sees a fault planted on either side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.rounding import conversion_checks, conversions, formats
from equiv.rounding.conversion_checks import NARROWED, WIDENED, Narrowing
from equiv.rounding.conversions import CONVERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_NAME = {one.name: one for one in NARROWED}
EDGES = [0, 117, 120, 135, 142, 254, 255, 256]
"""Binades: subnormals, the ends of the narrow formats, the largest numbers, Inf and NaN; the last one is negative."""

# A conversion, the twin of another, a binade (leading nine bits) in which they differ, and at how many inputs.
PLANTED = [
    ("cvt.rn.bf16.f32", "eq_cvt_bf16_rz", 127, 128 * 32767 + 64),
    ("cvt.rn.tf32.f32", "eq_cvt_tf32_rz", 127, 1024 * 4095 + 512),
    ("cvt.rna.tf32.f32", "eq_cvt_tf32_rn", 127, 1 << 9),
    ("cvt.rn.satfinite.e4m3x2", "eq_cvt_e5m2_rn_satfinite", 127, None),
    ("cvt.rp.ue8m0x2", "eq_cvt_ue8m0_rz", 127, (1 << 23) - 1),
    ("cvt.rz.satfinite.ue8m0x2", "eq_cvt_ue8m0_rz", 255, 1),
]


@pytest.fixture
def _fresh_library() -> Iterator[None]:
    conversion_checks._library.cache_clear()
    yield
    conversion_checks._library.cache_clear()


@pytest.mark.parametrize("name", BY_NAME)
def test_the_second_formulation_equals_the_twin_where_something_happens(name: str) -> None:
    assert BY_NAME[name].against_second(EDGES) == (len(EDGES) << 23, 0)


@pytest.mark.parametrize("name", [name for name, one in BY_NAME.items() if one.definition])
def test_the_definition_equals_the_twin_around_every_midpoint(name: str) -> None:
    assert BY_NAME[name].against_definition() == (3 << 20, 0)


@pytest.mark.parametrize(("name", "twin", "binade", "wrong"), PLANTED)
@pytest.mark.usefixtures("_fresh_library")
def test_another_twin_is_seen_by_the_second_formulation(
    name: str, twin: str, binade: int, wrong: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = replace(BY_NAME[name], twin=twin)
    monkeypatch.setattr(conversion_checks, "NARROWED", (planted,))
    compared, differing = planted.against_second([binade])
    assert compared == 1 << 23
    assert differing == wrong if wrong is not None else differing > 1 << 20


def test_a_definition_that_rounds_otherwise_is_seen() -> None:
    one = BY_NAME["cvt.rp.ue8m0x2"]
    wrong = replace(one, definition=CONVERSIONS["ue8m0.f32.rz"])
    assert wrong.against_definition(np.array([0x3F800000, 0x3F800001, 0x7F800000], dtype=np.uint32)) == (3, 1)


@pytest.mark.parametrize("name", WIDENED)
def test_every_code_comes_back(name: str) -> None:
    fmt = formats.named(name)
    assert conversion_checks.round_trip(fmt) == (1 << fmt.width, 0)


def test_a_code_that_widens_to_another_value_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = conversions.widen

    def wrong(bits: Any, fmt: formats.Format) -> Any:
        return stock(bits, fmt) ^ np.where(np.asarray(bits) == 0x44, 1, 0).astype(np.uint32)

    monkeypatch.setattr(conversions, "widen", wrong)
    assert conversion_checks.round_trip(formats.E4M3) == (256, 1)


def test_facts_of_a_format_are_written_as_c() -> None:
    one: Narrowing = BY_NAME["cvt.rn.satfinite.e4m3x2"]
    assert one.facts == "{3, -6, 1, SECOND_RN, 0, 24, 126, 126, 127, 128}"
