"""Does a party give the same bits again? One case under every condition that must not matter, each against a first run.

A matrix is a `Verdict` whose outputs are its cells, `candidate graph` for one: IDENTICAL is the same bits, REORDERED
bits that change where the pair declares other orders, MISMATCH bits that change for no reason that anybody states.
Elements that the contract leaves undefined, and outputs of the oracle that nothing is promised of, are not looked at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.compare import compare_bits
from equiv.determinism import ways
from equiv.errors import DeviceError, UnsupportedError
from equiv.records import OutputVerdict, Status, Verdict, worst
from equiv.rounding.declaration import differences
from equiv.runner import run_party
from equiv.verify import PARTIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from equiv.device import Device
    from equiv.pairs import Pair
    from equiv.records import Bits, Case, Difference, Side

CONDITIONS: Mapping[str, str] = {
    "repeat": "the same again",
    "poison": "other bits in all memory that nothing wrote: outputs, gaps, guards, torch's fresh tensors",
    "stream": "on another stream, beside a busy one (GPU)",
    "graph": "captured in a CUDA graph, replayed once and three times on the same contents (GPU)",
    "warps": "warps in other orders, switched at random (emulated)",
    "late": "asynchronous copies land as late as PTX allows (emulated)",
    "ctas": "other numbers of CTAs, where the pair says that they are free",
    "batch": "the first, the middle and the last request as batches of 1, and all of them in reverse",
}
"""Condition -> what is different, in words."""

NEEDS = {"stream": "cuda", "graph": "cuda", "warps": "emulated", "late": "emulated"}
"""Condition -> the kind of device that can do it."""

REPEATS = 2
"""How many further runs, and how many orders of warps, unless another number is asked for."""


def conditions(only: Sequence[str]) -> dict[str, str]:
    """Those of `CONDITIONS` that are wanted; all if `only` is empty."""
    return {name: said for name, said in CONDITIONS.items() if not only or name in only}


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One more run.

    Attributes:
        label: which one, in words.
        found: what it left.
        expected: what it should have left; outputs that are missing here are not compared.
        declared: why the bits may differ, as the pair declares it; nothing: they may not.
        excluded: masks of elements that the contract leaves undefined.
    """

    label: str
    found: Side
    expected: Mapping[str, Bits]
    excluded: Mapping[str, Bits]
    declared: tuple[str, ...] = ()


def matrix(
    pair: Pair,
    case: Case,
    device: Device,
    *,
    repeats: int = REPEATS,
    only: Sequence[str] = (),
    again: str = "",
) -> Verdict:
    """All cells of one case on one device; what stops a party is in them (ERROR, UNSUPPORTED), no exception.

    Args:
        pair: the operator.
        case: one of its cases.
        device: where both parties run.
        repeats: how many further runs, and how many orders of warps.
        only: conditions; all if empty.
        again: the command that repeats this, carried into the verdict.
    """
    started = time.perf_counter()
    lab = _Lab(pair, case, device, repeats)
    cells: list[OutputVerdict] = []
    for party in PARTIES:
        cells += lab.cells(party, conditions(only))
    if not cells:
        asked = [f"{party} {name}" for party in PARTIES for name in only]
        cells = [OutputVerdict(one, Status.UNSUPPORTED, "there is nothing to ask of this case") for one in asked]
    ran = [cell for cell in cells if cell.status is not Status.UNSUPPORTED]
    status = worst([cell.status for cell in ran or cells])
    return Verdict(
        case.name,
        device.name,
        case.seed,
        status,
        "; ".join(f"{cell.output}: {cell.summary.splitlines()[0]}" for cell in cells if cell.status is status),
        outputs=tuple(cells),
        declared=tuple(dict.fromkeys(lab.declared)),
        notes=tuple(dict.fromkeys(lab.notes)),
        seconds=time.perf_counter() - started,
        toolchain=lab.toolchain,
        again=again,
    )


