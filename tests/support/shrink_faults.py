"""Candidates of the fake pair that are wrong where something about a value or a size holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from equiv_fake import inputs, oracle

from equiv.records import Case

if TYPE_CHECKING:
    from collections.abc import Mapping


def large(case: Case, tensors: Mapping[str, Any]) -> None:
    """One ulp more wherever |x| >= 1."""
    _bump(tensors, tensors["x"].abs() >= 1)


def odd(case: Case, tensors: Mapping[str, Any]) -> None:
    """One ulp more wherever x has a set bit 20, the third of its mantissa."""
    import torch

    _bump(tensors, (tensors["x"].view(torch.int32) & (1 << 20)) != 0)


def behind(case: Case, tensors: Mapping[str, Any]) -> None:
    """One ulp more from element 5 on."""
    import torch

    _bump(tensors, torch.arange(len(tensors["x"])) >= 5)


RARE = Case("fake", "one", "", 3, (), {"n": 64}, {})


def rare(case: Case, tensors: Mapping[str, Any]) -> None:
    """One ulp more for the one value that seed 3 has at element 5."""
    import torch

    _bump(tensors, tensors["x"].view(torch.int32) == int(inputs(RARE)["x"].view(np.int32)[5]))


def outside(case: Case, tensors: Mapping[str, Any]) -> None:
    """Writes a gap between rows of the pool if any element of x is 1 or more."""
    oracle(case, tensors)
    if bool((tensors["x"].abs() >= 1).any()):
        tensors["pool"].as_strided((1,), (1,), tensors["pool"].storage_offset() + 6).zero_()


def stops(case: Case, tensors: Mapping[str, Any]) -> None:
    """Refuses more than three elements, and a negative first one in another way."""
    if float(tensors["x"][0]) < 0:
        raise KeyError("negative")
    if len(tensors["x"]) > 3:
        raise ValueError("no room")
    oracle(case, tensors)


def _bump(tensors: Mapping[str, Any], where: Any) -> None:
    import torch

    tensors["y"].copy_(tensors["x"] * 2)
    tensors["y"].view(torch.int32)[where] += 1
    tensors["pool"][1] = 255
