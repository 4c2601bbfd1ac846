"""What a fresh process measures of itself for `equiv bench emulator`: `python -m equiv.bench.process TASK`, JSON out.

`interpreter`: Triton's interpreter (the caller sets TRITON_INTERPRET=1) on the kernel of `equiv.triton_ref.bench`.
`start`: from a process that has imported torch, Triton and equiv to the first result of that kernel, and to the second.
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
    """Seconds to import everything, then to the first result, and for a second launch; and the processor's seconds."""
    began = time.perf_counter()
    importlib.import_module("torch")
    importlib.import_module("triton")
    kernel = importlib.import_module(KERNEL).normalised_softmax
    for name in ("equiv.device", "equiv.emulator.device"):
        importlib.import_module(name)
    from equiv.device import device

    imports = time.perf_counter() - began
    chosen, given = device(DEVICE), tensors(ROWS)
    began, processor = time.perf_counter(), time.process_time()
    with chosen.active():
        kernel(**given)
        first, processor = time.perf_counter() - began, time.process_time() - processor
        began = time.perf_counter()
        kernel(**given)
    second = time.perf_counter() - began
    return {
        "imports": imports,
        "first": first,
        "first_processor": processor,
        "second": second,
        "sum": float(given["y"][:INTERPRETED_ROWS].sum()),
    }


TASKS: Final = {"interpreter": interpreter, "start": start}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]]()))
