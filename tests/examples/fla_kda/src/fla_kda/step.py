"""A KDA step whose recurrence is `fused_recurrent_kda_fwd` of fla-core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

from equiv.geometry.kda import DIM, RANK
from equiv.kda.parties import SCALE
from equiv.kda.tensors import whole
from equiv.triton_ref.kda.convolve import convolve
from equiv.triton_ref.kda.norm import gated_norm
from equiv.triton_ref.kda.project import project

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from equiv.records import Case


def step(case: Case, tensors: Mapping[str, Any]) -> None:
    """All steps of a case, on the pair's tensors."""
    heads, tokens, batch = (whole(case, name) for name in ("heads", "tokens", "batch"))
    width, slots = heads * DIM, tensors["slots"].clamp(min=0)
    rows = batch * tokens
    for at in range(whole(case, "steps")):
        part = slice(at * rows, (at + 1) * rows)
        x, y, accepted = tensors["rows"][part], tensors["y"][part], tensors["accepted"][at]
        raw = project(x[:, 4 * width : 4 * width + RANK], tensors["f_b"], whole(case, "gate_mode"))
        mixed = convolve(
            x[:, : 3 * width], tensors["conv_w"], tensors.get("conv_bias"), tensors["conv_state"], slots,
            accepted if tokens > 1 else None, tokens=tokens,
        )  # fmt: skip
        recur(mixed, raw, x[:, 4 * width + RANK :], accepted, slots, tensors, y, float(case.axes["lower_bound"]))
        gated_norm(y, x[:, 3 * width : 4 * width], tensors["norm_w"], heads=heads, eps=float(case.axes["eps"]))


def recur(
    mixed: torch.Tensor,
    raw: torch.Tensor,
    beta: torch.Tensor,
    accepted: torch.Tensor,
    slots: torch.Tensor,
    tensors: Mapping[str, Any],
    y: torch.Tensor,
    lower_bound: float,
) -> None:
    """The recurrence of the requests that have slots: fla's kernel knows no absent ones, it would write slot 0."""
    batch, tokens = slots.shape
    heads = beta.shape[1]
    present = (slots[:, 0] > 0).nonzero().flatten()
    y.zero_()
    if not len(present):
        return

    def of_present(columns: torch.Tensor, *shape: int) -> torch.Tensor:
        return columns.reshape(batch, tokens, *shape)[present].contiguous()

    q, k, v = (of_present(part, heads, DIM) for part in mixed.split(heads * DIM, dim=1))
    out, _ = fused_recurrent_kda_fwd(
        q, k, v, of_present(raw, heads, DIM), of_present(beta, heads),
        A_log=tensors["a_log"], dt_bias=tensors["dt_bias"], initial_state=tensors["state"], scale=SCALE,
        inplace_final_state=True, state_v_first=True, lower_bound=lower_bound,
        ssm_state_indices=slots[present].contiguous(), num_accepted_tokens=accepted[present] if tokens > 1 else None,
        use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
    )  # fmt: skip
    y.view(batch, tokens, heads, DIM)[present] = out
