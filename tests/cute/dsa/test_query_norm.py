"""`QueryNorm` against the declared order of its squares and the rounding points R1 to R7, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import sample_front
import torch

import equiv
from equiv.cute.dsa.query_norm import query_norm
from equiv.errors import UsageError


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_rows_are_normalised_in_the_declared_order(arch: str) -> None:
    given = sample_front.inputs(7, pitch=2304)
    rows, gamma = given["projected"], given["w_qa"]
    rows[1, : sample_front.RANK] = 0
    rows[2, : sample_front.RANK] *= 2.0**60
    out = torch.full((7, sample_front.RANK), 7.0, dtype=torch.bfloat16)
    for eps in (1e-6, 0.25):
        with equiv.device(f"emulated:{arch}").active():
            query_norm(rows, gamma, out, eps=eps)
        np.testing.assert_array_equal(sample_front.words(out), sample_front.latent(rows, gamma, eps))
    assert not sample_front.words(out)[1].any()


def test_too_narrow_rows_are_refused() -> None:
    rows = torch.zeros(2, 1024, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="rows must have at least 1536 columns; got 1024"):
        query_norm(rows, rows[0], rows)
