"""What both parties left behind on one machine, as data: made here, compared anywhere.

A folder holds `cases/<pair>.<id>.<seed>.json`, one file a case, and `blobs/`, the bits of all of them by their digest.
The JSON states the case with all its axes, the device, the versions, the digests of the inputs, and of each party its
logical outputs or what stopped it. Reading one executes nothing; whatever is wrong with it is named.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv import stored
from equiv.cache import write_atomic
from equiv.compare import CONTRACTS, INTEGERS, PARTIES
from equiv.emulator.content import BlobStore
from equiv.errors import DeviceError, RecordError, UnsupportedError, UsageError
from equiv.fields import Field
from equiv.report.environment import versions
from equiv.rounding.formats import FORMATS
from equiv.runner import run_party

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from equiv.device import Device
    from equiv.pairs import Pair
    from equiv.records import Bits, Case, OutputSpec

SCHEMA, VERSION = "equiv.dump", 1
_FIELDS = {"schema", "version", "case", "device", "arch", "environment", "inputs", "outputs", "undefined", "parties"}
_PARTY = {"stopped", "toolchain", "faults", "outputs"}


@dataclass(frozen=True, slots=True)
class Left:
    """What one party left behind.

    Attributes:
        stopped: what stopped it, or ""; outputs are empty then.
        unsupported: it was stopped because this machine lacks something.
        faults: bytes it changed though it must not, in words.
    """

    stopped: str = ""
    toolchain: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    outputs: Mapping[str, Bits] = field(default_factory=dict)
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class Dumped:
    """One case as dumped.

    Attributes:
        inputs: tensor name -> sha256 of its bits as generated.
        specs: logical outputs by name.
        undefined: output -> mask of elements that the contract leaves undefined.
        parties: party -> what it left.
    """

    case: Case
    device: str
    arch: str
    environment: Mapping[str, str]
    inputs: Mapping[str, str]
    specs: Mapping[str, OutputSpec]
    undefined: Mapping[str, Bits]
    parties: Mapping[str, Left]


def run(pair: Pair, case: Case, inputs: Mapping[str, Bits], device: Device, *, record: Path | None = None) -> Dumped:
    """Runs both parties on one case; what stops one is part of the result.

    Args:
        pair: the operator.
        case: one of its cases.
        inputs: logical bits of every `input` and `inout` tensor.
        device: where both run.
        record: the folder that gets the launch records, or None.
    """
    parties = {}
    specs = {spec.name: spec for spec in pair.output_specs(case)}
    for name in PARTIES:
        try:
            side = run_party(pair, name, case, inputs, device, record=record)
        except (DeviceError, UnsupportedError) as error:
            parties[name] = Left(str(error), unsupported=isinstance(error, UnsupportedError))
        else:
            compared = {output: bits for output, bits in side.outputs.items() if output in specs}
            parties[name] = Left("", side.toolchain, side.faults, compared)
    return Dumped(
        case,
        device.name,
        device.arch,
        versions(),
        {name: stored.digest(bits) for name, bits in inputs.items()},
        specs,
        {name: np.asarray(mask).astype(np.uint8) for name, mask in pair.undefined(case, inputs).items()},
        parties,
    )


def index(dumped: Dumped, blobs: BlobStore) -> dict[str, Any]:
    """A dumped case as JSON; its bits go into `blobs`."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "case": stored.case_index(dumped.case),
        "device": dumped.device,
        "arch": dumped.arch,
        "environment": dict(dumped.environment),
        "inputs": dict(dumped.inputs),
        "outputs": [stored.spec_index(spec) for spec in dumped.specs.values()],
        "undefined": {name: stored.keep(mask, blobs) for name, mask in dumped.undefined.items()},
        "parties": {
            name: {
                "stopped": left.stopped,
                "toolchain": dict(left.toolchain),
                "faults": list(left.faults),
                "outputs": {output: stored.keep(bits, blobs) for output, bits in left.outputs.items()},
            }
            for name, left in dumped.parties.items()
        },
    }


