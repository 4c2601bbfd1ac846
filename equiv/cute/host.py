"""Host side of the CuTe DSL kernels: operands from torch tensors, and compiled functions kept for the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from cuda.bindings import driver
from cutlass import cute
from cutlass.cute.runtime import from_dlpack
from cutlass.cutlass_dsl import CuTeDSL

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_compiled: dict[Hashable, Callable[..., None]] = {}


class Operator(Protocol):
    """A kernel object whose `__call__` is a `cute.jit` host function."""

    @property
    def variant(self) -> Hashable:
        """What distinguishes the generated code of two instances of the class."""
        ...


def architecture() -> str:
    """The architecture CuTe DSL compiles for now (`sm_90a`): that of the GPU, or what an emulated device has set."""
    return str(CuTeDSL._get_dsl().envar.arch)  # noqa: SLF001  the DSL has no public way to ask


def dynamic(tensor: torch.Tensor) -> cute.Tensor:
    """The tensor as an operand whose shape and strides are run-time values, but for the dense last dimension."""
    return from_dlpack(tensor).mark_layout_dynamic(leading_dim=tensor.dim() - 1)


def stream_of(tensor: torch.Tensor) -> driver.CUstream:
    """The current stream of the tensor's device; the null stream for a tensor in host memory."""
    return driver.CUstream(torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0)


def compiled(operator: Operator, operands: tuple[Any, ...], *, on_gpu: bool) -> Callable[..., None]:
    """The operator's host function compiled for the current architecture, from memory after the first time.

    The operands' types are not part of the key: an operator is always called with the same types and ranks.
    """
    # Host code is linked against the runtime of its device: an emulated one and a GPU do not share it.
    key = (type(operator), operator.variant, architecture(), on_gpu)
    if key not in _compiled:
        _compiled[key] = cute.compile(operator, *operands)
    return _compiled[key]
