"""Kernel launches on their way to a device, and what is remembered of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Dim = tuple[int, int, int]

LIMIT_GRID = (2**31 - 1, 65535, 65535)
LIMIT_BLOCK = (1024, 1024, 64)
LIMIT_THREADS = 1024
LIMIT_CLUSTER = 16
"""CTAs; more than 8 need leave, which hosts here always give."""

LIMIT_PARAMS = 32764
"""Bytes of kernel parameters."""

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
        configuration: what the kernel was specialised for, as far as its host says: `BLOCK=64, num_warps=4, ...`.
        trial: autotuning tries a configuration.
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
    configuration: str = ""
    trial: bool = False


@dataclass(frozen=True, slots=True)
class LaunchCount:
    """What one finished launch took: instructions as executed by warps and by active lanes, seconds.

    `seconds` are those of the clock on the wall, `processor` those that the processor spent on it. `order_dependent`,
    `notes` and `unmeasured` are those of `engine.LaunchStats`. The other fields are those of `Launch`.
    """

    image: str
    kernel: str
    grid: Dim
    block: Dim
    cluster: Dim
    dynamic_shared: int
    warp_instructions: int
    lane_instructions: int
    seconds: float
    processor: float = 0.0
    configuration: str = ""
    trial: bool = False
    order_dependent: int = 0
    notes: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
