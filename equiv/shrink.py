"""A smaller case with the same fault: fewer requests, plainer axes and regimes, then inputs that are mostly zero.

What has to stay is one fault of one party: an output that differs from the party's model, bytes it must not write, or
the kind of error that stops it. Each attempt runs that party alone, against its model; it stays if the fault does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from equiv import casefile
from equiv.compare import compare_bits
from equiv.errors import UnsupportedError, UsageError
from equiv.runner import PartyError, run_party
from equiv.shrink_values import INTEGERS, simpler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.device import Device
    from equiv.pairs import Axis, Pair
    from equiv.records import AxisValue, Bits, Case, Difference

PARTIES = ("candidate", "oracle")
"""The candidate first: of a case where both are wrong, its fault is the one that is looked for."""
MEMORY = "memory"
SEEDS = 8
"""Other seeds tried where an axis stays large under the case's own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What has to stay: `what` is an output's name, `memory`, or the type of the error that stops the party."""

    party: str
    kind: str
    what: str

    def __str__(self) -> str:
        return {
            "output": f"{self.what} of the {self.party} differs from its model",
            "memory": f"the {self.party} changes bytes that it must not",
            "error": f"the {self.party} stops with {self.what}",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest case found.

    Attributes:
        inputs: bits it runs with; those that the case generates if `changed` is empty.
        changed: in words, per tensor, how many elements are left other than 0.
        difference: how the output differs there; None for the other kinds of fault.
        detail: what the memory check or the error says.
        steps: what was made smaller, in order.
        over: the budget ran out before everything was tried.
    """

    fault: Fault
    case: Case
    inputs: Mapping[str, Bits]
    changed: tuple[str, ...]
    difference: Difference | None
    detail: str
    steps: tuple[str, ...]
    attempts: int
    seconds: float
    over: bool


@dataclass(slots=True)
class _Found:
    """All faults of one party on one case."""

    faults: tuple[Fault, ...]
    differences: Mapping[str, Difference] = field(default_factory=dict)
    detail: str = ""


def shrink(pair: Pair, case: Case, device: Device, budget: float) -> Shrunk | None:
    """The smallest case that was found within `budget` seconds, or None if no party is wrong on `case`.

    An attempt that has begun is not broken off, so it may take a little longer.

    Raises:
        UnsupportedError: a party cannot run here.
        UsageError: nothing is declared for a party as compiled here, so there is no model to judge it by.
    """
    started = time.monotonic()
    inputs = pair.inputs(case)
    for party in PARTIES:
        found = _look(pair, party, case, inputs, device)
        if found.faults:
            search = _Search(pair, device, found.faults[0], case, started + budget)
            search.go()
            return search.result(started)
    return None


def _look(pair: Pair, party: str, case: Case, inputs: Mapping[str, Bits], device: Device) -> _Found:
    try:
        side = run_party(pair, party, case, inputs, device)
    except PartyError as error:
        return _Found((Fault(party, "error", _kind(error)),), detail=error.detail)
    faults = [Fault(party, "memory", MEMORY)] if side.faults else []
    declaration = pair.declared(party, side.toolchain, device.arch, case)
    if declaration is None:
        if faults:
            return _Found(tuple(faults), detail="\n".join(side.faults))
        versions = ", ".join(f"{package} {version}" for package, version in side.toolchain.items())
        raise UsageError(f"{party}: nothing is declared for {versions} on {device.arch}: no model to judge it by")
    model, undefined = pair.model(case, inputs, declaration), pair.undefined(case, inputs)
    differences = {}
    for spec in pair.output_specs(case):
        if spec.contract == "candidate" and party != "candidate":
            continue
        difference = compare_bits(
            spec,
            "model",
            model[spec.name],
            party,
            side.outputs[spec.name],
            excluded=None if spec.name not in undefined else np.asarray(undefined[spec.name], dtype=np.bool_),
            place=pair.place and partial(pair.place, case, inputs, spec.name),
            shared=pair.shared and partial(pair.shared, case, inputs, spec.name),
        )
        if difference is not None:
            differences[spec.name] = difference
    wrong = [Fault(party, "output", name) for name in differences]
    return _Found((*wrong, *faults), differences, "\n".join(side.faults))


def _kind(error: PartyError) -> str:
    """The type of what stopped a party: `IllegalAccessError`; of a traceback the one in its last line."""
    lines = error.detail.strip().splitlines() or [""]
    last = next((line for line in reversed(lines) if line and not line.startswith(" ")), lines[-1])
    line = last if lines[0].startswith("Traceback") else lines[0]
    return line.partition(":")[0]


class _OverError(Exception):
    """The budget is spent."""


