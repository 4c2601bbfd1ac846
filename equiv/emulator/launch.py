"""Kernel launches on their way to a device, and what is remembered of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Dim = tuple[int, int, int]

LIMIT_GRID = (2**31 - 1, 65535, 65535)
LIMIT_THREADS = 1024
LIMIT_CLUSTER = 16
LIMIT_SHARED = 232448
"""Bytes of static and dynamic shared memory a block may have on sm_90 and sm_100: 227 KiB."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    Attributes:
        image: digest of the cubin in the image store.
        grid: blocks; block: threads; cluster: blocks a cluster; x, y, z each.
        dynamic_shared: bytes.
        attributes: launch attributes that are set: `programmatic_serialization`, `cooperative`, `priority`.
        params: the parameter block as the kernel reads it.
        tensors: (argument name, torch tensor) of every tensor known to be passed.
    """

    image: str
    kernel: str
    grid: Dim
    block: Dim
    cluster: Dim
    dynamic_shared: int
    attributes: Mapping[str, int]
    params: bytes
    tensors: tuple[tuple[str, Any], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class LaunchCount:
    """What one finished launch took: instructions as executed by warps and by active lanes, wall-clock seconds."""

    image: str
    kernel: str
    grid: Dim
    block: Dim
    cluster: Dim
    dynamic_shared: int
    warp_instructions: int
    lane_instructions: int
    seconds: float


def problem(launch: Launch, directives: Mapping[str, tuple[int, ...]], static_shared: int) -> str | None:
    """Why a driver would refuse this launch, in words with the numbers, or None."""
    for name, dims, limits in (("grid", launch.grid, LIMIT_GRID), ("block", launch.block, (1024, 1024, 64))):
        if any(not 1 <= dim <= limit for dim, limit in zip(dims, limits, strict=True)):
            return f"{name} {dims} outside 1..{limits}"
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if threads > LIMIT_THREADS:
        return f"block {launch.block} has {threads} threads, the limit is {LIMIT_THREADS}"
    required = directives.get("reqntid")
    if required is not None and _padded(required) != launch.block:
        return f"block {launch.block}, the kernel was compiled for exactly {_padded(required)} (.reqntid)"
    most = directives.get("maxntid")
    if most is not None and threads > _product(most):
        return f"block {launch.block} has {threads} threads, the kernel was compiled for {_product(most)} (.maxntid)"
    if any(dim < 1 or grid % dim for dim, grid in zip(launch.cluster, launch.grid, strict=True)):
        return f"cluster {launch.cluster} does not divide grid {launch.grid}"
    if _product(launch.cluster) > LIMIT_CLUSTER:
        return f"cluster {launch.cluster} has {_product(launch.cluster)} blocks, the limit is {LIMIT_CLUSTER}"
    required = directives.get("reqnctapercluster")
    if required is not None and _padded(required) != launch.cluster:
        return f"cluster {launch.cluster}, the kernel was compiled for exactly {_padded(required)} (.reqnctapercluster)"
    if static_shared + launch.dynamic_shared > LIMIT_SHARED:
        return f"{static_shared} + {launch.dynamic_shared} bytes of shared memory, the limit is {LIMIT_SHARED}"
    return None


def _padded(dims: tuple[int, ...]) -> Dim:
    first, second, third = (*dims, 1, 1)[:3]
    return first, second, third


def _product(dims: tuple[int, ...]) -> int:
    first, second, third = _padded(dims)
    return first * second * third
