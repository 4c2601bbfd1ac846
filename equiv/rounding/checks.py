"""What `equiv doctor --numerics` checks: the models of this package against themselves and against an H200.

A check counts what it compared and what differed. Three things are compared: the C twin, which the emulator runs; the
definition in Python; and what a GPU computed, or, where every input counts, conversions written a second time in C.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from equiv.rounding import conversion_checks, formats, matrix, matrix_measured, matrix_native, mufu, sweeps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from equiv.rounding.conversion_checks import Count


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes:
        name: of what is checked; with `compares` unique.
        compares: what with what, over which inputs.
        unit: what is counted.
        count: does it: (compared, differing).
    """

    name: str
    compares: str
    unit: str
    count: Callable[[], Count]

    def run(self) -> Outcome:
        """Does it and takes the time.

        Raises:
            UnsupportedError: there is no C compiler.
        """
        start = time.perf_counter()
        checked, mismatches = self.count()
        return Outcome(self.name, self.compares, self.unit, checked, mismatches, time.perf_counter() - start)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found; `seconds` of one thread, others running beside it."""

    name: str
    compares: str
    unit: str
    checked: int
    mismatches: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.checked > 0 and self.mismatches == 0

    def __str__(self) -> str:
        state = "ok" if self.ok else "MISMATCH"
        return (
            f"{state:8} {self.name:26} {self.checked:>13,} {self.unit:8} {self.mismatches:>6,} mismatches"
            f" {self.seconds:6.1f} s  {self.compares}"
        )


PERIODS: Final = (
    ("ex2", 0x3F800000, 1 << 23, 0x7514E0E917AB950E),
    ("rcp", 0x3F800000, 1 << 23, 0x46F42047E2DDDF03),
    ("rsqrt", 0x3F800000, 1 << 24, 0x50624A55CE06D70D),
    ("sqrt", 0x3F800000, 1 << 24, 0xCC77EA131D601793),
    ("lg2", 0x40000000, 1 << 23, 0x15474766DC258564),
    ("lg2", 0x3F800000, 1 << 23, 0x03241E33A86BFA9F),
    ("lg2", 0x3F000000, 1 << 23, 0x2A8B6CCAAE2B65BC),
)
"""Function, first input, inputs, and the sum of result * (2 i + 1) modulo 2^64 over an H200's results."""

_UNIT: Final = {"ex2": mufu.ex2, "rcp": mufu.rcp, "rsqrt": mufu.rsqrt, "sqrt": mufu.sqrt, "lg2": mufu.lg2}
_PIECE: Final = 1 << 18


def period(function: Callable[[mufu.U32], mufu.U32], start: int, count: int, checksum: int) -> Count:
    """The definition over one period; a wrong checksum counts as one mismatch, whatever number of results is wrong."""
    total = 0
    for first in range(0, count, _PIECE):
        index = np.arange(first, first + _PIECE, dtype=np.uint64)
        results = function((index + np.uint64(start)).astype(np.uint32)).astype(np.uint64)
        total += int(np.sum(results * (2 * index + np.uint64(1)), dtype=np.uint64))
    return count, int(total % (1 << 64) != checksum)


def sweep(instruction: str, binades: Sequence[int] = range(sweeps.BINADES)) -> Count:
    """The C twin over binades of inputs; a mismatch is a binade whose checksum differs."""
    return len(binades) * sweeps.INPUTS, len(sweeps.differing(instruction, binades))


def products(family: str, fused_dot: Callable[..., matrix.Codes]) -> Count:
    """Every stored output of a family of matrix instructions."""
    checked = mismatches = 0
    for file in matrix_measured.FILES:
        for measured in matrix_measured.load(matrix_measured.DATA / file):
            if measured.model.row.family == family:
                checked += measured.d.size
                mismatches += int(np.sum(measured.computed(fused_dot) != measured.d))
    return checked, mismatches


def checks() -> tuple[Check, ...]:
    """Every check, the quick ones first."""
    found = [
        Check(f"codes {name}", "widened by C twin = Python = exact value, and narrowed back, every code", "codes",
              partial(conversion_checks.round_trip, formats.named(name)))
        for name in conversion_checks.WIDENED
    ]  # fmt: skip
    found += [
        Check(f"{family} products", f"{twin} = H200, stored results", "outputs", partial(products, family, dot))
        for family in ("mma.sync", "wgmma")
        for twin, dot in (("C twin", matrix_native.fused_dot), ("Python", matrix.fused_dot))
    ]  # fmt: skip
    found += [
        Check(one.name, "Python = C twin, low 12 bits 0 or one beside that", "inputs", one.against_definition)
        for one in conversion_checks.NARROWED
        if one.definition is not None
    ]
    found += [
        Check(f"mufu.{name}", f"Python = H200's checksum of the period from {start:#x}", "inputs",
              partial(period, _UNIT[name], start, count, checksum))
        for name, start, count, checksum in PERIODS
    ]  # fmt: skip
    found += [
        Check(one.name, "C twin = second formulation in C, every input", "inputs", one.against_second)
        for one in conversion_checks.NARROWED
    ]
    found += [
        Check(name, "C twin = H200's checksums of 512 binades, every input", "inputs", partial(sweep, name))
        for name in sweeps.TWINS
    ]
    return tuple(found)


def run(chosen: Sequence[Check] | None = None) -> Iterator[Outcome]:
    """Outcomes of the checks (default: all) in their order, as soon as each is there; one thread a CPU.

    Raises:
        UnsupportedError: there is no C compiler.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        running = [pool.submit(check.run) for check in (checks() if chosen is None else chosen)]
        try:
            for future in running:
                yield future.result()
        finally:
            for future in running:
                future.cancel()
