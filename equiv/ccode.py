"""Compiles the C twins and keeps the libraries in the cache directory.

A library's name is a hash of its text, of the headers it is built from, and of the compiler with its flags and the
features of this processor, so that it never goes stale.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from equiv.cache import cache_dir, write_atomic
from equiv.errors import EquivError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAGS: Final = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
                "-fno-math-errno", "-fno-trapping-math", "-w")  # fmt: skip
_TUNINGS: Final = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())


@cache
def compiler() -> str:
    """Path of gcc.

    Raises:
        UnsupportedError: there is none.
    """
    found = shutil.which("gcc")
    if found is None:
        raise UnsupportedError("tool:gcc", "the C twins of the numerics are compiled with it")
    return found


@cache
def tuning() -> tuple[tuple[str, ...], str]:
    """Flags for this processor, and what the compiler then says about itself and the processor.

    Raises:
        UnsupportedError: there is no gcc, or it does not run.
    """
    for flags in _TUNINGS:
        command = [compiler(), *flags, "-dM", "-E", "-x", "c", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return flags, done.stdout
    raise UnsupportedError("tool:gcc", f"{compiler()} does not run: {done.stderr.strip()}")


def build(name: str, text: str, headers: Sequence[Path]) -> Path:
    """A shared library of some C text, built unless an earlier process has.

    Args:
        name: start of the file's name in the cache.
        text: C, may include the headers by their names.
        headers: what the text includes, directly or not.

    Raises:
        UnsupportedError: gcc is needed and not there.
        EquivError: gcc rejects the text.
    """
    flags, described = tuning()
    digest = hashlib.sha256("\0".join((*FLAGS, *flags, described, text)).encode())
    for header in headers:
        digest.update(header.read_bytes())
    path = cache_dir() / f"{name}-{digest.hexdigest()[:20]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="equiv-cc-") as directory:
            source, built = Path(directory, "source.c"), Path(directory, "library.so")
            source.write_text(text)
            folders = [f"-I{folder}" for folder in sorted({str(header.parent) for header in headers})]
            command = [compiler(), *FLAGS, *flags, *folders, str(source), "-o", str(built), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise EquivError(f"{compiler()} failed on {name}:\n{done.stderr[-4000:]}")
            write_atomic(path, built.read_bytes())
    return path


def library(name: str, text: str, headers: Sequence[Path]) -> ctypes.CDLL:
    """The same, loaded."""
    return ctypes.CDLL(str(build(name, text, headers)))
