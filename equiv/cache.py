"""The directory for files that can be rebuilt at any time: compiled handlers, vouching results, inputs of a suite.

Several processes (pytest workers, parallel runs) share it. A file appears in it whole or not at all, because it is
written under another name and renamed; nobody takes a lock, the last of two equal writers wins.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from equiv.errors import UsageError

VARIABLE = "EQUIV_CACHE_DIR"
HINT = f"set {VARIABLE} to a folder that can be written"


def cache_dir() -> Path:
    """The cache directory, made if it is not there: `$EQUIV_CACHE_DIR`, or `~/.cache/equiv`.

    Raises:
        UsageError: it cannot be made or written.
    """
    given = os.environ.get(VARIABLE)
    directory = Path(given) if given else Path.home() / ".cache" / "equiv"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cache {directory}: {error.strerror}: {HINT}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"cache {directory} cannot be written: {HINT}")
    return directory


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that no reader, in whatever process, ever sees a part of it.

    The parent directories are made. A writer that dies leaves only a file whose name starts with a dot.

    Raises:
        OSError: the file cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
