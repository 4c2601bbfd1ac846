"""A pair that needs no compiler: doubling, with every way a candidate can go wrong as an axis.

For tests of the line itself. Found like anybody's pair, through the entry point in the `.dist-info` beside it, so that
worker processes and pytest runs inside tests see it as soon as this folder is on their path.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv import gpus
from equiv.errors import DeviceError, IllegalAccessError, UnsupportedError
from equiv.pairs import Axis, Pair, Party
from equiv.records import Case, OutputSpec, Status, TensorSpec, Verdict
from equiv.rounding.declaration import Declaration
from equiv.workers import Task, run_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from equiv.records import Bits

BEHAVIOURS = (
    "good", "carries", "wrong", "overruns", "writes_input", "raises", "segfaults", "exits", "hangs",
    "illegal", "needs_moon", "quits", "forks", "prints", "killed", "sticks", "counts", "reads_poison", "reads_scratch",
)  # fmt: skip


def declares(party: str, *, carry: bool) -> Declaration:
    """`carry`: the last element is one ulp larger."""
    return Declaration(party, {}, "sm_100a", {}, {"fake.1": "carry" if carry else "no carry"})


def layout(case: Case) -> tuple[TensorSpec, ...]:
    n = int(case.axes["n"])
    return (
        TensorSpec("x", "input", "f32", (n,), (1,)),
        TensorSpec("y", "output", "f32", (n,), (1,)),
        TensorSpec("pool", "inout", "u8", (3, 5), (8, 1)),
    )


def inputs(case: Case) -> dict[str, Bits]:
    generator = np.random.default_rng(case.seed)
    x = generator.standard_normal(int(case.axes["n"]), dtype=np.float32)
    return {"x": x.view(np.uint32), "pool": generator.integers(0, 255, (3, 5), dtype=np.uint8)}


def model(case: Case, given: Mapping[str, Bits], declaration: Declaration) -> dict[str, Bits]:
    y = (given["x"].view(np.float32) * np.float32(2)).view(np.uint32)
    y[-1] += declaration.variants["fake.1"] == "carry"
    pool = given["pool"].copy()
    pool[1] = 255
    return {"y": y, "pool": pool}


def outputs(case: Case, given: Mapping[str, Bits], after: Mapping[str, Bits]) -> dict[str, Bits]:
    return {"y": after["y"].copy(), "pool": after["pool"].copy()}


class Spread:
    """The last element may be one ulp up; everything else is exact."""

    def __init__(self, exact: Mapping[str, Bits]) -> None:
        self.exact = exact

    def judge(self, found: Mapping[str, Bits]) -> dict[str, tuple[Bits, float]]:
        y = found["y"]
        inside: Any = y == self.exact["y"]
        inside[-1] |= y[-1] == self.exact["y"][-1] + 1
        return {"y": (inside, 0.5)}


def envelope(case: Case, given: Mapping[str, Bits], declarations: tuple[Any, ...]) -> Spread:
    return Spread(model(case, given, declares("oracle", carry=False)))


def declaration(party: str, toolchain: Mapping[str, str], architecture: str, form: str) -> Declaration | None:
    return declares(party, carry=False)


def oracle(case: Case, tensors: Mapping[str, Any]) -> None:
    tensors["y"].copy_(tensors["x"] * 2)
    tensors["pool"][1] = 255


def candidate(case: Case, tensors: Mapping[str, Any]) -> None:
    before = tensors["y"][0].clone()
    oracle(case, tensors)
    match case.axes["behaviour"]:
        case "carries":
            _bump(tensors["y"], -1)
        case "wrong":
            _bump(tensors["y"], 3)
        case "overruns":
            tensors["y"].as_strided((3,), (1,), tensors["y"].storage_offset() + len(tensors["y"])).zero_()
        case "writes_input":
            _bump(tensors["x"], 2)
        case "raises":
            raise ValueError("seven is not a tile size")
        case "segfaults":
            print("about to read address 0", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exits":
            os._exit(7)
        case "hangs":
            time.sleep(3600)
        case "illegal":
            error = IllegalAccessError("load of 4 bytes at 0x10: no buffer there")
            error.add_note("0x10 was parameter 2")
            raise error
        case "quits":
            sys.exit(0)
        case "forks":
            os.fork()
        case "prints":
            print("a line of Python", flush=True)
            os.write(1, b"a line of C\n")
        case "needs_moon":
            raise UnsupportedError("package:moon")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sticks":
            HostDevice.stuck = "CUDA error: an illegal memory access was encountered"
        case "counts":
            CALLS.append(None)
            _bump(tensors["y"], len(CALLS) % len(tensors["y"]))
        case "reads_poison":
            tensors["y"][0] = before
        case "reads_scratch":
            import torch

            tensors["y"].fill_(torch.empty(64).isnan().sum())


CALLS: list[None] = []
"""Of the candidate that counts: one entry a call in this process."""


def _bump(tensor: Any, index: int) -> None:
    import torch

    tensor.view(torch.int32)[index] += 1


def make(name: str = "fake", **changes: Any) -> Pair:
    """The pair, with any of its fields replaced."""
    fields: dict[str, Any] = {
        "name": name,
        "summary": "y = 2 x",
        "axes": (
            Axis("n", "int", 8, "elements", low=1, high=4096),
            Axis("behaviour", "str", "good", "what the candidate does", choices=BEHAVIOURS),
        ),
        "regimes": {"x": ("random",)},
        "oracle": Party("equiv_fake:oracle", ("numpy",)),
        "candidate": Party("equiv_fake:candidate", ("numpy",)),
        "layout": layout,
        "inputs": inputs,
        "check": lambda _case: [],
        "output_specs": lambda _case: (
            OutputSpec("y", "f32", ("element",), "envelope", "the last element may be one ulp up"),
            OutputSpec("pool", "u8", ("row", "byte"), "bitwise", "row 1 is set, the others stay"),
        ),
        "outputs": outputs,
        "undefined": lambda _case, _given: {},
        "model": model,
        "envelope": envelope,
        "declaration": declaration,
    }
    return Pair(**(fields | changes))


def carrying(party: str, toolchain: Mapping[str, str], architecture: str, form: str) -> Declaration | None:
    return declares(party, carry=party == "candidate")


def unknown(party: str, toolchain: Mapping[str, str], architecture: str, form: str) -> Declaration | None:
    return declares(party, carry=False) if party == "oracle" else None


PAIR = make()
REORDERED = make("fake_reordered", declaration=carrying)
UNKNOWN = make("fake_unknown", declaration=unknown)


class HostDevice:
    """A device that runs nothing: parties work on torch CPU tensors directly.

    Attributes:
        stuck: what every wait of this process for a device fails with, as after a sticky CUDA error; "" for nothing.
    """

    kind = "host"
    stuck = ""
    torch_device = "cpu"

    def __init__(self, name: str = "emulated:sm_100a", *, check: str | None = None) -> None:
        if name in {"emulated:sm_0", "cuda:7"}:
            raise UnsupportedError("arch:sm_0", "nobody has it")
        self.name = name
        self.check = check
        self.arch = "sm_90a" if name.startswith("cuda") else name.partition(":")[2]
        self.launches: list[Any] = []
        self.registered: dict[str, bool] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        self.launches = [SimpleNamespace(warp_instructions=5, seconds=0.25)]
        yield

    @contextlib.contextmanager
    def recorded(self, root: Path, name: str) -> Iterator[None]:
        yield
        root.mkdir(exist_ok=True)
        (root / name).touch()

    def register(self, name: str, _what: Any, *, writable: bool = True) -> None:
        self.registered[name] = writable

    def unregister(self, name: str) -> None:
        del self.registered[name]

    def synchronize(self) -> None:
        if self.stuck:
            raise DeviceError(f"{self.name}: {self.stuck}")

    def remarks(self) -> tuple[str, ...]:
        return ()


def run_on_host(task: Task) -> Verdict:
    """What a worker does, on the host device."""
    vars(importlib.import_module("equiv.device"))["device"] = HostDevice
    return run_task(task)


def answer(task: Task) -> Verdict:
    """Lives and dies as the case's behaviour says, without computing anything."""
    match task.case.axes["behaviour"]:
        case "segfaults":
            print("about to read address 0", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exits":
            os._exit(7)
        case "exits_leaving_a_child":  # which holds the worker's pipe open
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            os._exit(7)
        case "answers_for_another":
            return replace(task.stopped(Status.IDENTICAL, "good"), case="fake::another")
        case "tells":  # which process, and what it may see of the GPUs
            said = {name: os.environ.get(name) for name in (gpus.VISIBLE, gpus.PINNED)}
            loaded = [name for name in ("torch", "cuda") if name in sys.modules]
            return task.stopped(Status.IDENTICAL, json.dumps([os.getpid(), *said.values(), loaded]))
        case "fails":
            return task.stopped(Status.ERROR, f"failed in {os.getpid()}")
        case "hangs":
            print("waiting for the barrier", flush=True)
            time.sleep(3600)
    return task.stopped(Status.IDENTICAL, f"answered by {os.getpid()}")
