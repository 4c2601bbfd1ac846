"""Launch records: what is needed to run a kernel launch again, here or on a GPU, and to compare what it leaves behind.

A folder holds `captures/<name>.json` (one sequence of launches each), `images/` (cubin and PTX, see `store`) and
`blobs/` (buffer contents, see `content`), the latter two shared by all captures. Records are data: reading one executes
nothing, checks every field, and says which one is wrong.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equiv.cache import write_atomic
from equiv.emulator.content import CHUNK, BlobStore, Content, Extent
from equiv.emulator.launch import LIMIT_BLOCK, LIMIT_CLUSTER, LIMIT_GRID, LIMIT_PARAMS, LIMIT_SHARED, Dim
from equiv.emulator.store import ARCHITECTURES, ImageStore
from equiv.errors import RecordError
from equiv.fields import Field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = 1
"""Version of the capture files; another one is not read."""

LARGEST_BUFFER = 1 << 40
ATTRIBUTES = ("cooperative", "priority", "programmatic_serialization")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+#-]{0,199}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """The 8 bytes at `offset` of the parameter block are the address of byte `displacement` of `buffer`."""

    offset: int
    buffer: str
    displacement: int


@dataclass(frozen=True, slots=True)
class BufferRecord:
    """One buffer that a launch could reach.

    Attributes:
        writable: the kernel may write it.
        before, after: its bytes; `after` is None if the launch failed.
    """

    name: str
    writable: bool
    before: Content
    after: Content | None


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch; dimensions as in `launch.Launch`, `params` as on the recording machine, `error` what stopped it."""

    image: str
    kernel: str
    arch: str
    toolchain: Mapping[str, str]
    grid: Dim
    block: Dim
    cluster: Dim
    dynamic_shared: int
    attributes: Mapping[str, int]
    params: bytes
    pointers: tuple[Pointer, ...]
    buffers: tuple[BufferRecord, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """A sequence of launches on one device; buffers of one name are one piece of memory."""

    name: str
    device: str
    launches: tuple[LaunchRecord, ...]


class RecordFolder:
    """A folder of captures with their images and blobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images = ImageStore(root / "images")
        self.blobs = BlobStore(root / "blobs")

    def names(self) -> tuple[str, ...]:
        """Names of the captures, sorted.

        Raises:
            RecordError: the folder holds none.
        """
        found = tuple(sorted(path.stem for path in (self.root / "captures").glob("*.json")))
        if not found:
            raise RecordError(f"{self.root}: no captures/*.json")
        return found

    def vacant(self, name: str) -> Path:
        """Where a new capture of that name goes.

        Raises:
            RecordError: the name cannot be a file name, or is taken.
        """
        if not NAME.fullmatch(name):
            raise RecordError(f"capture name {name!r}: wanted letters, digits and . _ + # - (at most 200)")
        path = self.root / "captures" / f"{name}.json"
        if path.exists():
            raise RecordError(f"{path} exists already")
        return path

    def save(self, capture: Capture) -> Path:
        """Writes the index of a capture whose blobs and images are here already.

        Raises:
            RecordError: the name cannot be a file name, or is taken.
        """
        path = self.vacant(capture.name)
        index = {
            "schema": SCHEMA,
            "device": capture.device,
            "launches": [_launch_index(launch) for launch in capture.launches],
        }
        write_atomic(path, json.dumps(index, indent=1).encode())
        return path

    def load(self, name: str) -> Capture:
        """The capture of that name, every field checked; blobs and images are checked when they are read.

        Raises:
            RecordError: it is not here, damaged, or of another version; file and field are named.
        """
        path = self.root / "captures" / f"{name}.json"
        top = Field.read(path)
        top.keys({"schema", "device", "launches"})
        if top["schema"].data != SCHEMA:
            raise top["schema"].wrong(f"{SCHEMA}, the version this program reads")
        launches = tuple(_read_launch(one) for one in top["launches"].items())
        return Capture(name, top["device"].text(), launches)


def _launch_index(launch: LaunchRecord) -> dict[str, Any]:
    return {
        "image": launch.image,
        "kernel": launch.kernel,
        "arch": launch.arch,
        "toolchain": dict(launch.toolchain),
        "grid": launch.grid,
        "block": launch.block,
        "cluster": launch.cluster,
        "dynamic_shared": launch.dynamic_shared,
        "attributes": dict(launch.attributes),
        "params": launch.params.hex(),
        "pointers": [[one.offset, one.buffer, one.displacement] for one in launch.pointers],
        "buffers": [
            {
                "name": one.name,
                "nbytes": one.before.nbytes,
                "writable": one.writable,
                "before": content_index(one.before),
                "after": None if one.after is None else content_index(one.after),
            }
            for one in launch.buffers
        ],
        "error": launch.error,
    }


def content_index(content: Content) -> dict[str, Any]:
    """A content as a JSON object: its digest and extents."""
    return {"sha256": content.digest, "extents": [[one.offset, one.size, one.blob] for one in content.extents]}


def _dims(field: Field, limits: Dim) -> Dim:
    first, second, third = (one.integer(1, limit) for one, limit in zip(field.items(3), limits, strict=True))
    return first, second, third


def _read_launch(launch: Field) -> LaunchRecord:
    launch.keys(set(LaunchRecord.__slots__))
    params = _read_params(launch["params"])
    toolchain, attributes = launch["toolchain"], launch["attributes"]
    if not isinstance(toolchain.data, dict):
        raise toolchain.wrong("an object of names and versions")
    if not isinstance(attributes.data, dict) or not set(attributes.data) <= set(ATTRIBUTES):
        raise attributes.wrong(f"an object with {', '.join(ATTRIBUTES)}")
    buffers = tuple(_read_buffer(one) for one in launch["buffers"].items())
    sizes = {one.name: one.before.nbytes for one in buffers}
    if len(sizes) != len(buffers):
        raise launch["buffers"].wrong("buffers of different names")
    return LaunchRecord(
        image=launch["image"].text(DIGEST),
        kernel=launch["kernel"].text(),
        arch=launch["arch"].choice(ARCHITECTURES),
        toolchain={name: toolchain[name].text() for name in toolchain.data},
        grid=_dims(launch["grid"], LIMIT_GRID),
        block=_dims(launch["block"], LIMIT_BLOCK),
        cluster=_dims(launch["cluster"], (LIMIT_CLUSTER,) * 3),
        dynamic_shared=launch["dynamic_shared"].integer(0, LIMIT_SHARED),
        attributes={name: attributes[name].integer(-(2**31), 2**31 - 1) for name in attributes.data},
        params=params,
        pointers=tuple(_read_pointer(one, len(params), sizes) for one in launch["pointers"].items()),
        buffers=buffers,
        error=None if launch["error"].data is None else launch["error"].text(),
    )


def _read_params(field: Field) -> bytes:
    text = field.text(re.compile(r"([0-9a-f]{2})*"))
    if len(text) > 2 * LIMIT_PARAMS:
        raise field.wrong(f"at most {LIMIT_PARAMS} bytes in hexadecimal")
    return bytes.fromhex(text)


def _read_pointer(field: Field, params: int, sizes: Mapping[str, int]) -> Pointer:
    offset, buffer, displacement = field.items(3)
    name = buffer.text()
    if name not in sizes:
        raise buffer.wrong(f"a buffer of this launch: {', '.join(sizes) or 'it has none'}")
    place = offset.integer(0, params - 8)
    if place % 8:
        raise offset.wrong("a multiple of 8")
    return Pointer(place, name, displacement.integer(0, sizes[name] - 1))


def _read_buffer(field: Field) -> BufferRecord:
    field.keys({"name", "nbytes", "writable", "before", "after"})
    nbytes = field["nbytes"].integer(1, LARGEST_BUFFER)
    after = None if field["after"].data is None else read_content(field["after"], nbytes)
    return BufferRecord(
        field["name"].text(NAME), field["writable"].flag(), read_content(field["before"], nbytes), after
    )


def read_content(field: Field, nbytes: int) -> Content:
    """The content of `nbytes` that `content_index` wrote; its blobs are checked when they are read.

    Raises:
        RecordError: a field is wrong, or the digest is not that of the extents.
    """
    field.keys({"sha256", "extents"})
    extents = []
    reached = 0
    for one in field["extents"].items():
        offset, size, blob = one.items(3)
        start = offset.integer(reached, nbytes - 1)
        extents.append(Extent(start, size.integer(1, min(CHUNK, nbytes - start)), blob.text(DIGEST)))
        reached = start + extents[-1].size
    content = Content(nbytes, tuple(extents))
    if field["sha256"].text(DIGEST) != content.digest:
        raise field["sha256"].wrong(f"{content.digest}, the digest of its extents")
    return content
