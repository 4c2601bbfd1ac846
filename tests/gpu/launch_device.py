"""Repeats recorded launches on a GPU and compares every byte; numpy and libcuda are all it needs.

    python launch_device.py FOLDER OUT

FOLDER is from `launch_recorder.py`. Addresses of buffers inside buffers (tensor maps) are moved. Each launch that
differs is listed in OUT/report.json with its differing bytes. A launch that does not end within 10 seconds ends its
process; the next one goes on behind it.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PATIENCE = 10.0
NOT_READY = 600


class Attribute(ctypes.Structure):
    """CUlaunchAttribute with cluster dimensions."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


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

    def launch(self, image: bytes, one: dict[str, Any], buffers: list[np.ndarray]) -> list[np.ndarray]:
        """The buffers after the kernel `k` of a cubin has run on copies of them."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), image)
        self("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        if one["cluster"][0] > 8:
            self("cuFuncSetAttribute", function, 14, 1)
        pointers = [ctypes.c_uint64() for _ in buffers]
        for pointer, buffer in zip(pointers, buffers, strict=True):
            self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(buffer.nbytes))
        placed = moved(one["addresses"], buffers, [pointer.value for pointer in pointers])
        for pointer, buffer in zip(pointers, placed, strict=True):
            self("cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(buffer.ctypes.data), ctypes.c_size_t(buffer.nbytes))
        attribute = Attribute(4, 0, (ctypes.c_uint * 16)(*one["cluster"]))
        config = Config(
            (ctypes.c_uint * 3)(*one["grid"]), (ctypes.c_uint * 3)(*one["block"]), one["shared"], None,
            ctypes.pointer(attribute), int(np.prod(one["cluster"]) > 1),
        )  # fmt: skip
        arguments = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers))
        self("cuLaunchKernelEx", ctypes.byref(config), function, arguments, None)
        began = time.monotonic()
        while (state := self.cuda.cuStreamQuery(None)) == NOT_READY:
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError("the kernel does not end")
        if state:
            raise RuntimeError(f"the kernel ends with error {state}")
        results = [np.empty_like(buffer) for buffer in buffers]
        for pointer, result in zip(pointers, results, strict=True):
            self("cuMemcpyDtoH_v2", ctypes.c_void_p(result.ctypes.data), pointer, ctypes.c_size_t(result.nbytes))
            self("cuMemFree_v2", pointer)
        self("cuModuleUnload", module)
        return moved([pointer.value for pointer in pointers], results, one["addresses"])


TYPES = {"u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
         "f32.ftz": 10, "tf32": 11, "tf32.ftz": 12}  # fmt: skip


def driver_map(one: dict[str, Any]) -> tuple[int, bytes]:
    """The driver's code and bytes for a tensor map."""
    rank = len(one["shape"])
    block = np.zeros(256, np.uint8)
    at = block.ctypes.data + -block.ctypes.data % 64
    code = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), TYPES[one["element"]], rank, ctypes.c_void_p(one["address"]),
        (ctypes.c_uint64 * rank)(*one["shape"]), (ctypes.c_uint64 * max(rank - 1, 1))(*one["strides"]),
        (ctypes.c_uint32 * rank)(*one["box"]), (ctypes.c_uint32 * rank)(*one["steps"]), 0,
        {0: 0, 32: 1, 64: 2, 128: 3}[one["swizzle"]], 0, int(one["nan_fill"]),
    )  # fmt: skip
    return code, ctypes.string_at(at, 128)


def maps(folder: Path) -> list[dict[str, Any]]:
    """Tensor maps that the driver encodes differently from FOLDER/maps.json."""
    Driver()
    found = []
    for one in json.loads((folder / "maps.json").read_text()):
        code, got = driver_map(one)
        if code or got.hex() != one["bytes"]:
            found.append({**one, "code": code, "driver": got.hex()})
    return found


def moved(old: list[int], buffers: list[np.ndarray], new: list[int]) -> list[np.ndarray]:
    """Copies of the buffers, tensor maps moved: those of 128 bytes that begin with an address inside a buffer."""
    results = [buffer.copy() for buffer in buffers]
    for result in results:
        if result.nbytes != 128:
            continue
        address = int(result.view(np.uint64)[0])
        for start, buffer, target in zip(old, buffers, new, strict=True):
            if start <= address < start + buffer.nbytes:
                result.view(np.uint64)[0] = target + address - start
    return results


def work(folder: Path, out: Path, first: int) -> None:
    """Launches from number `first` on, each with a line in OUT/lines."""
    driver = Driver()
    plan = json.loads((folder / "plan.json").read_text())["launches"]
    data = np.load(folder / "data.npz")
    with (out / "lines").open("a") as lines:
        for number in range(first, len(plan)):
            one = plan[number]
            count = len(one["addresses"])
            line: dict[str, Any] = {"number": number, "test": one["test"], "bytes": 0, "different": 0}
            failure = None
            try:
                got = driver.launch(
                    (folder / f"{number}.cubin").read_bytes(), one, [data[f"{number}/{i}"] for i in range(count)]
                )
            except (RuntimeError, TimeoutError) as error:
                failure = line["error"] = str(error)
                got = []
            for index, result in enumerate(got):
                want = data[f"{number}/{index}/after"]
                places = np.flatnonzero(result != want)
                line["bytes"] += result.nbytes
                line["different"] += len(places)
                if len(places):
                    line[f"buffer {index}"] = [
                        [int(at), int(want[at]), int(result[at])] for at in places[:: max(len(places) // 24, 1)]
                    ]
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            if failure is not None:
                os._exit(3)  # the context may be lost


def main() -> int:
    """Entry point: workers until every launch has its line."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) > 3:
        work(folder, out, int(sys.argv[3]))
        return 0
    total = len(json.loads((folder / "plan.json").read_text())["launches"])
    (out / "lines").write_text("")
    done = 0
    while done < total:
        subprocess.run([sys.executable, __file__, str(folder), str(out), str(done)], check=False)
        now = len((out / "lines").read_text().splitlines())
        if now == done:
            print(f"launch {done} ends the worker without a word")
            with (out / "lines").open("a") as lines:
                lines.write(json.dumps({"number": done, "error": "worker lost", "bytes": 0, "different": 0}) + "\n")
            now += 1
        done = now
    different = maps(folder)
    (out / "maps.json").write_text(json.dumps(different, indent=1))
    print(f"{len(different)} tensor maps differ from the driver's")
    found = [json.loads(line) for line in (out / "lines").read_text().splitlines()]
    wrong = [line for line in found if line["different"] or "error" in line]
    (out / "report.json").write_text(json.dumps(wrong, indent=1))
    print(f"{len(found)} launches, {sum(line['bytes'] for line in found)} bytes compared, {len(wrong)} launches differ")
    for line in wrong:
        print(line["number"], line.get("test"), line["different"], "of", line["bytes"], line.get("error", ""))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