def read(top: Field, blobs: BlobStore) -> Dumped:
    """The dumped case that `index` wrote.

    Raises:
        RecordError: a field is wrong, or bits are missing or damaged; file and field are named.
    """
    top.version(SCHEMA, VERSION)
    top.keys(_FIELDS)
    specs = [stored.read_spec(one, CONTRACTS, (*FORMATS, *INTEGERS)) for one in top["outputs"].items()]
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) != len(specs):
        raise top["outputs"].wrong("outputs of different names")
    undefined = {name: _bits(one, blobs, by_name.get(name), "uint8") for name, one in top["undefined"].entries()}
    top["parties"].keys(set(PARTIES))
    parties = {name: _party(one, blobs, by_name) for name, one in top["parties"].entries()}
    for name, mask in undefined.items():
        for party, left in parties.items():
            if not left.stopped and left.outputs[name].shape != mask.shape:
                shape = top["undefined"][name]["shape"]
                raise shape.wrong(f"{list(left.outputs[name].shape)}, as {name} of the {party}")
    return Dumped(
        stored.read_case(top["case"]),
        top["device"].text(),
        top["arch"].text(),
        stored.texts(top["environment"]),
        stored.texts(top["inputs"]),
        by_name,
        undefined,
        parties,
    )


def _party(one: Field, blobs: BlobStore, specs: Mapping[str, OutputSpec]) -> Left:
    one.keys(_PARTY)
    stopped, outputs = one["stopped"].text(), one["outputs"]
    if not stopped:
        outputs.keys(set(specs))
    elif outputs.data != {}:
        raise outputs.wrong("{}, as the party was stopped")
    return Left(
        stopped,
        stored.texts(one["toolchain"]),
        tuple(fault.text() for fault in one["faults"].items()),
        {name: _bits(found, blobs, specs[name]) for name, found in outputs.entries()},
    )


def _bits(one: Field, blobs: BlobStore, spec: OutputSpec | None, dtype: str = "") -> Bits:
    """An array of an output, of the type and dimensions that its spec says."""
    if spec is None:
        raise one.wrong("nothing: no output has this name")
    found = stored.array(one, blobs)
    wanted = dtype or str(
        FORMATS[spec.format].dtype if spec.format in FORMATS else np.dtype(f"u{INTEGERS[spec.format][1:]}")
    )
    if found.dtype != np.dtype(wanted):
        raise one["dtype"].wrong(wanted)
    if found.ndim != len(spec.dims):
        raise one["shape"].wrong(f"{len(spec.dims)} dimensions: {', '.join(spec.dims)}")
    return found


class DumpFolder:
    """A folder of dumped cases."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = BlobStore(root / "blobs")

    def vacant(self, case: Case) -> Path:
        """Where a case goes.

        Raises:
            UsageError: it is here already.
        """
        path = self.root / "cases" / f"{case.pair}.{case.id}.{case.seed}.json"
        if path.exists():
            raise UsageError(f"{path}: is there already: name another folder, or delete this one")
        return path

    def save(self, dumped: Dumped) -> Path:
        """Writes a case; the JSON comes last, so that it always finds its bits.

        Raises:
            UsageError: it is here already, or the folder cannot be written.
        """
        path = self.vacant(dumped.case)
        try:
            write_atomic(path, json.dumps(index(dumped, self._blobs), indent=1, allow_nan=False).encode())
        except OSError as error:
            raise UsageError(f"{self.root}: cannot be written: {error.strerror}") from error
        return path

    def files(self) -> dict[tuple[str, int], Path]:
        """(case name, seed) -> file, of all cases here; only their JSON is looked at.

        Raises:
            UsageError: there are none. RecordError: one is damaged, or two state the same case.
        """
        found: dict[tuple[str, int], Path] = {}
        for path in sorted((self.root / "cases").glob("*.json")):
            top = Field.read(path)
            top.version(SCHEMA, VERSION)
            top.keys(_FIELDS)
            case = stored.read_case(top["case"])
            if (case.name, case.seed) in found:
                raise RecordError(
                    f"{path}: $.case is {case.name} seed {case.seed}, as in {found[case.name, case.seed]}"
                )
            found[case.name, case.seed] = path
        if not found:
            raise UsageError(f"{self.root}: no dump: cases/*.json is missing")
        return found

    def load(self, path: Path) -> Dumped:
        """The case in one of its files, every bit checked against its digest; raises RecordError."""
        return read(Field.read(path), self._blobs)
