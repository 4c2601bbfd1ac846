"""Candidates of `dsa_index` with a seeded fault each: the shipped kernel, one of its helpers exchanged when traced."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from equiv.dsa_index import PAIR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.pairs import Pair
    from equiv.records import Case


def faulty(name: str) -> Pair:
    """The pair with the fault of that name (a function of this module) in its candidate."""
    return replace(PAIR, candidate=replace(PAIR.candidate, entry=f"dsa_faults:{name}"))


@contextlib.contextmanager
def exchanged(target: str, helper: object) -> Iterator[None]:
    """Another device helper, and nothing compiled with the sound one."""
    with mock.patch("equiv.cute.host._compiled", {}), mock.patch(target, helper):
        yield


def truncating_e4m3(case: Case, tensors: Mapping[str, Any]) -> None:
    """Codes are cut to three mantissa bits instead of rounded to nearest even."""
    from cutlass import Float32, Uint16, Uint32, cute

    from equiv.cute import convert
    from equiv.dsa_index.parties import candidate

    sound = convert.e4m3x2

    @cute.jit  # type: ignore[untyped-decorator]
    def e4m3x2(low: Float32, high: Float32) -> Uint16:
        cut_low = (low.bitcast(Uint32) & Uint32(0xFFF00000)).bitcast(Float32)
        cut_high = (high.bitcast(Uint32) & Uint32(0xFFF00000)).bitcast(Float32)
        return sound(cut_low, cut_high)

    with exchanged("equiv.cute.convert.e4m3x2", e4m3x2):
        candidate(case, tensors)


def doubled_exact_powers(case: Case, tensors: Mapping[str, Any]) -> None:
    """The scale's exponent is one too large where amax / 448 is a power of two already."""
    from cutlass import Float32, Uint32, cute

    from equiv.dsa_index.parties import candidate

    @cute.jit  # type: ignore[untyped-decorator]
    def pow2_ceil(s: Float32) -> Float32:
        return ((s.bitcast(Uint32) + 0x800000) & 0x7F800000).bitcast(Float32)

    with exchanged("equiv.cute.dsa.index.pow2_ceil", pow2_ceil):
        candidate(case, tensors)


def wrapping_slots(case: Case, tensors: Mapping[str, Any]) -> None:
    """Slot -1 is the last slot of the cache, as an index would be in Python."""
    from equiv.dsa_index.parties import candidate
    from equiv.geometry.dsa import PAGE

    slots = tensors["slots"]
    wrapped = slots.where(slots != -1, tensors["cache"].shape[0] * PAGE - 1)
    candidate(case, {**tensors, "slots": wrapped})


if __name__ == "__main__":
    import sys

    from equiv.casefile import find_cases, load, select
    from equiv.device import device
    from equiv.report.text import case_text
    from equiv.verify import verify

    fault, name, on = sys.argv[1:]
    (chosen,) = select(load(find_cases(None) / "dsa_index.toml", PAIR), [f"dsa_index::{name}"], [])
    print(case_text(verify(faulty(fault), chosen, device(on))))
