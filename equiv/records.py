"""The records that travel along equiv's one line: case -> inputs -> sides -> verdict. Frozen, stdlib and numpy only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    Bits = npt.NDArray[np.unsignedinteger]

AxisValue = int | float | str | bool


class Status(StrEnum):
    """What is said of an output, a case or a run; `worse` orders them."""

    IDENTICAL = "IDENTICAL"
    REORDERED = "REORDERED"
    WITHIN = "WITHIN"
    UNSUPPORTED = "UNSUPPORTED"
    NOT_RUN = "NOT_RUN"
    MISMATCH = "MISMATCH"
    ERROR = "ERROR"


SEVERITY: tuple[Status, ...] = (
    Status.IDENTICAL,
    Status.REORDERED,
    Status.WITHIN,
    Status.UNSUPPORTED,
    Status.NOT_RUN,
    Status.MISMATCH,
    Status.ERROR,
)
"""From best to worst; a case is as bad as its worst output."""


def worst(statuses: list[Status]) -> Status:
    """The worst of `statuses`; IDENTICAL of none would be a lie, so an empty list raises ValueError."""
    return max(statuses, key=SEVERITY.index)


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a pair, as its file states it with defaults filled in.

    Attributes:
        axes: shape and option axes, `batch` -> 17, `format` -> "fp8".
        regimes: tensor name -> name of a value regime; tensors not named take the pair's default.
        origin: file and path of the case, `cases/dsa_index.toml $.case[3]`.
    """

    pair: str
    id: str
    why: str
    seed: int
    suites: tuple[str, ...]
    axes: Mapping[str, AxisValue]
    regimes: Mapping[str, str]
    origin: str = ""

    @property
    def name(self) -> str:
        """`dsa_index::fp8-b17-ties`: how the case is called everywhere."""
        return f"{self.pair}::{self.id}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that both parties read or write.

    Attributes:
        role: `input` (must not change), `output` (starts as poison) or `inout` (starts as generated; untouched bytes
            must stay).
        format: name in `equiv.rounding.formats` (`bf16`, `f32`) or `u8`, `i64` for plain integers.
        shape: logical shape in elements.
        strides: in elements; the gap elements are guard bytes.
        sparse: place it in sparse memory (spans of gigabytes of which little is touched).
    """

    name: str
    role: str
    format: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sparse: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One *logical* output and its contract, cut out of the tensors by `Pair.outputs`.

    Attributes:
        dims: what each index means, `("request", "head", "channel")`.
        contract: `bitwise` (oracle and candidate must agree bit for bit), `envelope` (they may differ as declared), or
            `candidate` (promised by the candidate alone; what the oracle leaves there is not looked at).
        copied: its elements are copied from inputs or left alone, never computed: if one is wrong, its place is.
        promise: the contract in words, shown by `equiv list` and in reports.
    """

    name: str
    format: str
    dims: tuple[str, ...]
    contract: str
    promise: str
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """What one party left behind.

    Attributes:
        outputs: logical output name -> bit patterns (unsigned integers of the format's width).
        toolchain: `{"triton": "3.8.0"}`, `{"cutlass-dsl": "4.8.1"}`: the key of its declaration.
        faults: bytes changed that must not be, guard bands hit, checker findings, in words; empty when clean.
        launches: number of kernel launches; warp_instructions and seconds are their sums (0 on a GPU for instructions).
    """

    outputs: Mapping[str, Bits]
    toolchain: Mapping[str, str]
    faults: tuple[str, ...] = ()
    launches: int = 0
    warp_instructions: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Element:
    """One differing element, fully placed. `*_bits` are integers; None where a party was not compared."""

    index: tuple[int, ...]
    place: str
    expected_bits: int
    got_bits: int
    expected: float
    got: float
    ulps: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How two arrays of one output differ.

    Attributes:
        left: who is taken as right here (`model`, `oracle`), right: who differs (`oracle`, `candidate`).
        count: elements whose bits differ, of `total`.
        worst: the elements shown: the first and the worst ones by ulps.
        pattern: what the differing places have in common, in words, or "".
        ulps: how many distances have 1, 2, 3, ... bits (one ulp, 2 or 3, 4 to 7, ...), of those that have one.
        grid: differing elements over (all dimensions but the last, last dimension), each in a few equal parts.
    """

    output: str
    left: str
    right: str
    format: str
    count: int
    total: int
    worst: tuple[Element, ...]
    pattern: str = ""
    ulps: tuple[int, ...] = ()
    grid: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """The verdict on one output.

    Attributes:
        blamed: `oracle`, `candidate` or "" : the party that differs from its model.
        envelope_used: largest share of the envelope used, 0..1, or None where no envelope applied.
        undefined: elements the contract leaves undefined, excluded and counted here.
    """

    output: str
    status: Status
    summary: str
    differences: tuple[Difference, ...] = ()
    blamed: str = ""
    envelope_used: float | None = None
    undefined: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case on one device.

    Attributes:
        seconds: of the whole case; launch_seconds of it inside kernel launches, which executed `warp_instructions`.
        again: the command that repeats the case.
        gap: why and until when the case is listed as known not to pass, or "".
    """

    case: str
    device: str
    seed: int
    status: Status
    summary: str
    outputs: tuple[OutputVerdict, ...] = ()
    declared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    launch_seconds: float = 0.0
    warp_instructions: int = 0
    toolchain: Mapping[str, str] = field(default_factory=dict)
    again: str = ""
    gap: str = ""
