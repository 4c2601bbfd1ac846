"""The checks that both parties of `dsa_index` must pass, against `dsa_reference`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from dsa_reference import codes, key_bounds, key_scale_exponent, query, scale_exponent

from equiv.dsa_index.tensors import axis, is_fp4, token_bytes, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from equiv.records import Bits, Case


def query_is_exact(one: Case, given: Mapping[str, Bits], outputs: Mapping[str, Bits]) -> None:
    """Codes, scales and folded weights of the query equal the reference in every bit."""
    for name, expected in query(one, given).items():
        np.testing.assert_array_equal(outputs[name], expected, err_msg=name)


def key_is_within_float32(one: Case, given: Mapping[str, Bits], outputs: Mapping[str, Bits]) -> None:
    """Stored scale and codes of every written token are those of a value within float32's reach of the LayerNorm.

    Codes grow with the value, so a code is right if it lies between the codes of the two ends; most ends agree.
    """
    fp4 = is_fp4(one)
    low, high = key_bounds(one, given)
    assert len(low) == len(written(given["slots"])[0])
    floor = float(axis(one, "key_floor"))
    ends = [scale_exponent(np.where(low * high > 0, np.minimum(abs(low), abs(high)), 0), floor, fp4=fp4)]
    ends.append(scale_exponent(np.maximum(abs(low), abs(high)), floor, fp4=fp4))
    k = key_scale_exponent(one, outputs)
    assert ((ends[0] <= k) & (k <= ends[1])).all(), f"scale exponents {k[:, 0]} not in {ends[0][:, 0]}..{ends[1][:, 0]}"
    sign = 8 if fp4 else 128

    def ordered(bits: Bits) -> npt.NDArray[np.int64]:
        magnitude = (bits & (sign - 1)).astype(np.int64)
        return np.where(bits & sign, -magnitude, magnitude)

    got = ordered(outputs["key_codes"])
    least, most = ordered(codes(low, k, fp4=fp4)), ordered(codes(high, k, fp4=fp4))
    wrong = np.argwhere((got < least) | (got > most))
    assert not len(wrong), f"{len(wrong)} codes outside, first at {wrong[0]}: {got[tuple(wrong[0])]}"
    settled = np.mean(least == most)
    assert settled > 0.98, f"only {settled:.3f} of the codes are settled by the reference: it checks too little"


def nothing_else_is_written(one: Case, given: Mapping[str, Bits], outputs: Mapping[str, Bits]) -> None:
    """Cache bytes of no written token are what they were, and at least 100 bytes a token were there to be spoilt."""
    page, value_at, scale_at = token_bytes(one, given["slots"])
    owned = np.zeros(given["cache"].shape, dtype=np.bool_)
    owned[page, value_at] = owned[page, scale_at] = True
    np.testing.assert_array_equal(outputs["cache_rest"], given["cache"][~owned])
    assert outputs["cache_rest"].size > 100 * len(page)
