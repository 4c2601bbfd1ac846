"""Compiles the C side, the twins of the numerics and the emulator, and keeps the libraries in the cache directory.

A library's name is a hash of its text, of the headers it is built from, and of the compiler with its flags and the
features of this processor, so that it never goes stale. `$CC` names another compiler than gcc (clang works as well),
`$EQUIV_CFLAGS` other flags than those for this processor, `-march=x86-64-v3` for one; results do not depend on either.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from equiv.cache import cache_dir, write_atomic
from equiv.errors import EquivError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FLAGS: Final = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
                "-fno-math-errno", "-fno-trapping-math", "-w")  # fmt: skip
_TUNINGS: Final = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())


COMPILER: Final = "CC"
TUNING: Final = "EQUIV_CFLAGS"


def compiler() -> str:
    """Path of the C compiler: `$CC`, else gcc, else clang.

    Raises:
        UnsupportedError: there is none.
    """
    given = os.environ.get(COMPILER)
    for name in [given] if given else ["gcc", "clang"]:
        found = shutil.which(name)
        if found is not None:
            return found
    missing = f"${COMPILER} is {given!r}, which is not there" if given else "neither gcc nor clang is there"
    raise UnsupportedError("tool:gcc", f"{missing}; the emulator and the C twins are compiled with it")


def tuning() -> tuple[tuple[str, ...], str]:
    """Flags for this processor or `$EQUIV_CFLAGS`, and what the compiler then says about itself and the processor.

    Raises:
        UnsupportedError: there is no compiler, it does not run, or it does not know `$EQUIV_CFLAGS`.
    """
    return _tuned(compiler(), os.environ.get(TUNING))


@cache
def _tuned(command_name: str, given: str | None) -> tuple[tuple[str, ...], str]:
    for flags in _TUNINGS if given is None else (tuple(shlex.split(given)),):
        command = [command_name, *flags, "-dM", "-E", "-x", "c", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return flags, done.stdout
    raise UnsupportedError("tool:gcc", f"{shlex.join(command)} does not run: {done.stderr.strip()}")


def identity() -> str:
    """Everything about the compiler that a library depends on, for the hash in its name.

    Raises:
        UnsupportedError: as `tuning`.
    """
    flags, described = tuning()
    return "\0".join((*FLAGS, *flags, described))


def compile_to(target: Path, text: str, folders: Iterable[Path]) -> None:
    """Compiles C text to a shared library at `target`, which is there whole or not at all.

    Args:
        target: the library; its stem names it in an error.
        text: C.
        folders: whose files the text may include by their names.

    Raises:
        UnsupportedError: there is no compiler.
        EquivError: it rejects the text.
    """
    with tempfile.TemporaryDirectory(prefix="equiv-cc-") as directory:
        source, built = Path(directory, "source.c"), Path(directory, "library.so")
        source.write_text(text)
        includes = [f"-I{folder}" for folder in folders]
        command = [compiler(), *FLAGS, *tuning()[0], *includes, str(source), "-o", str(built), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EquivError(f"{compiler()} failed on the code of {target.stem}:\n{done.stderr[-4000:]}")
        write_atomic(target, built.read_bytes())


def build(name: str, text: str, headers: Sequence[Path]) -> Path:
    """A shared library of some C text, built unless an earlier process has.

    Args:
        name: start of the file's name in the cache.
        text: C, may include the headers by their names.
        headers: what the text includes, directly or not.

    Raises:
        UnsupportedError: a compiler is needed and not there.
        EquivError: it rejects the text.
    """
    digest = hashlib.sha256(f"{identity()}\0{text}".encode())
    for header in headers:
        digest.update(header.read_bytes())
    path = cache_dir() / f"{name}-{digest.hexdigest()[:20]}.so"
    if not path.exists():
        compile_to(path, text, sorted({header.parent for header in headers}))
    return path


def library(name: str, text: str, headers: Sequence[Path]) -> ctypes.CDLL:
    """The same, loaded."""
    return ctypes.CDLL(str(build(name, text, headers)))
