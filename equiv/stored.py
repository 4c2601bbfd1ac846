"""Arrays, cases and output specs as JSON beside a blob store: what dumps and bundles are made of.

An array lies in the store as a `Content`, cut into blobs of at most 1 MiB that are named by their sha256; the JSON
holds its type, shape and digests. Reading checks every field, and never takes more memory than `LARGEST` for one array.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.emulator.content import Content, snapshot, window
from equiv.emulator.record import content_index, read_content
from equiv.records import Case, OutputSpec

if TYPE_CHECKING:
    from equiv.emulator.content import BlobStore
    from equiv.fields import Field
    from equiv.records import AxisValue, Bits

LARGEST = 1 << 32
"""Bytes of the largest array that is read."""
TYPES = ("uint8", "uint16", "uint32", "uint64")
DIMENSIONS = 8
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+#-]{0,199}")
"""What a pair, a case, a tensor, an output or a format may be called in a file."""

_CONTENT = ("sha256", "extents")
_CASE = {"pair", "id", "why", "seed", "suites", "axes", "regimes"}
_SPEC = {"name", "format", "dims", "contract", "promise", "copied"}


def keep(array: Bits, blobs: BlobStore) -> dict[str, Any]:
    """Puts the bits of an array into the store; returns what `array` reads it back from."""
    dense = np.ascontiguousarray(array)
    content = snapshot(int(dense.ctypes.data), dense.nbytes, blobs) if dense.nbytes else Content(0, ())
    return {"dtype": str(dense.dtype), "shape": list(array.shape)} | content_index(content)


def array(field: Field, blobs: BlobStore) -> Bits:
    """The array that `keep` stored.

    Raises:
        RecordError: a field is wrong, the array is larger than `LARGEST`, or a blob is missing or damaged.
    """
    field.keys({"dtype", "shape", "sha256", "extents"})
    dtype = np.dtype(field["dtype"].choice(TYPES))
    shape = tuple(one.integer(0, LARGEST) for one in field["shape"].items())
    nbytes = math.prod(shape) * dtype.itemsize
    if len(shape) > DIMENSIONS or math.prod(max(extent, 1) for extent in shape) * dtype.itemsize > LARGEST:
        raise field["shape"].wrong(f"at most {DIMENSIONS} dimensions and {LARGEST} bytes in all")
    content = read_content(replace(field, data={key: field.data[key] for key in _CONTENT}), nbytes)
    return window(content, 0, nbytes, blobs).view(dtype).reshape(shape)


def digest(array: Bits) -> str:
    """sha256 over type, shape and bits."""
    head = f"{array.dtype} {list(array.shape)}\n".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def case_index(case: Case) -> dict[str, Any]:
    """A case as JSON; its origin, a path of one machine, stays behind."""
    return {
        "pair": case.pair,
        "id": case.id,
        "why": case.why,
        "seed": case.seed,
        "suites": list(case.suites),
        "axes": dict(case.axes),
        "regimes": dict(case.regimes),
    }


def read_case(field: Field) -> Case:
    """The case that `case_index` wrote; whether its axes mean anything is for its pair to say."""
    field.keys(_CASE)
    return Case(
        field["pair"].text(NAME),
        field["id"].text(NAME),
        field["why"].text(),
        field["seed"].integer(0, (1 << 64) - 1),
        tuple(one.text() for one in field["suites"].items()),
        {name: _axis(value) for name, value in field["axes"].entries()},
        {name: value.text() for name, value in field["regimes"].entries()},
    )


def _axis(field: Field) -> AxisValue:
    value = field.data
    if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise field.wrong("an integer, a finite number, a text, true or false")


def spec_index(spec: OutputSpec) -> dict[str, Any]:
    """An output spec as JSON."""
    return {
        "name": spec.name,
        "format": spec.format,
        "dims": list(spec.dims),
        "contract": spec.contract,
        "promise": spec.promise,
        "copied": spec.copied,
    }


def read_spec(field: Field, contracts: tuple[str, ...], formats: tuple[str, ...]) -> OutputSpec:
    """The output spec that `spec_index` wrote, of a known contract and format."""
    field.keys(_SPEC)
    return OutputSpec(
        field["name"].text(NAME),
        field["format"].choice(formats),
        tuple(one.text() for one in field["dims"].items()),
        field["contract"].choice(contracts),
        field["promise"].text(),
        field["copied"].flag(),
    )


def texts(field: Field) -> dict[str, str]:
    """An object of names and texts."""
    return {name: value.text() for name, value in field.entries()}