class _Lab:
    """One case, run in one way after the other."""

    def __init__(self, pair: Pair, case: Case, device: Device, repeats: int) -> None:
        self.pair, self.case, self.device, self.repeats = pair, case, device, repeats
        self.inputs = pair.inputs(case)
        self.declared: list[str] = []
        self.notes: list[str] = []
        self.toolchain: dict[str, str] = {}
        self.stopped = ""

    def cells(self, party: str, conditions: Iterable[str]) -> Iterator[OutputVerdict]:
        """A cell for each condition that there is something to ask about; one, `PARTY once`, if the first run fails."""
        try:
            self._usable()
            first = run_party(self.pair, party, self.case, self.inputs, self.device)
        except (DeviceError, UnsupportedError) as error:
            yield self._stop(f"{party} once", error)
            return
        self.toolchain |= first.toolchain
        self.notes += [f"{party}: {note}" for note in first.notes]
        undefined: dict[str, Any] = self.pair.undefined(self.case, self.inputs)
        undefined = {name: np.zeros(bits.shape, np.bool_) for name, bits in first.outputs.items()} | undefined
        if first.faults:
            yield OutputVerdict(f"{party} once", Status.MISMATCH, "\n".join(first.faults), blamed=party)
        for condition in conditions:
            name = f"{party} {condition}"
            try:
                self._usable(condition)
                attempts = list(getattr(self, f"_{condition}")(party, first, undefined))
            except (DeviceError, UnsupportedError) as error:
                yield self._stop(name, error)
            else:
                if attempts:
                    yield self._judged(name, party, attempts)

    def _usable(self, condition: str = "") -> None:
        needs = NEEDS.get(condition, self.device.kind)
        if needs != self.device.kind:
            raise UnsupportedError(f"device:{needs}", f"{condition} on {self.device.name}")
        if self.stopped:
            raise _NotReachedError(f"not reached: {self.stopped} failed, and may have left the GPU unusable")

    def _stop(self, name: str, error: Exception) -> OutputVerdict:
        if isinstance(error, UnsupportedError):
            return OutputVerdict(name, Status.UNSUPPORTED, str(error))
        if isinstance(error, _NotReachedError):
            return OutputVerdict(name, Status.NOT_RUN, str(error))
        self.stopped = name if self.device.kind == "cuda" else ""
        return OutputVerdict(name, Status.ERROR, str(error))

    def _judged(self, name: str, party: str, attempts: Sequence[_Attempt]) -> OutputVerdict:
        """The cell of one condition: the first attempt that is not as expected tells how."""
        wrong = [(attempt, found) for attempt in attempts if (found := self._differences(party, attempt))]
        faults = [f"{attempt.label}: {fault}" for attempt in attempts for fault in attempt.found.faults]
        labels = ", ".join(attempt.label for attempt in attempts)
        if faults:
            return OutputVerdict(name, Status.MISMATCH, "\n".join(faults), blamed=party)
        if not wrong:
            return OutputVerdict(name, Status.IDENTICAL, f"same bits: {labels}")
        undeclared = [(attempt, found) for attempt, found in wrong if not attempt.declared]
        attempt, found = (undeclared or wrong)[0]
        where = ", ".join(f"{one.output} ({one.count} of {one.total})" for one in found)
        count = f"{len(wrong)} of {len(attempts)} differ ({labels})"
        if not undeclared:
            self.declared += [f"{name}: {line}" for line in attempt.declared]
            return OutputVerdict(name, Status.REORDERED, f"{count}, as declared; {attempt.label}: {where}", found)
        return OutputVerdict(name, Status.MISMATCH, f"{count}; {attempt.label}: {where}", found, blamed=party)

    def _differences(self, party: str, attempt: _Attempt) -> tuple[Difference, ...]:
        found = []
        for spec in self.pair.output_specs(self.case):
            if spec.name not in attempt.expected or (party == "oracle" and spec.contract == "candidate"):
                continue
            difference = compare_bits(
                spec,
                "first run",
                attempt.expected[spec.name],
                attempt.label,
                attempt.found.outputs[spec.name],
                excluded=np.asarray(attempt.excluded[spec.name], np.bool_),
            )
            found += [difference] if difference else []
        return tuple(found)

    def _again(self, party: str, first: Side, undefined: Mapping[str, Bits], label: str, **how: object) -> _Attempt:
        side = run_party(self.pair, party, self.case, self.inputs, **{"device": self.device, **how})  # type: ignore[arg-type]
        return _Attempt(label, side, first.outputs, undefined)

    def _repeat(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        for run in range(2, self.repeats + 2):
            yield self._again(party, first, undefined, f"run {run}")

    def _poison(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        for bits in (1, 2):
            seed = self.case.seed + bits & (1 << 64) - 1
            yield self._again(party, first, undefined, f"bits {bits}", poison=seed, around=ways.dirtied(bits))

    def _stream(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        for run in range(1, self.repeats + 1):
            yield self._again(party, first, undefined, f"run {run}", around=ways.beside_a_busy_stream)

    def _graph(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        for times, label in ((1, "one replay"), (3, "the third replay")):
            yield self._again(party, first, undefined, label, around=ways.replayed(times))

    def _warps(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        for seed in range(1, self.repeats + 1):
            yield self._again(party, first, undefined, f"order {seed}", device=self._scheduled(seed=seed))

    def _late(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        yield self._again(party, first, undefined, "in order", device=self._scheduled(completion="late"))
        device = self._scheduled(completion="late", seed=1)
        yield self._again(party, first, undefined, "order 1", device=device)

    def _scheduled(self, **how: object) -> Device:
        from equiv.emulator.device import EmulatedDevice

        return EmulatedDevice(self.device.arch, **how)  # type: ignore[arg-type]

    def _ctas(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        if party != "candidate" or self.pair.recut is None:
            return
        for label, case in self.pair.recut(self.case):
            side = run_party(self.pair, party, case, self.inputs, self.device)
            yield _Attempt(label, side, first.outputs, undefined)

    def _batch(self, party: str, first: Side, undefined: Mapping[str, Bits]) -> Iterator[_Attempt]:
        if self.pair.subset is None:
            raise UnsupportedError("pair:subset", f"{self.pair.name} does not say what one request alone is")
        batch = int(self.case.axes["batch"])
        if batch == 1:
            return
        parts = {f"request {request} alone": [request] for request in (0, batch // 2, batch - 1)}
        parts["in reverse"] = list(range(batch))[::-1]
        for label, requests in parts.items():
            some = self.pair.subset(self.case, self.inputs, requests)
            side = run_party(self.pair, party, some.case, some.inputs, self.device)
            expected, excluded = some.part(first.outputs), some.part(undefined)
            yield _Attempt(label, side, expected, excluded, self._declared(party, side.toolchain, some.case))

    def _declared(self, party: str, toolchain: Mapping[str, str], other: Case) -> tuple[str, ...]:
        """What a party declares differently of another case, a line each."""
        mine, its = (self.pair.declared(party, toolchain, self.device.arch, case) for case in (self.case, other))
        if mine is None or its is None:
            return ()
        lines = differences(
            replace(mine, party=f"{mine.form} in the batch"),
            replace(its, party=f"{its.form} alone"),
            self.pair.ledger() if self.pair.ledger else None,
        )
        return tuple(lines)


class _NotReachedError(DeviceError):
    """An earlier failure forbids going on."""
