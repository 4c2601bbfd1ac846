"""Runs the kernels of `arith_probe.py build` on the GPU, by the driver API alone: numpy and libcuda are all it needs.

    python tests/gpu/arith_device.py FOLDER OUT

FOLDER holds module-<n>.cubin, plan.json (per kernel: module, name, inputs, widths of results, elements) and inputs.npz.
Writes OUT/results-<n>.npz: array `<case>/<result>` for every result.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 15 << 20  # bytes of results a file, before compression


class Driver:
    """A context on device 0."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} gives error {code}")

    def module(self, image: bytes) -> ctypes.c_void_p:
        """A loaded cubin."""
        found = ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(found), image)
        return found

    def alloc(self, nbytes: int) -> ctypes.c_uint64:
        """Device memory."""
        found = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(nbytes))
        return found

    def launch(self, module: ctypes.c_void_p, kernel: str, count: int, pointers: list[ctypes.c_uint64]) -> None:
        """`count` threads in blocks of 128, and waits."""
        function = ctypes.c_void_p()
        self("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        arguments = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(one) for one in pointers))
        self("cuLaunchKernel", function, count // 128, 1, 1, 128, 1, 1, 0, None, arguments, None)
        self("cuCtxSynchronize")


def main(folder: Path, out: Path) -> None:
    """Every kernel of the plan."""
    driver = Driver()
    plan = json.loads((folder / "plan.json").read_text())
    stored = np.load(folder / "inputs.npz")
    inputs: dict[str, ctypes.c_uint64] = {}
    for name in stored.files:
        array = np.ascontiguousarray(stored[name])
        inputs[name] = driver.alloc(array.nbytes)
        driver("cuMemcpyHtoD_v2", inputs[name], array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))
    spare = [driver.alloc(8 << 16) for _ in range(8)]
    modules: dict[str, ctypes.c_void_p] = {}
    found: dict[str, Any] = {}
    held = files = 0
    for number, one in enumerate(plan):
        if one["module"] not in modules:
            modules[one["module"]] = driver.module((folder / one["module"]).read_bytes())
        count, widths = one["count"], one["results"]
        pointers = [*(inputs[name] for name in one["inputs"]), *spare[: len(widths)]]
        driver.launch(modules[one["module"]], one["kernel"], count, pointers)
        for index, bits in enumerate(widths):
            array = np.empty(count, f"u{bits // 8}")
            driver(
                "cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), spare[index], ctypes.c_size_t(array.nbytes)
            )
            found[f"{number}/{index}"] = array
            held += array.nbytes
        if held > CHUNK or number == len(plan) - 1:
            np.savez_compressed(out / f"results-{files}.npz", **found)
            print(f"{number + 1} of {len(plan)} kernels, {held} bytes", flush=True)
            found, held, files = {}, 0, files + 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
