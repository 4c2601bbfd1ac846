"""The two parties of `dsa_index` as a runner calls them: a case's axes become plain arguments of the kernels.

torch and the compilers are loaded by the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equiv.dsa_index.tensors import axis, is_fp4, is_mx, rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Case


def oracle(case: Case, tensors: Mapping[str, Any]) -> None:
    """Runs the stock Triton chain on the pair's torch tensors, on the active device."""
    from equiv.triton_ref.dsa import dsa_index

    dsa_index(**tensors, **_options(case))


def candidate(case: Case, tensors: Mapping[str, Any]) -> None:
    """Runs the fused CuTe DSL kernel on the pair's torch tensors, on the active device."""
    from equiv.cute.dsa.index import dsa_index

    dsa_index(**tensors, **_options(case))


def _options(case: Case) -> dict[str, Any]:
    row = rows(case)
    return {
        "key_at": row["key_at"],
        "weight_at": row["weight_at"],
        "fp4": is_fp4(case),
        "mx": is_mx(case),
        "key_round": str(axis(case, "key_round")),
        "key_floor": float(axis(case, "key_floor")),
        "eps": float(axis(case, "eps")),
    }
