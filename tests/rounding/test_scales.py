"""Pairs of codes and scales: every convention is told from the values, and the three judgements count groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.rounding import arithmetic as fp
from equiv.rounding.formats import E2M1, E4M3, Format, decode
from equiv.rounding.scales import Quantised, conventions, remarks

if TYPE_CHECKING:
    from equiv.rounding.scales import Convention

GROUPS, WIDTH = 96, 32


def values(target: Format) -> Any:
    """Groups whose amax is at, just below and just above every edge that a convention has, and some others."""
    generator = np.random.default_rng(11)
    top = float(decode(np.array(target.largest, dtype=target.dtype), target))
    amax = np.exp2(generator.uniform(-3, 9, GROUPS))
    edges = [top, top * 2, 2.0 ** np.floor(np.log2(top)), 1.0, 240, 256, 127, 224, 4, 8, 7, 3]
    edges = [edge * (1 + step * 2.0**-23) for edge in edges for step in (-3, 0, 3)]
    amax[: len(edges)] = edges
    spread = generator.uniform(-1, 1, (GROUPS, WIDTH))
    spread[:, 5] = 1.0
    return (spread * amax[:, None]).astype(np.float32).view(np.uint32)


def pair(target: Format, *, direct: bool = True, **changes: Any) -> Quantised:
    fields: dict[str, Any] = {
        "codes": "codes", "scales": "scales", "group": "block", "values": values(target), "target": target,
        "floor": np.uint32(fp.bits_of(1e-4)), "open": np.zeros(GROUPS, dtype=bool), "direct": direct,
        "keep": lambda scale: scale[:, None],
    }  # fmt: skip
    return Quantised(**(fields | changes))


def made(by: Convention, quantised: Quantised) -> dict[str, Any]:
    applied = by.applied(quantised.amax, quantised.target)
    kept = applied if by.kept is None else by.kept(quantised.amax, quantised.target)
    return {"codes": quantised.coded(applied)[0], "scales": quantised.keep(kept)}


NAMES = [(target, one.name) for target in (E4M3, E2M1) for one in conventions(target)[1:]]


@pytest.mark.parametrize(("target", "name"), NAMES, ids=[f"{target.name}-{name}" for target, name in NAMES])
def test_every_convention_is_told_from_the_others(target: Format, name: str) -> None:
    quantised = pair(target)
    known = {one.name: one for one in conventions(target)}
    ceil, other = (made(known[which], quantised) for which in ("ceil", name))
    first, second = remarks([quantised], other, ceil)
    assert first.startswith(f"codes with scales: scale convention: {GROUPS} of {GROUPS} blocks fit {name}, ")
    assert f" fit {name}, {known[name].formula}; the model's is ceil, 2^ceil(log2(amax / " in first, (
        "told from all others"
    )
    assert second.startswith(f"codes with scales: of {GROUPS} blocks, ")


def test_the_three_judgements_are_counted_apart() -> None:
    quantised = pair(E4M3, direct=False)
    known = {one.name: one for one in conventions(E4M3)}
    ceil, floor = (made(known[name], quantised) for name in ("ceil", "floor"))
    wrong = {"codes": ceil["codes"].copy(), "scales": ceil["scales"].copy()}
    wrong["scales"][:7] = floor["scales"][:7]  # a scale without its codes
    wrong["codes"][10:12, 3] ^= 1  # codes without a reason
    changed = int((floor["scales"][:7] != ceil["scales"][:7]).sum())
    first, second = remarks([quantised], wrong, ceil)
    assert changed == 5
    assert (
        f"scale convention: {GROUPS - changed - 2} of {GROUPS} blocks fit with {GROUPS - changed} scales ceil," in first
    )
    assert (
        f"{GROUPS - changed - 2} have the codes of the scale they keep, {GROUPS - changed} keep the model's" in second
    )
    assert "dequantised values are off by up to 0.5 of amax, the model's by 0.0" in second


def test_right_scales_with_wrong_codes_are_said_to_be_the_models() -> None:
    quantised = pair(E2M1)
    right = made(conventions(E2M1)[0], quantised)
    wrong = {**right, "codes": right["codes"] ^ np.uint8(8)}
    first, second = remarks([quantised], wrong, right)
    assert first == (
        f"codes with scales: scale convention: the model's, ceil, 2^ceil(log2(amax / 6)), of all {GROUPS} blocks; "
        "the codes are another matter"
    )
    assert f"of {GROUPS} blocks, 0 have the codes of the scale they keep, {GROUPS} keep the model's scale" in second


def test_a_scale_that_is_only_folded_is_told_by_the_power_of_two_that_gives_it() -> None:
    weight = fp.bits_of(np.linspace(0.1, 3, GROUPS).astype(np.float32))
    quantised = pair(E4M3, direct=False, keep=lambda scale: fp.mul(weight, scale)[:, None])
    known = {one.name: one for one in conventions(E4M3)}
    first, second = remarks([quantised], made(known["even"], quantised), made(known["ceil"], quantised))
    assert f"{GROUPS} of {GROUPS} blocks fit even," in first
    assert f"of {GROUPS} blocks, {GROUPS} have the codes of the scale they keep, " in second
    exact = made(known["exact"], quantised)
    first, second = remarks([quantised], exact, made(known["ceil"], quantised))
    assert f"{GROUPS} of {GROUPS} blocks fit exact, amax / 448, no power of two" in first
    assert "keep none that can be told" in second


def test_undefined_groups_are_not_counted_and_equal_pairs_say_nothing() -> None:
    quantised = pair(E4M3, open=np.arange(GROUPS) < 90)
    known = {one.name: one for one in conventions(E4M3)}
    ceil, floor = (made(known[name], quantised) for name in ("ceil", "floor"))
    assert list(remarks([quantised], ceil, ceil)) == []
    mixed = {name: np.where(quantised.open[:, None], floor[name], ceil[name]) for name in ceil}
    assert list(remarks([quantised], mixed, ceil)) == []
    first, second = remarks([quantised], floor, ceil)
    assert "6 of 6 blocks fit floor" in first
    assert "of 6 blocks, 6 have the codes" in second


def test_what_follows_no_convention_is_said_so() -> None:
    quantised = pair(E4M3)
    right = made(conventions(E4M3)[0], quantised)
    wrong = {"codes": right["codes"] ^ np.uint8(1), "scales": right["scales"] + np.uint32(1 << 28)}
    first, _ = remarks([quantised], wrong, right)
    assert "scale convention: none that is known fits, ceil not more than 0 of 96 blocks" in first


def test_an_empty_pair_says_nothing() -> None:
    empty = pair(E4M3, values=np.zeros((0, WIDTH), dtype=np.uint32), open=np.zeros(0, dtype=bool))
    nothing: dict[str, Any] = {
        "codes": np.zeros((0, WIDTH), dtype=np.uint8),
        "scales": np.zeros((0, 1), dtype=np.uint32),
    }
    assert list(remarks([empty], nothing, nothing)) == []
