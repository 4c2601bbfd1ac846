"""Runs the fused KDA kernels on the inputs of `kda_plain`, on an emulated device; and cubins of them without one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import triton
from cutlass import cute
from kda_plain import BOUND

import equiv
from equiv.cute.kda import host

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from kda_plain import Step

ARCHES = ("sm_90a", "sm_100a")
PLAN = ("counts", "final", "boundary", "boundary_counts")
Tensors = dict[str, Any]


def run(step: Step, arch: str, *, kernel: str = "wide", tensors: Tensors | None = None, ctas: int = 0) -> Tensors:
    """The tensors after one step, of `tensors` or of a copy of the step's own."""
    given = step.copy() if tensors is None else tensors
    with equiv.device(f"emulated:{arch}").active():
        call = host.kda_record if step.record else host.kda_step
        call(**given, **step.options, kernel=kernel, ctas=ctas)
    return given


def commit(step: Step, arch: str, recorded: Tensors, plan: Tensors) -> None:
    """Commits what a record left, in place; `plan` has counts, final, boundary and boundary_counts."""
    names = ("conv_state", "state", "corrections", "key_gate", "a_log", "dt_bias", "slots")
    with equiv.device(f"emulated:{arch}").active():
        given = {name: recorded[name] for name in names} | plan
        host.kda_commit(**given, heads=step.heads, tokens=step.tokens, lower_bound=BOUND)


def bits(one: torch.Tensor) -> np.ndarray[Any, Any]:
    """Bit patterns of a BF16, FP32 or int32 tensor."""
    found: np.ndarray[Any, Any] = (
        one.contiguous().view(torch.int16 if one.dtype == torch.bfloat16 else torch.int32).numpy()
    )
    return found


def compiled(call: Callable[[], None], arch: str, folder: Path) -> tuple[str, bytes]:
    """PTX and cubin of the one kernel that `call` would launch on an architecture."""
    made: list[Any] = []

    def compile_only(operator: Any, operands: tuple[Any, ...], **_: Any) -> Callable[..., None]:
        made.append(cute.compile(operator, *operands, options=f"--keep-ptx --keep-cubin --dump-dir={folder}"))
        return lambda *_: None

    with equiv.device(f"emulated:{arch}").active(), mock.patch.object(host, "compiled", compile_only):
        call()
    (function,) = made
    return function.__ptx__.rstrip("\0"), function.__cubin__


def resources(cubin: bytes, folder: Path) -> str:
    """What `cuobjdump` says of a kernel's registers, stack and local memory."""
    image = folder / "kernel.cubin"
    image.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, "--dump-resource-usage", image], check=True, capture_output=True, text=True).stdout
