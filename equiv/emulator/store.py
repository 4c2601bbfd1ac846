"""The images that kernels are launched from, found by the hash of their machine code.

A launch reaches a device as a cubin alone; the emulator needs the PTX it was assembled from. Whoever sees both together
(the Triton driver when a binary is loaded, the CuTe runtime when a function is compiled) puts them into a store, and
the launch finds them by the cubin's sha256, never by a kernel's name: names are cut short and collide. A store on disk
is shared by processes.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from equiv.cache import cache_dir, write_atomic
from equiv.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SCHEMA = 1
"""Version of the files of a store on disk."""

ARCHITECTURES = ("sm_90a", "sm_100a")


@dataclass(frozen=True)
class Image:
    """One compiled module.

    Attributes:
        cubin: the ELF file that a GPU would load.
        ptx: the text that `cubin` was assembled from.
        arch: `sm_90a` or `sm_100a`.
        toolchain: what made it, `{"triton": "3.8.0"}`; the first one wins if two toolchains make the same cubin.
        kernel: its only kernel, or None if the PTX has to tell.
    """

    cubin: bytes = field(repr=False)
    ptx: str = field(repr=False)
    arch: str
    toolchain: Mapping[str, str]
    kernel: str | None = None

    @cached_property
    def digest(self) -> str:
        """sha256 of the cubin, 64 hexadecimal digits: the image's name."""
        return digest(self.cubin)


def digest(data: bytes) -> str:
    """sha256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


class ImageStore:
    """Images by the digest of their cubin, in memory and below a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, Image] = {}

    def put(self, image: Image) -> str:
        """Keeps the image; returns its digest. An image that is already there is left as it is."""
        name = image.digest
        if name in self._known:
            return name
        self._known[name] = image
        if not self._file(name, "json").exists():
            write_atomic(self._file(name, "cubin"), image.cubin)
            write_atomic(self._file(name, "ptx"), image.ptx.encode())
            index = {
                "schema": SCHEMA,
                "arch": image.arch,
                "kernel": image.kernel,
                "ptx": digest(image.ptx.encode()),
                "toolchain": dict(image.toolchain),
            }
            # Last, so that an index always finds its two files.
            write_atomic(self._file(name, "json"), json.dumps(index, indent=1, sort_keys=True).encode())
        return name

    @contextmanager
    def lent(self, image: Image) -> Iterator[None]:
        """Makes an image known for the length of the block, and on disk never.

        For one out of a file that somebody else may have written: kept, its PTX would stand for the cubin of that
        digest in every later run.
        """
        before = self._known.get(image.digest)
        self._known[image.digest] = image
        try:
            yield
        finally:
            if before is None:
                del self._known[image.digest]
            else:
                self._known[image.digest] = before

    def find(self, name: str) -> Image | None:
        """The image of that digest, or None if it was never put here.

        Raises:
            RecordError: its files are damaged or of another version.
        """
        if name not in self._known and self._file(name, "json").exists():
            self._known[name] = self._read(name)
        return self._known.get(name)

    def get(self, name: str) -> Image:
        """The image of that digest.

        Raises:
            RecordError: it is not here, damaged, or of another version.
        """
        image = self.find(name)
        if image is None:
            raise RecordError(f"image {name}: not in {self.directory}")
        return image

    def _file(self, name: str, kind: str) -> Path:
        return self.directory / name[:2] / f"{name}.{kind}"

    def _read(self, name: str) -> Image:
        path = self._file(name, "json")
        try:
            index = json.loads(path.read_bytes())
            cubin = self._file(name, "cubin").read_bytes()
            ptx = self._file(name, "ptx").read_bytes()
        except (ValueError, RecursionError, OSError) as error:
            raise RecordError(f"image {name}: {path} cannot be read: {error}") from error
        if not isinstance(index, dict) or index.get("schema") != SCHEMA:
            found = index.get("schema") if isinstance(index, dict) else index
            raise RecordError(f"image {name}: $.schema is {found!r}, this version reads {SCHEMA}")
        if digest(cubin) != name:
            raise RecordError(f"image {name}: the cubin beside {path} has sha256 {digest(cubin)}")
        if index.get("ptx") != digest(ptx):
            raise RecordError(f"image {name}: $.ptx is {index.get('ptx')!r}, the PTX has sha256 {digest(ptx)}")
        if index.get("arch") not in ARCHITECTURES:
            raise RecordError(f"image {name}: $.arch is {index.get('arch')!r}, known: {', '.join(ARCHITECTURES)}")
        toolchain, kernel = index.get("toolchain"), index.get("kernel")
        if not isinstance(toolchain, dict) or not all(isinstance(value, str) for value in toolchain.values()):
            raise RecordError(f"image {name}: $.toolchain is {toolchain!r}, wanted names to versions")
        if not (kernel is None or isinstance(kernel, str)):
            raise RecordError(f"image {name}: $.kernel is {kernel!r}, wanted a name or null")
        try:
            text = ptx.decode()
        except UnicodeDecodeError as error:
            raise RecordError(f"image {name}: the PTX is no UTF-8 text: {error}") from error
        return Image(cubin, text, index["arch"], toolchain, kernel)


def shared_store() -> ImageStore:
    """The store of this process, in the cache directory."""
    directory = cache_dir() / "images"
    store = _STORES.get(directory)
    if store is None:
        store = _STORES[directory] = ImageStore(directory)
    return store


_STORES: dict[Path, ImageStore] = {}
