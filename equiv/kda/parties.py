"""The parties of `kda` as a runner calls them: a case's axes become plain arguments of the kernels, a call a step.

torch and the compilers are loaded by the first call.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from equiv.kda.tensors import axis, records, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Case

SCALE: Final = 0.08838834613561630249
"""128^-0.5 as FP32 (0x3DB504F3), the query's scale."""
_COMMIT = ("conv_state", "state", "corrections", "key_gate", "a_log", "dt_bias", "slots", "counts", "final", "boundary",
           "boundary_counts")  # fmt: skip


def oracle(case: Case, tensors: Mapping[str, Any]) -> None:
    """Runs the stock Triton chain on the pair's torch tensors, on the active device.

    The stock convolution skips slot 0 only and would follow a negative one (spec/kda.md 3), so it gets 0 for those.
    """
    _run("equiv.triton_ref.kda", case, {**tensors, "slots": tensors["slots"].clamp(min=0)}, {})


def candidate(case: Case, tensors: Mapping[str, Any]) -> None:
    """Runs the fused CuTe DSL kernel of the case on the pair's torch tensors, on the active device."""
    _run("equiv.cute.kda.host", case, tensors, {"kernel": str(axis(case, "kernel")), "ctas": whole(case, "ctas")})


def _run(module: str, case: Case, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Steps of one party, each on its own rows and accepted counts, then the commit if there is one."""
    functions = importlib.import_module(module)
    step = functions.kda_record if records(case) else functions.kda_step
    shape: dict[str, int | float] = {name: whole(case, name) for name in ("heads", "tokens")}
    shape["lower_bound"] = float(axis(case, "lower_bound"))
    given = {name: tensor for name, tensor in tensors.items() if name not in ("counts", "final", *_COMMIT[-2:])}
    given.setdefault("conv_bias", None)
    rows = whole(case, "batch") * whole(case, "tokens")
    for at in range(whole(case, "steps")):
        part = slice(at * rows, (at + 1) * rows)
        now = {"rows": tensors["rows"][part], "accepted": tensors["accepted"][at], "y": tensors["y"][part]}
        step(
            **{**given, **now},
            **shape,
            gate_mode=whole(case, "gate_mode"),
            scale=SCALE,
            eps=float(axis(case, "eps")),
            **options,
        )
    if axis(case, "mode") == "commit":
        functions.kda_commit(**{name: tensors[name] for name in _COMMIT}, **shape, **options)
