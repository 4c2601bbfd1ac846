"""Traces a small PTX kernel on float32 or bf16 arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptx_run import aligned, module_text

from equiv.emulator.engine import LaunchConfig
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse
from equiv.emulator.reference import engine as reference
from equiv.emulator.trace import Tracer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    Arrays = Mapping[str, npt.NDArray[np.unsignedinteger]]


def trace(
    body: str,
    buffers: Arrays,
    threads: int = 32,
    *,
    outside: str = "",
    arch: str = "sm_100a",
    tracer: Tracer | None = None,
) -> tuple[Tracer, dict[str, npt.NDArray[np.uint8]]]:
    """Runs a kernel whose 64-bit parameters are the buffers' addresses; returns the tracer and the bytes afterwards."""
    memory, left = Memory(), {}
    for name, array in buffers.items():
        left[name] = aligned(array.nbytes)
        left[name][:] = array.view("u1").reshape(-1)
        memory.register(left[name].ctypes.data, array.nbytes, name)
    text = module_text(body + "\nret;", tuple(buffers), arch, outside)
    params = b"".join(one.ctypes.data.to_bytes(8, "little") for one in left.values())
    follow = tracer or Tracer()
    follow.begin()
    config = LaunchConfig((1, 1, 1), (threads, 1, 1))
    reference.launch(reference.load(parse(text), "k", arch), config, params, memory, observer=follow)
    return follow, left