class _Search:
    """The smallest case so far, and the attempts at a smaller one."""

    def __init__(self, pair: Pair, device: Device, fault: Fault, case: Case, deadline: float) -> None:
        self.pair, self.device, self.fault, self.deadline = pair, device, fault, deadline
        self.case, self.inputs = case, pair.inputs(case)
        self.steps: list[str] = []
        self.attempts = 0
        self.over = False

    def go(self) -> None:
        """Makes the case smaller, then its values simpler, until nothing helps or the budget is spent."""
        try:
            while self._axes() or self._seeds():
                pass
            self._last()
            self._values()
        except _OverError:
            self.over = True

    def result(self, started: float) -> Shrunk:
        """The smallest case with its fault looked at once more."""
        last = _look(self.pair, self.fault.party, self.case, self.inputs, self.device)
        assert self.fault in last.faults, f"{self.case.name}: {self.fault}, and it does not any more"
        generated = self.pair.inputs(self.case)
        changed = [name for name, bits in self.inputs.items() if not np.array_equal(bits, generated[name])]
        return Shrunk(
            self.fault,
            self.case,
            self.inputs,
            tuple(f"{name}: {np.count_nonzero(self.inputs[name])} of {self.inputs[name].size} elements are not 0"
                  for name in changed),
            last.differences.get(self.fault.what),
            last.detail,
            tuple(self.steps),
            self.attempts,
            time.monotonic() - started,
            self.over,
        )  # fmt: skip

    def _stays(self, case: Case, inputs: Mapping[str, Bits]) -> bool:
        if time.monotonic() > self.deadline:
            raise _OverError
        self.attempts += 1
        try:
            return self.fault in _look(self.pair, self.fault.party, case, inputs, self.device).faults
        except UnsupportedError:  # this combination of axes has no code here: another fault
            return False

    def _take(self, case: Case) -> bool:
        """Goes on with this case if it is one, and has the fault."""
        if casefile.problems(case, self.pair):
            return False
        inputs = self.pair.inputs(case)
        if not self._stays(case, inputs):
            return False
        self.case, self.inputs = case, inputs
        return True

    def _axes(self) -> bool:
        """One round over all axes and regimes; whether anything became smaller."""
        before = self.case
        for axis in self.pair.axes:
            was = self.case.axes[axis.name]
            self._smaller(axis)
            self._said(f"axes.{axis.name}", was, self.case.axes[axis.name])
        for piece, known in self.pair.regimes.items():
            was = self.case.regimes[piece]
            if was != known[0] and self._take(replace(self.case, regimes={**self.case.regimes, piece: known[0]})):
                self._said(f"regimes.{piece}", was, known[0])
        return self.case != before

    def _said(self, what: str, was: AxisValue, now: AxisValue) -> None:
        if was != now:
            self.steps.append(f"{what}: {was} -> {now}")

    def _smaller(self, axis: Axis) -> None:
        value = self.case.axes[axis.name]
        if axis.kind != "int" or isinstance(value, (str, bool)):
            if value != axis.default:
                self._take(self._with(axis, axis.default))
            return
        if axis.choices:
            for choice in sorted(int(one) for one in axis.choices if int(one) < value):
                if self._take(self._with(axis, choice)):
                    return
            return
        low, high = int(axis.low if axis.low is not None else axis.default), int(value)
        if high <= low or self._take(self._with(axis, low)):
            return
        while high - low > 1:  # the least value with the fault, if all above it have it
            middle = (low + high) // 2
            if self._take(self._with(axis, middle)):
                high = middle
            else:
                low = middle

    def _with(self, axis: Axis, value: AxisValue) -> Case:
        return replace(self.case, axes={**self.case.axes, axis.name: value})

    def _seeds(self) -> bool:
        """Tries other seeds where a size is not at its low end; whether one helps."""
        for axis in self.pair.axes:
            value = self.case.axes[axis.name]
            if axis.kind != "int" or axis.choices or axis.low is None or int(value) <= int(axis.low):
                continue
            for seed in range(self.case.seed + 1, self.case.seed + 1 + SEEDS):
                before = self.case.seed
                if seed < 1 << 64 and self._take(replace(self._with(axis, int(axis.low)), seed=seed)):
                    self._said(f"axes.{axis.name}", value, int(axis.low))
                    self._said("seed", before, seed)
                    return True
        return False

    def _last(self) -> None:
        """Moves the end of every tensor to its start: of the least size that has the fault, the last row shows it."""
        for axis in self.pair.axes:
            value = self.case.axes[axis.name]
            if axis.kind != "int" or axis.choices or axis.low is None or int(value) <= int(axis.low):
                continue
            case = self._with(axis, int(axis.low))
            if casefile.problems(case, self.pair):
                continue
            formats = {spec.name: spec.format for spec in self.pair.layout(case)}
            inputs = self.pair.inputs(case)
            for name, bits in self.inputs.items():
                if formats.get(name) not in INTEGERS and name in inputs:  # slots and counts have to fit the new size
                    inputs[name] = _end(bits, inputs[name])
            if self._stays(case, inputs):
                self.case, self.inputs = case, inputs
                self.steps.append(f"axes.{axis.name}: {value} -> {axis.low:g}, with the last elements of each tensor")

    def _values(self) -> None:
        """Simplifies one tensor after the other, and again as long as that helps."""
        formats = {spec.name: spec.format for spec in self.pair.layout(self.case) if spec.name in self.inputs}
        helped = True
        while helped:
            helped = False
            for name, format_ in formats.items():
                for words in simpler(self.inputs[name], format_, partial(self._stays_with, name)):
                    self.steps.append(f"{name}: {words}")
                    helped = True

    def _stays_with(self, name: str, bits: Bits) -> bool:
        if self._stays(self.case, {**self.inputs, name: bits}):
            self.inputs[name] = bits
            return True
        return False


def _end(bits: Bits, like: Bits) -> Bits:
    """The end of an array along every dimension in which `like` is smaller; `like` itself if one is larger."""
    if bits.ndim != like.ndim or any(new > old for new, old in zip(like.shape, bits.shape, strict=True)):
        return like
    return bits[tuple(slice(old - new, old) for new, old in zip(like.shape, bits.shape, strict=True))].copy()
