"""Guarded memory on a GPU: the same faults are found there as on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equiv_fake
import numpy as np
import pytest

from equiv.pairs import Party
from equiv.records import Case, Status, TensorSpec
from equiv.runner import run_party
from equiv.verify import verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.device import Device

pytestmark = pytest.mark.gpu

CASE = Case("fake", "a", "", 5, ("pr",), {"n": 8, "behaviour": "good"}, {})


@pytest.mark.parametrize(
    ("behaviour", "status", "text"),
    [
        ("good", Status.IDENTICAL, ""),
        ("wrong", Status.MISMATCH, "y: the candidate differs from its model in 1 of 8 elements"),
        ("overruns", Status.MISMATCH, "memory of candidate: `y` guard after must not change: 12 byte(s) changed"),
        ("writes_input", Status.MISMATCH, "memory of candidate: `x` an input that must not change: 1 byte(s) changed"),
    ],
)
def test_a_case_comes_to_the_same_verdict_as_on_the_host(
    gpu: Device, behaviour: str, status: Status, text: str
) -> None:
    found = verify(equiv_fake.PAIR, replace(CASE, axes={"n": 8, "behaviour": behaviour}), gpu)
    assert found.status is status
    assert text in found.summary


def stray(case: Case, tensors: Mapping[str, Any]) -> None:
    """Writes one byte in the last row, and one in a hole far before it."""
    cache = tensors["cache"]
    assert cache.is_cuda
    cache[2, 1] = 77
    cache.as_strided((1,), (1,), cache.storage_offset() + (1 << 29) + 5).fill_(0xAB)


def test_a_stray_write_into_a_hole_of_gigabytes_is_found(gpu: Device) -> None:
    spec = TensorSpec("cache", "inout", "u8", (3, 4), ((1 << 30) + 64, 1), sparse=True)
    pair = equiv_fake.make(
        layout=lambda _case: (spec,),
        oracle=Party(f"{__name__}:stray", ("numpy",)),
        outputs=lambda _case, _given, after: {name: bits.copy() for name, bits in after.items()},
    )
    bits = np.arange(12, dtype=np.uint8).reshape(3, 4)
    side = run_party(pair, "oracle", CASE, {"cache": bits}, gpu)
    bits[2, 1] = 77
    assert (side.outputs["cache"] == bits).all()
    assert side.faults == (
        (
            "`cache` stride gap must not change: 1 byte(s) changed, the first at byte offset 536870917 (0x00 -> 0xab), "
            "the last at 536870917"
        ),
    )
