"""The file of a bundle: a zip whose members are stored, of known names and of bounded sizes.

Nothing of a zip is believed: a member of another name (a path out of the folder), a compressed one (it could expand
without end), one that overlaps another or is larger than its kind can be, ends the reading before anything is written.
"""

from __future__ import annotations

import re
import struct
import zipfile
from typing import TYPE_CHECKING

from equiv.cache import write_atomic
from equiv.emulator.content import CHUNK
from equiv.errors import RecordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

INDEX = "bundle.json"
KINDS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"bundle\.json"), 1 << 26),
    (re.compile(r"captures/[A-Za-z0-9][A-Za-z0-9._+#-]{0,199}\.json"), 1 << 26),
    (re.compile(r"images/[0-9a-f]{2}/[0-9a-f]{64}\.json"), 1 << 16),
    (re.compile(r"images/[0-9a-f]{2}/[0-9a-f]{64}\.(cubin|ptx)"), 1 << 26),
    (re.compile(r"blobs/[0-9a-f]{2}/[0-9a-f]{64}\.z"), CHUNK + CHUNK // 16),
)
"""What a member may be called, and how many bytes it may have."""
MEMBERS = 1 << 17
"""Members of a bundle at most: with one image, blobs of 128 GiB."""

_DATE = (1980, 1, 1, 0, 0, 0)
_UNREADABLE = (zipfile.BadZipFile, EOFError, NotImplementedError, OverflowError, RuntimeError, ValueError, struct.error)
"""What `zipfile` raises for a damaged file."""


def pack(folder: Path, path: Path) -> None:
    """Writes a folder as a bundle; equal folders give equal files.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for file in sorted(one for one in folder.rglob("*") if one.is_file()):
                member = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _DATE)
                member.external_attr = 0o644 << 16
                archive.writestr(member, file.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def unpack(path: Path, folder: Path) -> None:
    """Writes the members of a bundle below a folder.

    Raises:
        UsageError: the file cannot be read. RecordError: it is no bundle, or damaged; the member is named.
    """
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check(path, members, size)
            for member in members:
                write_atomic(folder / member.filename, archive.read(member))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise RecordError(f"{path}: not a bundle, or damaged: {error}") from error


def _check(path: Path, members: Iterable[zipfile.ZipInfo], size: int) -> None:
    seen = set[str]()
    total = 0
    for member in members:
        name = member.filename
        limit = next((limit for pattern, limit in KINDS if pattern.fullmatch(name)), None)
        if limit is None:
            raise RecordError(f"{path}: member {name!r:.100}: no part of a bundle is called so")
        if name in seen:
            raise RecordError(f"{path}: member {name!r} is there twice")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise RecordError(f"{path}: member {name!r} is compressed; members of a bundle are stored")
        if member.flag_bits & 1:
            raise RecordError(f"{path}: member {name!r} is encrypted")
        if member.file_size > limit:
            raise RecordError(f"{path}: member {name!r} has {member.file_size} bytes, {limit} at most")
        seen.add(name)
        total += member.file_size
    if total > size or len(seen) > MEMBERS:
        raise RecordError(f"{path}: {len(seen)} members of {total} bytes in a file of {size} bytes: damaged")
    if INDEX not in seen:
        raise RecordError(f"{path}: no {INDEX} in it")
