"""What a fresh process measures of itself for `equiv bench emulator`: `python -m equiv.bench.process TASK`, JSON out.

`interpreter`: Triton's interpreter (the caller sets TRITON_INTERPRET=1) on the kernel of `equiv.triton_ref.bench`.
`start`: a process that imports everything and has Triton compile that kernel, up to the first result and to the second.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any, Final

import numpy as np

KERNEL: Final = "equiv.triton_ref.bench"
ROWS: Final = 1024
INTERPRETED_ROWS: Final = 8
WIDTH: Final = 128
DEVICE: Final = "emulated:sm_90a"


def tensors(rows: int) -> dict[str, Any]:
    """Arguments of the kernel: x and y [rows, 128], w [128], float32, drawn from one seed."""
    import torch

    rng = np.random.default_rng(3)
    x, w = (torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) for shape in ((rows, WIDTH), (WIDTH,)))
    return {"x": x, "w": w, "y": torch.zeros_like(x)}


def interpreter(repetitions: int = 3) -> dict[str, float]:
    """Processor's seconds of the fastest of several launches by Triton's interpreter; the sum of what it computed."""
    kernel, given = importlib.import_module(KERNEL).normalised_softmax, tensors(INTERPRETED_ROWS)
    times = []
    for _ in range(repetitions + 1):
        start = time.process_time()
        kernel(**given)
        times.append(time.process_time() - start)
    return {"seconds": min(times[1:]), "programs": INTERPRETED_ROWS, "sum": float(given["y"].sum())}


def start() -> dict[str, float]:
    """Seconds of the imports (the compilers among them), of Triton's compilation, to a first result and of a second.

    Each as the clock and, under the name with `_processor`, as the processor counts them.
    """
    found: dict[str, float] = {}

    def passed(name: str, began: tuple[float, float]) -> tuple[float, float]:
        found[name], found[f"{name}_processor"] = time.perf_counter() - began[0], time.process_time() - began[1]
        return time.perf_counter(), time.process_time()

    began = time.perf_counter(), time.process_time()
    kernels = importlib.import_module(KERNEL)
    from equiv.device import device
    from equiv.emulator import cute_runtime

    cute_runtime.installed()  # imports a part of CuTe DSL
    chosen, given = device(DEVICE), tensors(ROWS)
    began = passed("imports", began)
    with chosen.active():
        kernels.compiled(**given)
        began = passed("compilation", began)
        kernels.normalised_softmax(**given)
        began = passed("first", began)
        kernels.normalised_softmax(**given)
        passed("second", began)
    return {**found, "sum": float(given["y"][:INTERPRETED_ROWS].sum())}


TASKS: Final = {"interpreter": interpreter, "start": start}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]]()))
