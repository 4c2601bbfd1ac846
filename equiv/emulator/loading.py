"""What both engines do alike around a kernel: place the variables of its module, and check the shape of a launch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.launch import (
    LIMIT_BLOCK,
    LIMIT_CLUSTER,
    LIMIT_GRID,
    LIMIT_PARAMS,
    LIMIT_SHARED,
    LIMIT_THREADS,
)
from equiv.emulator.memory import Region
from equiv.errors import DeviceError, UnknownInstructionError

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.emulator.engine import LaunchConfig
    from equiv.emulator.ptx import Kernel, Module

ALIGNMENT = 256
"""Of every variable; enough for any that PTX can ask for here."""


def place_variables(module: Module, kernel: Kernel) -> tuple[dict[str, Region], tuple[npt.NDArray[np.uint8], ...]]:
    """Global and constant variables in memory of their own, with their initial values.

    Returns:
        name -> region, constants read-only; and the memory, to be kept as long as the regions are used.

    Raises:
        UnknownInstructionError: a variable wants a larger alignment than `ALIGNMENT`.
    """
    regions: dict[str, Region] = {}
    storage = []
    for variable in (*module.variables, *kernel.variables):
        if variable.space not in {"global", "const"}:
            continue
        if variable.align > ALIGNMENT:
            raise UnknownInstructionError(
                f".{variable.space} {variable.name}", f"alignment {variable.align} is not supported"
            )
        block = np.zeros(variable.size + 2 * ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        block[start : start + len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
        storage.append(block)
        regions[variable.name] = Region(
            block.ctypes.data + start,
            max(variable.size, 1),
            f"variable {variable.name}",
            writable=variable.space == "global",
        )
    return regions, tuple(storage)


def check_launch(kernel: Kernel, arch: str, static_shared: int, config: LaunchConfig, params: bytes) -> int:
    """Shared memory of a CTA in bytes, if a driver would take the launch.

    Args:
        kernel: with its directives and parameters.
        arch: for messages: the limits are those of `sm_90a` and `sm_100a`, which agree.
        static_shared: bytes of shared memory before the dynamic part.
        config: shape of the launch.
        params: the parameter block.

    Raises:
        DeviceError: a limit of the architecture or a directive of the kernel is not respected.
    """
    name, directives = kernel.name, kernel.directives
    for what, sizes in (("grid", config.grid), ("block", config.block), ("cluster", config.cluster)):
        if len(sizes) != 3 or min(sizes) < 1:
            raise DeviceError(f"{name}: {what} {sizes} must be three positive numbers")
    threads = math.prod(config.block)
    if threads > LIMIT_THREADS or config.block[2] > LIMIT_BLOCK[2]:
        raise DeviceError(
            f"{name}: block {config.block} has {threads} threads; at most {LIMIT_THREADS}, and {LIMIT_BLOCK[2]} in z"
        )
    if any(size > limit for size, limit in zip(config.grid, LIMIT_GRID, strict=True)):
        raise DeviceError(f"{name}: grid {config.grid} is beyond (2^31 - 1, 65535, 65535)")
    required = directives.get("reqntid")
    if required is not None and (*required, 1, 1)[:3] != tuple(config.block):
        raise DeviceError(f"{name}: block {config.block}, but the kernel requires {required} (.reqntid)")
    allowed = directives.get("maxntid")
    if allowed is not None and threads > math.prod(allowed):
        raise DeviceError(f"{name}: block {config.block} has {threads} threads; the kernel allows {allowed} (.maxntid)")
    required = directives.get("reqnctapercluster")
    if required is not None and (*required, 1, 1)[:3] != tuple(config.cluster):
        raise DeviceError(f"{name}: cluster {config.cluster}, but the kernel requires {required} (.reqnctapercluster)")
    if math.prod(config.cluster) > LIMIT_CLUSTER:
        raise DeviceError(f"{name}: cluster {config.cluster} has more than {LIMIT_CLUSTER} CTAs")
    if any(grid % cluster for grid, cluster in zip(config.grid, config.cluster, strict=True)):
        raise DeviceError(f"{name}: grid {config.grid} is not a multiple of cluster {config.cluster}")
    wanted = max((param.offset + param.size for param in kernel.params), default=0)
    if len(params) != wanted:
        raise DeviceError(f"{name}: {len(params)} parameter bytes given, the kernel has {wanted}")
    if len(params) > LIMIT_PARAMS:
        raise DeviceError(f"{name}: {len(params)} parameter bytes; at most {LIMIT_PARAMS}")
    if config.dynamic_shared < 0:
        raise DeviceError(f"{name}: {config.dynamic_shared} bytes of dynamic shared memory")
    shared = static_shared + config.dynamic_shared
    if shared > LIMIT_SHARED:
        raise DeviceError(f"{name}: {shared} bytes of shared memory a CTA; {arch} has {LIMIT_SHARED}")
    return shared
