"""Bounds on what a projection's order may lose: they hold, they are of its size, and are zero where sums are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from front_cases import case, oracle, sliced

from equiv.dsa_front import PAIR
from equiv.envelope.projection import Operands, accumulators, lowest_bits, proven, walked
from equiv.rounding import arithmetic as fp
from equiv.rounding import dsa, front
from equiv.rounding.conversions import CONVERSIONS, widen
from equiv.rounding.formats import BF16
from equiv.rounding.front_ledger import LEDGER
from equiv.rounding.intervals import Interval
from equiv.rounding.projection import Chain, part_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.records import Bits
    from equiv.rounding.declaration import Declaration

BOTH = (oracle(), sliced(4))


def bf16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    return CONVERSIONS["bf16.f32.rn"](fp.bits_of(values)).astype(np.uint16)


def operands(regime: str, outputs: int = 512) -> tuple[Bits, Bits]:
    """(latents [5, 1536], weights [outputs, 1536]) of a regime that both have."""
    data = PAIR.inputs(case({"latent": regime, "w_q": regime}, normalized=True))
    return data["q_c"], data["w_q"][:outputs]


def total(declaration: Declaration, latent: Bits, weights: Bits) -> fp.U32:
    run = dsa.runner(declaration, LEDGER)
    return front.project(part_of(declaration.order("projection")), weights, latent, run)


def ends(interval: Interval) -> tuple[Any, Any]:
    return fp.floats(interval.low).astype(np.float64), fp.floats(interval.high).astype(np.float64)


@pytest.mark.parametrize("regime", ["normal", "wide", "mirrored", "neighbours"])
def test_what_every_declared_order_gives_lies_between_the_ends(regime: str) -> None:
    latent, weights = operands(regime)
    low, high = ends(accumulators(Interval.point(widen(latent, BF16)), weights, BOTH))
    for declaration in (*BOTH, sliced(2)):
        found = fp.floats(total(declaration, latent, weights)).astype(np.float64)
        assert ((low <= found) & (found <= high)).all()
        if regime in {"normal", "wide"}:
            assert (np.abs(found - (low + high) / 2) / (high - low)).max() > 0.05


def test_random_sums_have_intervals_far_below_a_bf16_ulp() -> None:
    latent, weights = operands("normal")
    low, high = ends(accumulators(Interval.point(widen(latent, BF16)), weights, BOTH))
    typical = np.median(np.abs(low))
    assert np.median(high - low) < 2.0**-15 * typical


def test_cancelling_sums_are_bounded_by_the_partial_sums_that_occur() -> None:
    latent, weights = operands("neighbours")
    low, high = ends(accumulators(Interval.point(widen(latent, BF16)), weights, BOTH))
    sizes = np.abs(front.values(latent)) @ np.abs(front.values(weights)).T
    assert np.median((high - low) / sizes) < 2.0**-21  # a bound by magnitudes alone is 96 * 21 * 2^-24


def test_whole_numbers_leave_no_room_in_any_order_not_even_an_unknown_one() -> None:
    latent, weights = operands("integers")
    interval = accumulators(Interval.point(widen(latent, BF16)), weights, (None, oracle()))
    np.testing.assert_array_equal(interval.low, interval.high)
    np.testing.assert_array_equal(interval.low, total(oracle(), latent, weights))


def test_sums_are_proven_exact_up_to_24_bits_and_not_beyond() -> None:
    latent = np.zeros((3, 32))
    latent[:, :2] = [[2.0**24, 1], [2.0**23, 1], [2.0**23, 2.0**-1]]
    given = Operands.of(Interval.point(widen(bf16(latent), BF16)), bf16(np.ones((1, 32)) * 2))
    sizes = np.abs(latent).sum(axis=1, keepdims=True) * 2
    assert proven(given, sizes)[:, 0].tolist() == [False, True, False]


def test_one_product_is_exact_and_two_of_different_size_are_not() -> None:
    latent = np.zeros((3, 32))
    latent[0, 5], latent[1, 3], latent[1, 9], latent[2, 7] = 1.9921875, 2.0**40, 1.0, 2.0**-80
    weights = np.zeros((2, 32))
    weights[0], weights[1, 3] = 1.9921875, 2.0**-70
    given = Operands.of(Interval.point(widen(bf16(latent), BF16)), bf16(weights))
    sizes = np.abs(latent) @ weights.T
    assert proven(given, sizes).tolist() == [[True, True], [False, True], [True, True]]


def test_an_uncertain_row_is_never_proven_and_its_spread_is_that_of_its_elements() -> None:
    latent, weights = operands("integers", 64)
    latent[2, 7] = 0x40C0
    bits = widen(latent, BF16)
    above = bits.copy()
    above[2, 7] += 1 << 16
    given = Operands.of(Interval(bits, above), weights)
    spread = given.spread()
    assert np.flatnonzero(spread.any(axis=1)).tolist() == [2]
    step = abs(float(fp.floats(above[2, 7])) - float(fp.floats(bits[2, 7]))) / 2
    np.testing.assert_allclose(spread[2], step * np.abs(front.values(weights[:, 7])))
    assert not proven(given, np.full(spread.shape, 8.0))[2].any()
    low, high = ends(accumulators(Interval(bits, above), weights, BOTH))
    for row in (bits, above):
        found = fp.floats(total(oracle(), (row >> 16).astype(np.uint16), weights))
        assert ((low <= found) & (found <= high)).all()


def test_an_unknown_party_may_lose_what_any_order_loses() -> None:
    latent, weights = operands("normal", 64)
    point = Interval.point(widen(latent, BF16))
    (known_low, known_high), (low, high) = (ends(accumulators(point, weights, d)) for d in (BOTH, (None, oracle())))
    assert (low <= known_low).all()
    assert (high >= known_high).all()
    assert np.median((high - low) / (known_high - known_low)) > 10
    alone = ends(accumulators(point, weights, (None, None)))
    np.testing.assert_allclose(alone[1], high, rtol=1e-6)


def test_the_walk_in_c_is_that_of_its_description() -> None:
    rng = np.random.default_rng(5)
    latent, weights = bf16(rng.standard_normal((3, 64))), bf16(rng.standard_normal((70, 64)) * 2.0**-3)
    high = widen(latent, BF16) + np.uint32(1 << 16) * (rng.integers(0, 9, (3, 64)) == 0).astype(np.uint32)
    given = Operands.of(Interval(widen(latent, BF16), high), weights)
    spread, unit = given.spread(), 2.0**-25
    columns = [*range(32, 64), *range(16)]
    found = walked(Chain(tuple(columns), "x"), given, spread, 16, unit)
    w, x, half, bits = (
        front.values(weights)[:, columns],
        *(a[:, columns] for a in (given.middle, given.half, given.bits)),
    )
    products = np.einsum("bk,nk->bnk", bits, lowest_bits()[weights[:, columns]])
    np.testing.assert_allclose(found.total, x @ w.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.sizes, (np.abs(x) + half) @ np.abs(w).T, rtol=1e-12)
    lost, size = np.zeros((3, 70)), spread.copy()
    for start in range(0, 48, 16):
        block = slice(start, start + 16)
        tops = np.outer(*(power(m[:, block].max(axis=1)) for m in (np.abs(x) + half, np.abs(w))))
        below = unit * np.maximum(tops, power(size))
        lost += below * (products[:, :, block] < below[..., None]).sum(axis=-1) + unit * tops
        size = np.abs(x[:, : start + 16] @ w[:, : start + 16].T) + spread + lost
        lost += 2.0**-23 * power(size) + 2.0**-148
        size += 2.0**-23 * power(size) + 2.0**-148
    assert 0 < (found.lost / found.sizes).max() < 1e-5
    np.testing.assert_allclose(found.lost, lost, rtol=1e-9)


def power(magnitudes: Any) -> Any:
    """Largest power of two not above; 0 of 0."""
    mantissa, exponent = np.frexp(magnitudes)
    return np.where(mantissa == 0, 0.0, np.ldexp(1.0, exponent - 1))


def test_the_lowest_bit_of_every_code_divides_its_value_and_no_larger_power_does() -> None:
    codes = np.array([c for c in range(1 << 16) if c & 0x7F80 != 0x7F80 and c & 0x7FFF], dtype=np.uint16)
    quotient = front.values(codes) / lowest_bits()[codes]
    assert (quotient % 2 == 1).all()
    assert np.isinf(lowest_bits()[[0, 0x8000]]).all()
