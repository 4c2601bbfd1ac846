"""Builds the C side: the scheduler once, handlers in chunks as kernels need them, both kept in the cache directory.

A handler's name is a hash of its text, so a chunk never goes stale: changed text is another name. The directory's name
is a hash of the shared headers, the compiler, its flags and the features of this processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from equiv.cache import cache_dir, write_atomic
from equiv.errors import EmulatorError, UnsupportedError
from equiv.rounding import special

if TYPE_CHECKING:
    from collections.abc import Iterable

    from equiv.emulator.shapes import Shape

_SOURCES = Path(__file__).parent / "csrc"
_NUMERICS = Path(__file__).parents[1] / "rounding" / "csrc"
_HEADERS = ("runtime.h", "memory.h", "sync.h", "half.h", "tensormap.h", "mbarrier.h", "async.h", "bulk.h",
            "matrix_api.h", "fragments.h", "checks.h", "observer.h")  # fmt: skip
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
          "-fno-math-errno", "-fno-trapping-math", "-w")  # fmt: skip
INCLUDES = (_SOURCES, _NUMERICS)
WARNINGS_OFF = ("-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-parameter", "-Wno-sign-compare")
_CHUNK = 200
_LOCK = threading.Lock()


@cache
def compiler() -> str:
    """Path of gcc.

    Raises:
        UnsupportedError: there is none.
    """
    found = shutil.which("gcc")
    if found is None:
        raise UnsupportedError("tool:gcc", "the emulator compiles its instruction handlers with it")
    return found


@cache
def _tuning() -> tuple[tuple[str, ...], str]:
    """Flags for this processor, and what the compiler then says about itself and the processor."""
    for flags in (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ()):
        command = [compiler(), *flags, "-dM", "-E", "-x", "c", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return flags, done.stdout
    raise UnsupportedError("tool:gcc", f"{compiler()} does not run: {done.stderr.strip()}")


@cache
def build_directory() -> Path:
    """Where this machine's compiled handlers are kept."""
    flags, described = _tuning()
    digest = hashlib.sha256(" ".join((*_FLAGS, *flags)).encode() + described.encode())
    own = (*_HEADERS, "request.h", "tensor_state.h", "clocks.h", "race.h", "engine.c")
    for path in (*(_SOURCES / name for name in own), *special.SOURCES):
        digest.update(path.read_bytes())
    return cache_dir() / f"emulator-{digest.hexdigest()[:16]}"


def _compile(source: str, target: Path) -> None:
    """Compile C text to a shared library at `target`, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="equiv-cc-") as directory:
        text, library = Path(directory, "source.c"), Path(directory, "library.so")
        text.write_text(source)
        command = [
            compiler(),
            *_FLAGS,
            *_tuning()[0],
            f"-I{_SOURCES}",
            f"-I{_NUMERICS}",
            str(text),
            "-o",
            str(library),
            "-lm",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EmulatorError(f"{compiler()} failed on generated code:\n{done.stderr[-4000:]}")
        write_atomic(target, library.read_bytes())


@cache
def scheduler() -> ctypes.CDLL:
    """The library with `equiv_launch`, built if need be."""
    path = build_directory() / "engine.so"
    if not path.exists():
        _compile('#include "engine.c"\n', path)
    return ctypes.CDLL(str(path))


class _Handlers:
    """Addresses of the handlers loaded in this process, and the index of those on disk."""

    def __init__(self) -> None:
        self.loaded: dict[str, int] = {}
        self.index: dict[str, Path] = {}
        self.indexed: set[Path] = set()

    def look(self) -> None:
        """Read the name lists of chunks that appeared since; a list is written after its library."""
        for names in build_directory().glob("handlers-*.names"):
            if names not in self.indexed:
                self.indexed.add(names)
                for name in names.read_text().split():
                    self.index.setdefault(name, names.with_suffix(".so"))

    def load(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        names = path.with_suffix(".names").read_text().split()
        table = (ctypes.c_void_p * len(names)).in_dll(library, "equiv_handlers")
        for name, address in zip(names, table, strict=True):
            self.loaded.setdefault(name, address)

    def build(self, shapes: list[Shape]) -> None:
        """Compile handlers in chunks."""
        for start in range(0, len(shapes), _CHUNK):
            chunk = shapes[start : start + _CHUNK]
            names = [shape.name for shape in chunk]
            path = build_directory() / f"handlers-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:20]}.so"
            _compile(chunk_source(chunk), path)
            write_atomic(path.with_suffix(".names"), " ".join(names).encode())


_HANDLERS = _Handlers()


def handlers(shapes: Iterable[Shape]) -> dict[str, int]:
    """Addresses of the handlers of these shapes by their names; compiles those that no process has compiled before.

    Raises:
        UnsupportedError: gcc is needed and not there.
        EmulatorError: gcc rejects the generated code (a fault of the instruction table).
    """
    wanted = {shape.name: shape for shape in shapes}
    with _LOCK:
        missing = [name for name in wanted if name not in _HANDLERS.loaded]
        if missing:
            _HANDLERS.look()
            new = sorted(name for name in missing if name not in _HANDLERS.index)
            if new:
                _HANDLERS.build([wanted[name] for name in new])
                _HANDLERS.look()
            for path in sorted({_HANDLERS.index[name] for name in missing}):
                _HANDLERS.load(path)
        return {name: _HANDLERS.loaded[name] for name in wanted}


def chunk_source(shapes: list[Shape]) -> str:
    """C text of one chunk: the handlers and their addresses in order."""
    lines = [f'#include "{name}"' for name in _HEADERS]
    lines += [shape.source for shape in shapes]
    lines.append("Handler *const equiv_handlers[] = {" + ", ".join(shape.name for shape in shapes) + "};")
    return "\n".join(lines) + "\n"
