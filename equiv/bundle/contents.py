"""What a bundle says: the case, the tensors as the runner placed them, the captures, the verdict, how it was tried."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv import buffers, stored
from equiv.bundle.archive import INDEX
from equiv.cache import write_atomic
from equiv.compare import PARTIES
from equiv.emulator.content import window
from equiv.emulator.record import RecordFolder
from equiv.errors import RecordError, UsageError
from equiv.fields import Field
from equiv.records import SEVERITY, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from equiv.emulator.content import Content
    from equiv.records import Bits, Case

SCHEMA, VERSION = "equiv.bundle", 1
ROLES = ("input", "output", "inout")
_TENSOR = {"name", "role", "format", "shape", "strides", "sparse", "bits"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that both parties got; `bits` are its logical elements, None for an output."""

    spec: TensorSpec
    bits: Bits | None


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle's index.

    Attributes:
        device: where it was recorded, `emulated:sm_100a`.
        environment: versions of Python and packages.
        tensors: of the case, in the pair's order.
        changed: how the inputs differ from those that the case generates, or "".
        captures: party -> the capture of its launches; a party that was stopped before it began has none.
        status, said: the verdict, and all of it as text.
        runs, equal: how often it was run again in a fresh process before it was offered, and gave the same bits.
    """

    case: Case
    device: str
    environment: Mapping[str, str]
    tensors: tuple[Tensor, ...]
    changed: str
    captures: Mapping[str, str]
    status: str
    said: str
    runs: int = 0
    equal: int = 0


def write(bundle: Bundle, root: Path) -> None:
    """Writes `bundle.json` into a record folder; the bits go into its blobs."""
    blobs = RecordFolder(root).blobs
    index = {
        "schema": SCHEMA,
        "version": VERSION,
        "case": stored.case_index(bundle.case),
        "device": bundle.device,
        "environment": dict(bundle.environment),
        "tensors": [
            {
                "name": one.spec.name,
                "role": one.spec.role,
                "format": one.spec.format,
                "shape": list(one.spec.shape),
                "strides": list(one.spec.strides),
                "sparse": one.spec.sparse,
                "bits": None if one.bits is None else stored.keep(one.bits, blobs),
            }
            for one in bundle.tensors
        ],
        "changed": bundle.changed,
        "captures": dict(bundle.captures),
        "verdict": {"status": bundle.status, "said": bundle.said},
        "reproduced": {"runs": bundle.runs, "equal": bundle.equal},
    }
    write_atomic(root / INDEX, json.dumps(index, indent=1, allow_nan=False).encode())


def read(root: Path) -> Bundle:
    """Reads an unpacked bundle, every field and all bits of tensors checked; executes nothing.

    Raises:
        RecordError: file and field are named.
    """
    top = Field.read(root / INDEX)
    top.version(SCHEMA, VERSION)
    top.keys(
        {"schema", "version", "case", "device", "environment", "tensors", "changed", "captures", "verdict"}
        | {"reproduced"}
    )
    folder = RecordFolder(root)
    verdict, reproduced = top["verdict"], top["reproduced"]
    verdict.keys({"status", "said"})
    reproduced.keys({"runs", "equal"})
    runs = reproduced["runs"].integer(0, 1 << 20)
    captures = {name: capture.text(stored.NAME) for name, capture in top["captures"].entries()}
    if not set(captures) <= set(PARTIES):
        raise top["captures"].wrong(f"captures of {' and '.join(PARTIES)}")
    bundle = Bundle(
        stored.read_case(top["case"]),
        top["device"].text(),
        stored.texts(top["environment"]),
        tuple(_tensor(one, folder) for one in top["tensors"].items()),
        top["changed"].text(),
        captures,
        verdict["status"].choice(tuple(map(str, SEVERITY))),
        verdict["said"].text(),
        runs,
        reproduced["equal"].integer(0, runs),
    )
    _check_inputs(bundle, folder)
    return bundle


def _tensor(one: Field, folder: RecordFolder) -> Tensor:
    one.keys(_TENSOR)
    extents = [[entry.integer(0, 1 << 48) for entry in one[key].items()] for key in ("shape", "strides")]
    spec = TensorSpec(
        one["name"].text(stored.NAME),
        one["role"].choice(ROLES),
        one["format"].choice(tuple(buffers.STORAGE)),
        tuple(extents[0]),
        tuple(extents[1]),
        one["sparse"].flag(),
    )
    try:
        buffers.span(spec)
    except UsageError as error:
        raise RecordError(f"{one.file}: {one.path}: {error}") from error
    if one["bits"].data is None:
        return Tensor(spec, None)
    bits = stored.array(one["bits"], folder.blobs)
    if (bits.shape, bits.dtype) != (spec.shape, np.dtype(buffers.storage(spec).bits)):
        raise one["bits"].wrong(f"{buffers.storage(spec).bits} of shape {spec.shape}")
    return Tensor(spec, bits)


def _check_inputs(bundle: Bundle, folder: RecordFolder) -> None:
    """Makes sure that the launches start from these inputs: what a kernel first finds in an input are its bits."""
    inputs = {one.spec.name: one for one in bundle.tensors if one.spec.role == "input" and one.bits is not None}
    for name in bundle.captures.values():
        found: dict[str, Content] = {}
        for launch in folder.load(name).launches:
            for buffer in launch.buffers:
                found.setdefault(buffer.name, buffer.before)
        for tensor in sorted(found.keys() & inputs.keys()):
            elements = _elements(inputs[tensor].spec, found[tensor], folder)
            if elements is None or not np.array_equal(elements, inputs[tensor].bits):  # type: ignore[arg-type]
                raise RecordError(f"{folder.root}: capture {name} starts with other bits of {tensor} than $.tensors")


def _elements(spec: TensorSpec, content: Content, folder: RecordFolder) -> Bits | None:
    """The elements of a tensor in the bytes of its buffer, None if the buffer has another size."""
    if content.nbytes != buffers.span(spec):
        return None
    size = buffers.storage(spec).size
    try:
        flat = window(content, 0, content.nbytes, folder.blobs).view(buffers.storage(spec).bits)
    except MemoryError as error:
        raise RecordError(f"{folder.root}: no memory for the {content.nbytes} bytes of {spec.name}") from error
    strides = tuple(stride * size for stride in spec.strides)
    return np.lib.stride_tricks.as_strided(flat, spec.shape, strides)
