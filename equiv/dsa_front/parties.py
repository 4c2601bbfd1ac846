"""The two parties of `dsa_front` as a runner calls them: a case's axes become plain arguments of the kernels.

torch and the compilers are loaded by the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equiv.dsa_front.tensors import axis, rows
from equiv.dsa_index.tensors import is_fp4, is_mx
from equiv.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Case


def oracle(case: Case, tensors: Mapping[str, Any]) -> None:
    """Runs the stock Triton chain on the pair's torch tensors, on the active device."""
    from equiv.triton_ref.dsa_front import dsa_front

    dsa_front(**_tensors(tensors), **_options(case))


def candidate(case: Case, tensors: Mapping[str, Any]) -> None:
    """Runs the fused CuTe DSL kernel on the pair's torch tensors, on the active device."""
    from equiv.cute.dsa.front_host import dsa_front

    dsa_front(**_tensors(tensors), **_options(case))


def form(party: str, case: Case, arch: str) -> str:
    """What serves a case: the candidate's `split1`, `split2` or `split4`; the oracle has one form, "".

    Raises:
        UsageError: the candidate has no tiling for the architecture.
    """
    if party != "candidate":
        return ""
    from equiv.cute.dsa.hopper_plan import hopper_tiling
    from equiv.cute.dsa.tiling import front_tiling

    tilings = {"sm_90a": hopper_tiling, "sm_100a": front_tiling}
    if arch not in tilings:
        raise UsageError(f"the front has no tiling for {arch}, only for {', '.join(tilings)}")
    return f"split{tilings[arch](int(axis(case, 'batch'))).split}"


def _tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {"q_c": None, **tensors}


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
        "key_eps": float(axis(case, "key_eps")),
    }
