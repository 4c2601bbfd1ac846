"""How fast the emulator is, one core, exact arithmetic and checker on, with Triton's interpreter beside it.

All times but those of whole processes are seconds of the processor, the best of several. Engine times are those of a
launch inside the engine.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from equiv import cache, pairs
from equiv.bench import Figure, Measure, best, micro, process
from equiv.device import device
from equiv.emulator import contraction, engine, ptx_parser
from equiv.emulator.store import shared_store
from equiv.errors import EquivError
from equiv.plan import cases
from equiv.runner import run_party

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.emulator.launch import LaunchCount

CASES: Final = ("dsa_index::fp8-b129", "dsa_index::fp4-b129")
REPETITIONS: Final = 10
LONG: Final = 2000
"""Instructions of the kernel whose set-up is timed beside that of real ones."""


def figures() -> Iterator[Figure | Measure]:
    """The figures of `equiv bench emulator`.

    Raises:
        UnsupportedError: Triton, torch or a C compiler is missing.
        EquivError: a process that was to measure itself failed.
    """
    for products in (True, False):
        yield micro_kernel(products=products)
    launches: list[LaunchCount] = []
    for case in CASES:
        fastest = oracle(case)
        launches += fastest
        yield _figure(f"Triton oracle {case}, {len(fastest)} launches", fastest)
        for one in fastest:
            yield _figure(f"  {one.kernel}", [one])
    yield from against_interpreter()
    yield from set_up(launches)
    yield from starts()


def micro_kernel(*, products: bool, repetitions: int = REPETITIONS) -> Figure:
    """The kernel of `micro`."""
    fastest = min((micro.launch(products=products)[0] for _ in range(repetitions)), key=lambda stats: stats.processor)
    share = len(micro.step(products=products)) + 3
    name = f"micro-kernel, 1 mma.sync in {share}" if products else "micro-kernel without mma.sync"
    return Figure(name, fastest.processor, fastest.warp_instructions, "warp-instructions")


def oracle(name: str, repetitions: int = REPETITIONS) -> list[LaunchCount]:
    """The launches of the oracle of a case on emulated:sm_90a, of each the fastest of several."""
    pair = pairs.get(name.partition("::")[0])
    (case,) = cases(None, [name], [])
    inputs, chosen = pair.inputs(case), device(process.DEVICE)
    runs = []
    for _ in range(repetitions):
        run_party(pair, "oracle", case, inputs, chosen)
        runs.append(list(chosen.launches))
    return [min(same, key=lambda one: one.processor) for same in zip(*runs, strict=True)]


def _figure(name: str, launches: list[LaunchCount]) -> Figure:
    seconds = sum(one.processor for one in launches)
    return Figure(name, seconds, sum(one.warp_instructions for one in launches), "warp-instructions")


def against_interpreter() -> Iterator[Figure | Measure]:
    """One float32 Triton kernel (LayerNorm and softmax of 128) by the emulator and by Triton's interpreter."""
    kernel, given = importlib.import_module(process.KERNEL).normalised_softmax, process.tensors(process.ROWS)
    chosen = device(process.DEVICE)
    with chosen.active():
        whole = best(lambda: kernel(**given), REPETITIONS, time.process_time)
        launch = min(chosen.launches, key=lambda one: one.processor)
    interpreted = child("interpreter", TRITON_INTERPRET="1")
    ours, theirs = float(given["y"][: process.INTERPRETED_ROWS].sum()), interpreted["sum"]
    if abs(ours - theirs) > 1e-4 * abs(theirs):
        raise EquivError(f"the interpreter computed another result: {theirs!r}, the emulator {ours!r}")
    yield _figure(f"Triton LayerNorm and softmax, {process.ROWS} programs, in the engine", [launch])
    yield Figure("the same, whole launches", whole, process.ROWS, "programs")
    yield Figure("the same, TRITON_INTERPRET=1", interpreted["seconds"], int(interpreted["programs"]), "programs")
    ratio = interpreted["seconds"] / interpreted["programs"] / (whole / process.ROWS)
    yield Measure("speed of whole launches, times that of the interpreter", ratio, "x")


def set_up(launches: list[LaunchCount]) -> Iterator[Measure]:
    """From PTX to a program that can run, its handlers compiled and loaded already."""
    seen: set[tuple[str, str]] = set()
    for one in launches:
        image = shared_store().find(one.image)
        if image is None or (one.image, one.kernel) in seen:
            continue
        seen.add((one.image, one.kernel))
        yield _set_up(image.ptx, one.kernel, image.arch)
    yield _set_up(micro.text(products=True, steps=-(-LONG // len(micro.step(products=True)))), "micro", "sm_90a")


def _set_up(ptx: str, kernel: str, arch: str) -> Measure:
    def prepare() -> engine.Program:
        module = ptx_parser.parse(ptx)
        contracted, _ = contraction.contract(module.kernels[kernel])
        return engine.load(replace(module, kernels={kernel: contracted}), kernel, arch)

    seconds = best(prepare, 3, time.process_time)
    return Measure(f"parse, contract, decode {kernel}, {len(prepare().code)} instructions", seconds * 1e3, "ms")


def starts() -> Iterator[Measure]:
    """From the imports of a process to the first result of one kernel; Triton has compiled it before."""
    with tempfile.TemporaryDirectory(prefix="equiv-bench-") as empty:
        cold = child("start", **{cache.VARIABLE: empty})
        warm = child("start", **{cache.VARIABLE: empty})
    yield Measure("imports: torch, Triton, CuTe DSL, equiv", warm["imports_processor"], "s")
    yield Measure("Triton's compilation, from its cache", warm["compilation_processor"], "s")
    yield Measure("first process, then to the first result: the engine is compiled (clock)", cold["first"], "s")
    yield Measure("second process, then to the first result", warm["first_processor"], "s")
    yield Measure("a later launch in that process", warm["second_processor"], "s")


def child(task: str, **environment: str) -> Mapping[str, float]:
    """What a fresh process measured of itself.

    Raises:
        EquivError: it failed; with the end of what it said.
    """
    command = [sys.executable, "-m", "equiv.bench.process", task]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        raise EquivError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured
