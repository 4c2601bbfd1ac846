"""Builds the C side: the scheduler once, handlers in chunks as kernels need them, both kept in the cache directory.

A handler's name is a hash of its text, so a chunk never goes stale: changed text is another name. The directory's name
is a hash of the shared headers, the compiler, its flags and the features of this processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import ccode
from equiv.cache import cache_dir, write_atomic
from equiv.rounding import special

if TYPE_CHECKING:
    from collections.abc import Iterable

    from equiv.emulator.shapes import Shape

_SOURCES = Path(__file__).parent / "csrc"
_NUMERICS = Path(__file__).parents[1] / "rounding" / "csrc"
_HEADERS = ("runtime.h", "memory.h", "sync.h", "half.h", "tensormap.h", "mbarrier.h", "async.h", "bulk.h",
            "matrix_api.h", "fragments.h", "checks.h", "observer.h")  # fmt: skip
INCLUDES = (_SOURCES, _NUMERICS)
WARNINGS_OFF = ("-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-parameter", "-Wno-sign-compare")
_CHUNK = 200
_LOCK = threading.Lock()


@cache
def build_directory() -> Path:
    """Where this machine's compiled handlers are kept."""
    digest = hashlib.sha256(ccode.identity().encode())
    for path in (*sorted(_SOURCES.glob("*.h")), _SOURCES / "engine.c", *special.SOURCES):
        digest.update(path.read_bytes())
    return cache_dir() / f"emulator-{digest.hexdigest()[:16]}"


@cache
def scheduler() -> ctypes.CDLL:
    """The library with `equiv_launch`, built if need be."""
    path = build_directory() / "engine.so"
    if not path.exists():
        ccode.compile_to(path, '#include "engine.c"\n', INCLUDES)
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
            ccode.compile_to(path, chunk_source(chunk), INCLUDES)
            write_atomic(path.with_suffix(".names"), " ".join(names).encode())


_HANDLERS = _Handlers()


def handlers(shapes: Iterable[Shape]) -> dict[str, int]:
    """Addresses of the handlers of these shapes by their names; compiles those that no process has compiled before.

    Raises:
        UnsupportedError: a C compiler is needed and not there.
        EquivError: it rejects the generated code (a fault of the instruction table).
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
