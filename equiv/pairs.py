"""The registry of pairs: an oracle, a candidate and a model of one operator, with the contracts of its outputs.

Adding a pair: write a module that builds one `Pair`, name it in the entry-point group `equiv.pairs`
(`my_op = "my_package.my_op:PAIR"`), and put its cases into `cases/my_op.toml`. What must not load torch or a compiler
(axes, layout, contracts) is given as functions; the two parties are given as import paths and loaded when a case runs.
A kernel of somebody else may stand in for a pair's candidate (`equiv.kernels`): that is the pair `PAIR+KERNEL`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from equiv import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from equiv.records import AxisValue, Bits, Case, OutputSpec, TensorSpec
    from equiv.rounding.declaration import Terms

GROUP = "equiv.pairs"
JOINT = "+"
"""Between the names of a pair and of the kernel that takes its candidate's place."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a pair.

    Attributes:
        kind: `int`, `float`, `bool` or `str`.
        choices: the allowed values, or () for any in [low, high].
        meaning: one sentence with the unit.
    """

    name: str
    kind: str
    default: AxisValue
    meaning: str
    choices: tuple[AxisValue, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Party:
    """One implementation: `entry` is `module:function`, called as `function(case, tensors)` on the active device.

    `tensors` maps tensor names to torch tensors of the device; results are written into them, nothing is returned.
    `packages` are the distributions whose versions key its declaration (`triton`), `architectures` where it compiles.
    """

    entry: str
    packages: tuple[str, ...]
    architectures: tuple[str, ...] = ("sm_90a", "sm_100a")

    def load(self) -> Callable[[Case, Mapping[str, Any]], None]:
        """Imports the function; this is where torch and a compiler come in."""
        module, _, function = self.entry.partition(":")
        loaded: Callable[[Case, Mapping[str, Any]], None] = getattr(importlib.import_module(module), function)
        return loaded

    def unsupported(self, case: Case) -> str:  # noqa: ARG002  what a party of ours does not ask
        """What a case needs that the party lacks (`axis:format=fp4`), "" if it can do it."""
        return ""

    def remarks(self, case: Case) -> tuple[str, ...]:  # noqa: ARG002
        """What a report has to say about the party in a case, beside its results."""
        return ()


@dataclass(frozen=True, slots=True)
class Soak:
    """How random cases of a pair are drawn (`equiv.drawn`).

    Attributes:
        compiled: the axes that a kernel of the pair is compiled for: cases that agree in them share their compilations;
            None: every axis.
        seconds: case -> about how long it takes one core on an emulated device; None: by the bytes of its tensors.
        most: cases that take longer are not drawn, unless more is asked for.
    """

    compiled: tuple[str, ...] | None = None
    seconds: Callable[[Case], float] | None = None
    most: float = 1.0


class Envelope(Protocol):
    """What the declared differences of one case may yield, ready to judge outputs."""

    def judge(self, outputs: Mapping[str, Bits]) -> Mapping[str, tuple[Bits, float]]:
        """Logical output name -> (boolean mask of elements inside, largest share of the envelope used, 0..1)."""
        ...


@dataclass(frozen=True, slots=True)
class Subset:
    """Some requests of a batch as a batch of their own.

    Attributes:
        case: the case with that batch.
        inputs: bits of its tensors: the requests' rows, and whole what all requests share.
        part: outputs of the whole batch -> those that these requests alone must give too, by the same names.
    """

    case: Case
    inputs: Mapping[str, Bits]
    part: Callable[[Mapping[str, Bits]], dict[str, Bits]]


@dataclass(frozen=True, slots=True)
class Pair:
    """One operator, three ways.

    Attributes:
        layout: Case -> the tensors both parties get.
        inputs: Case -> tensor name -> logical bit patterns of every `input` and `inout` tensor.
        check: Case -> problems with the combination of its axes and regimes, as (path below the case, problem) pairs.
        regimes: piece name -> the value regimes it knows; the first one is the default.
        output_specs: Case -> its logical outputs and their contracts.
        outputs: (case, inputs, tensors after the run) -> logical outputs cut out of them.
        undefined: (case, inputs) -> logical output name -> boolean mask of elements that the contract leaves undefined.
        model: (case, inputs, declaration[, ledger to execute instead of its own]) -> logical outputs.
        envelope: (case, inputs, declarations of the parties, None where unknown) -> Envelope.
        declaration: (party name, toolchain, architecture, form) -> what the party declares, or None if unknown.
        forms: party name -> forms that it declares separately (other kernels for other cases); not named: one.
        form: (party name, case, architecture) -> the form that serves the case; needed where `forms` names any.
        quantised: (case, inputs, declaration) -> pairs of codes and scales among the outputs
            (`equiv.rounding.scales.Quantised`), as a party that declares so computes them.
        soak: what keeps random cases quick.
        terms: () -> name of a reduction -> what its terms are, for finding it in a trace (`equiv order`).
        misreadings: (case, inputs) -> (in words, changed inputs by name) that a kernel may have read instead, used to
            explain mismatches; without `misread` each keeps the places of all outputs.
        misread: (case, inputs, changed inputs, declaration, ledger) -> logical outputs of a kernel that reads so, cut
            where the case's own inputs say that they are; None: the model of the changed inputs.
        ledger: () -> the rounding ledger its model executes (`equiv.rounding.ledger`), or None: rows go by id alone.
        place: (case, inputs, output, index) -> where that element is, in words; None: the names of `dims` are used.
        shared: (case, inputs, output, indices [n, dims]) -> what these elements have in common in the pair's own terms,
            "" for nothing; None: only what the dimensions show is said.
        subset: (case, inputs, requests) -> those of the `batch` alone, in that order; None: nobody can ask.
        recut: case -> (in words, a case that must give the candidate's same bits from the same inputs): other values
            of axes that only say how work is shared out, the number of CTAs for one.
    """

    name: str
    summary: str
    axes: tuple[Axis, ...]
    regimes: Mapping[str, tuple[str, ...]]
    oracle: Party
    candidate: Party
    layout: Callable[[Case], tuple[TensorSpec, ...]]
    inputs: Callable[[Case], dict[str, Bits]]
    check: Callable[[Case], list[tuple[str, str]]]
    output_specs: Callable[[Case], tuple[OutputSpec, ...]]
    outputs: Callable[[Case, Mapping[str, Bits], Mapping[str, Bits]], dict[str, Bits]]
    undefined: Callable[[Case, Mapping[str, Bits]], dict[str, Bits]]
    model: Callable[..., dict[str, Bits]]
    envelope: Callable[[Case, Mapping[str, Bits], tuple[Any, ...]], Envelope]
    declaration: Callable[[str, Mapping[str, str], str, str], Any]
    place: Callable[[Case, Mapping[str, Bits], str, tuple[int, ...]], str] | None = None
    shared: Callable[[Case, Mapping[str, Bits], str, npt.NDArray[np.int64]], str] | None = None
    ledger: Callable[[], Any] | None = None
    misreadings: Callable[[Case, Mapping[str, Bits]], Iterator[tuple[str, Mapping[str, Bits]]]] | None = None
    misread: Callable[..., dict[str, Bits]] | None = None
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    form: Callable[[str, Case, str], str] | None = None
    quantised: Callable[[Case, Mapping[str, Bits], Any], tuple[Any, ...]] | None = None
    terms: Callable[[], Mapping[str, Terms]] | None = None
    soak: Soak = field(default_factory=Soak)
    subset: Callable[[Case, Mapping[str, Bits], Sequence[int]], Subset] | None = None
    recut: Callable[[Case], Iterator[tuple[str, Case]]] | None = None

    def declared(self, party: str, toolchain: Mapping[str, str], arch: str, case: Case) -> Any:  # noqa: ANN401
        """What the party declares of the form that serves a case, or None if that is unknown."""
        return self.declaration(party, toolchain, arch, self.form_of(party, case, arch))

    def form_of(self, party: str, case: Case, arch: str) -> str:
        """The form of a party that serves a case on an architecture, "" if it has one only."""
        return self.form(party, case, arch) if self.form and self.forms.get(party) else ""


def late(entry: str, *first: str) -> Callable[..., Any]:
    """The function `module:name` with its first arguments given, imported when it is first called."""

    def call(*arguments: Any) -> Any:  # noqa: ANN401  -- passes on whatever the function takes and gives
        module, _, name = entry.partition(":")
        return getattr(importlib.import_module(module), name)(*first, *arguments)

    return call


def names() -> tuple[str, ...]:
    """Names of all registered pairs, sorted; loads none of them, and knows no `PAIR+KERNEL`."""
    return entries.names(GROUP)


def known(name: str) -> bool:
    """Whether there is a pair of that name, or the pair and the kernel of `PAIR+KERNEL`; loads nothing."""
    pair, joint, kernel = name.partition(JOINT)
    return pair in names() and (not joint or kernel in entries.names("equiv.kernels"))


def base(name: str) -> str:
    """The pair that has the cases: `dsa_index` of `dsa_index` and of `dsa_index+my_kernel`."""
    return name.partition(JOINT)[0]


def homes(name: str) -> tuple[str, ...]:
    """The modules that give a pair, and the kernel in it, as their entry points say; loads nothing.

    Raises:
        UsageError: there is no such pair or kernel.
    """
    pair, joint, kernel = name.partition(JOINT)
    own = entries.point(GROUP, pair).module
    return (own, entries.point("equiv.kernels", kernel).module) if joint else (own,)


def get(name: str) -> Pair:
    """The pair of that name; of `PAIR+KERNEL` the pair with that kernel as its candidate.

    Raises:
        UsageError: no such pair (the known ones are listed), or its entry point cannot be loaded or gives no `Pair`.
    """
    own, joint, kernel = name.partition(JOINT)
    pair = entries.load(GROUP, own, Pair)
    if not joint:
        return pair
    from equiv import kernels  # which knows pairs

    return kernels.in_place(pair, kernel)
