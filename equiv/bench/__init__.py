"""How fast the parts of equiv are, one core: figures that a person can compare between machines and versions.

A figure is the best of several repetitions, because everything that disturbs a measurement makes it longer. Where
other processes may take the processor away meanwhile, its own seconds are taken instead of the clock's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from equiv.rounding import matrix_native, sweeps
from equiv.rounding.matrix_table import variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MMA: Final = "mma.sync.aligned"
_MX: Final = "tcgen05.mma.cta_group::1.kind"
MATRICES: Final = (
    (f"{_MMA}.m16n8k16.row.col.f32.bf16.bf16.f32", "sm_90a"),
    (f"{_MMA}.m16n8k16.row.col.f16.f16.f16.f16", "sm_90a"),
    (f"{_MMA}.m16n8k8.row.col.f32.tf32.tf32.f32", "sm_90a"),
    (f"{_MMA}.m16n8k32.row.col.f32.e4m3.e4m3.f32", "sm_90a"),
    ("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", "sm_90a"),
    (f"{_MX}::mxf8f6f4.block_scale.block32.f32.e4m3.e4m3.ue8m0", "sm_100a"),
    (f"{_MX}::mxf4.block_scale.block32.f32.e2m1.e2m1.ue8m0", "sm_100a"),
)
"""Instructions that are timed, and on which architecture; the first one has a target: 2 ms."""

SPECIALS: Final = tuple(name for name in sweeps.TWINS if ".approx" in name or ".rn.f32" in name)
"""Scalar functions that are timed, over two binades; target: 1 s."""

SIZE: Final = 128


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement: `count` things of `unit` in `seconds`."""

    name: str
    seconds: float
    count: int
    unit: str

    def __str__(self) -> str:
        rate = self.count / self.seconds
        shown = f"{rate / 1e6:10.1f} M" if rate >= 1e5 else f"{rate:12.0f}"
        return f"{self.name:<92} {self.seconds * 1e3:9.2f} ms {shown} {self.unit}/s"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number that is no rate: `value` in `unit`."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name:<92} {self.value:9.2f} {self.unit}"


def best(work: Callable[[], object], repetitions: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    work()
    times = []
    for _ in range(repetitions):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def matrix_product(instruction: str, arch: str, repetitions: int = 20) -> Figure:
    """[128, 128] times [128, 128] by the C twin of a matrix instruction, operands of ordinary size, C = 0."""
    model = variant(instruction, arch)
    rng = np.random.default_rng(1)
    operands = []
    for fmt in (model.a, model.b):
        one = fmt.bias << fmt.fraction
        codes = (
            rng.integers(0, 2, (SIZE, SIZE)) * fmt.sign_mask | one | rng.integers(0, 1 << fmt.fraction, (SIZE, SIZE))
        )
        operands.append((codes << model.row.dropped).astype(fmt.dtype))
    a, b = operands
    scale_a = scale_b = None
    if model.scales is not None:
        fmt, blocks = model.scales.format, SIZE // model.scales.block
        scale_a = np.full((SIZE, blocks), fmt.bias << fmt.fraction, dtype=fmt.dtype)
        scale_b = np.full((blocks, SIZE), fmt.bias << fmt.fraction, dtype=fmt.dtype)
    seconds = best(lambda: matrix_native.fused_dot(model, a, b, scale_a=scale_a, scale_b=scale_b), repetitions)
    return Figure(f"[128,128]x[128,128] {instruction}", seconds, SIZE**3, "products")


def special_function(instruction: str, repetitions: int = 2) -> Figure:
    """2^24 evaluations by the C twin, of all inputs from 1 up to 4, and their comparison with the H200's checksums."""
    binades = (0x7F, 0x80)
    seconds = best(lambda: sweeps.differing(instruction, binades), repetitions)
    return Figure(f"2^24 {instruction}", seconds, sweeps.INPUTS * len(binades), "values")


def numerics() -> Iterator[Figure]:
    """The figures of `equiv bench numerics`.

    Raises:
        UnsupportedError: there is no gcc.
    """
    for instruction, arch in MATRICES:
        yield matrix_product(instruction, arch)
    for instruction in SPECIALS:
        yield special_function(instruction)


def kda() -> Iterator[Measure]:
    """The figures of `equiv bench kda`.

    Raises:
        UnsupportedError: there is no GPU.
    """
    from equiv.bench import kda_step

    yield from kda_step.figures()


def dsa_front() -> Iterator[Measure]:
    """The figures of `equiv bench dsa_front`.

    Raises:
        UnsupportedError: there is no GPU.
    """
    from equiv.bench import front

    yield from front.figures()


def emulator() -> Iterator[Figure | Measure]:
    """The figures of `equiv bench emulator`.

    Raises:
        UnsupportedError: Triton, torch or a C compiler is missing.
        EquivError: a process that was to measure itself failed.
    """
    from equiv.bench import emulation

    yield from emulation.figures()
