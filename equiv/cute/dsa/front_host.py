"""The front as a function of torch tensors; it takes the form that the current architecture has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutlass import Float32

from equiv.cute.dsa.front import IndexFrontMma
from equiv.cute.dsa.front_hopper import IndexFrontHopper
from equiv.cute.host import architecture, compiled, dynamic, stream_of
from equiv.cute.tensormap import tensor_map
from equiv.errors import UsageError
from equiv.geometry.dsa import DIM
from equiv.geometry.front import OUTPUTS, RANK

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from equiv.cute.dsa.front_form import IndexFront

FORMS: Mapping[str, type[IndexFront]] = {"sm_90a": IndexFrontHopper, "sm_100a": IndexFrontMma}
"""Architecture -> the front's form."""


def dsa_front(
    projected: torch.Tensor,
    q_c: torch.Tensor | None,
    w_q: torch.Tensor,
    w_qa: torch.Tensor,
    norm_w: torch.Tensor,
    norm_b: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    q_out: torch.Tensor,
    w_out: torch.Tensor,
    *,
    key_at: int,
    weight_at: int,
    fp4: bool = False,
    mx: bool = False,
    key_round: str = "bf16",
    key_floor: float = 1e-4,
    eps: float = 1e-6,
    key_eps: float = 1e-6,
) -> None:
    """Runs the front on the device that CuTe DSL is set to: one launch on the current stream.

    `projected` is BF16 [B, width] with the query latent in columns 0 .. 1535; `q_c`, BF16 [B, 1536], is the latent
    already normalised, without it the kernel normalises. `w_q` is BF16 [4096, 1536] with dense rows, `w_qa` the norm's
    BF16 [1536]. The other tensors and options are those of `equiv.cute.dsa.index.DsaIndex` (`key_at` and `weight_at`
    its `key` and `weight`); `eps` is added to a row's mean square, `key_eps` to the key's variance.

    Raises:
        UsageError: a batch, pitch or weight matrix that the kernel does not take; an architecture without a form.
    """
    if tuple(w_q.shape) != (OUTPUTS, RANK):
        raise UsageError(f"w_q must be [{OUTPUTS}, {RANK}]; got {tuple(w_q.shape)}")
    if architecture() not in FORMS:
        raise UsageError(f"the front has no form for {architecture()}, only for {', '.join(FORMS)}")
    rows = projected[:, :RANK] if q_c is None else q_c
    kernel = FORMS[architecture()](
        projected.shape[0], key_at, weight_at, mx=mx, normalized=q_c is not None, row_pitch=rows.stride(0), fp4=fp4,
        key_round=key_round, key_floor=key_floor,
    )  # fmt: skip
    tensors = (projected, rows, w_qa, tensor_map(w_q, DIM), norm_w, norm_b, cache, slots, q_out, w_out)
    operands = (*map(dynamic, tensors), Float32(eps), Float32(key_eps), stream_of(projected))
    compiled(kernel, operands, on_gpu=projected.is_cuda)(*operands)
