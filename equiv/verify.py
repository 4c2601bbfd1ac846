"""The one straight line: a case on a device becomes a verdict.

inputs -> oracle and candidate, each in guarded memory -> the model under each one's declaration -> the envelope of
what they declare differently -> a judgement of each logical output. Numbers are judged in `equiv.compare`, statuses
ordered in `equiv.records`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from equiv.compare import judge
from equiv.errors import DeviceError, UnsupportedError
from equiv.records import OutputVerdict, Side, Status, Verdict, worst
from equiv.rounding.declaration import differences
from equiv.rounding.scales import remarks
from equiv.runner import able, run_party

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from equiv.device import Device
    from equiv.pairs import Pair
    from equiv.records import Case

PARTIES = ("oracle", "candidate")


def verify(pair: Pair, case: Case, device: Device, *, again: str = "", record: Path | None = None) -> Verdict:
    """The verdict on one case on one device; what stops a party is a verdict too (ERROR, UNSUPPORTED), no exception.

    Args:
        pair: the operator.
        case: one of its cases.
        device: where both parties run.
        again: the command that repeats this case, carried into the verdict.
        record: the folder that gets the launch records of both parties, or None.
    """
    started = time.perf_counter()

    def verdict(status: Status, summary: str, **found: object) -> Verdict:
        seconds = time.perf_counter() - started
        return Verdict(case.name, device.name, case.seed, status, summary, seconds=seconds, again=again, **found)  # type: ignore[arg-type]

    try:
        for name in PARTIES:  # before one of them runs in vain
            able(pair, name, case, device)
        inputs = pair.inputs(case)
        sides = {name: run_party(pair, name, case, inputs, device, record=record) for name in PARTIES}
    except UnsupportedError as error:
        return verdict(Status.UNSUPPORTED, str(error))
    except DeviceError as error:
        return verdict(Status.ERROR, str(error))
    declarations = {name: pair.declared(name, side.toolchain, device.arch, case) for name, side in sides.items()}
    models = {
        name: None if declaration is None else pair.model(case, inputs, declaration)
        for name, declaration in declarations.items()
    }
    envelope = pair.envelope(case, inputs, tuple(declarations.values()))
    fits = {name: envelope.judge(side.outputs) for name, side in sides.items()}
    ledger = pair.ledger() if pair.ledger else None
    known = None not in declarations.values()
    declared = differences(declarations["oracle"], declarations["candidate"], ledger) if known else ()
    undefined = pair.undefined(case, inputs)
    outputs = [
        judge(
            spec,
            {name: side.outputs[spec.name] for name, side in sides.items()},
            {name: None if model is None else model[spec.name] for name, model in models.items()},
            {name: fit[spec.name] for name, fit in fits.items() if spec.name in fit} or None,
            undefined.get(spec.name),
            declared=declared,
            place=pair.place and partial(pair.place, case, inputs, spec.name),
            shared=pair.shared and partial(pair.shared, case, inputs, spec.name),
        )
        for spec in pair.output_specs(case)
    ]
    outputs += [_memory(name, side) for name, side in sides.items() if side.faults]
    status = worst([output.status for output in outputs])
    pairings = [
        f"{name}: {said}"
        for name, model in models.items()
        if status is Status.MISMATCH and model is not None and pair.quantised
        for said in remarks(pair.quantised(case, inputs, declarations[name]), sides[name].outputs, model)
    ]
    return verdict(
        status,
        "; ".join(
            f"{output.output}: {output.summary.splitlines()[0]}" for output in outputs if output.status == status
        ),
        outputs=tuple(outputs),
        declared=declared,
        notes=(
            *_notes(sides, declarations),
            *pairings,
            *(f"candidate: {said}" for said in pair.candidate.remarks(case)),
        ),
        launch_seconds=sum(side.seconds for side in sides.values()),
        warp_instructions=sum(side.warp_instructions for side in sides.values()),
        toolchain={package: found for side in sides.values() for package, found in side.toolchain.items()},
    )


def _notes(sides: Mapping[str, Side], declarations: Mapping[str, Any]) -> Iterator[str]:
    for name, side in sides.items():
        if declarations[name] is None:
            used = ", ".join(f"{package} {version}" for package, version in side.toolchain.items())
            yield f"{name}: nothing is declared for {used}; judged by the envelope only"
        yield from (f"{name}: {note}" for note in side.notes)


def _memory(party: str, side: Side) -> OutputVerdict:
    """The verdict on the bytes a party changed though it must not."""
    return OutputVerdict(f"memory of {party}", Status.MISMATCH, "\n".join(side.faults), blamed=party)
