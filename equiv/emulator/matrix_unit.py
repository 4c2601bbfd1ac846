"""The C library of the matrix unit, with the parameters of every modelled instruction compiled in."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

from equiv import ccode
from equiv.emulator.isa import models

_SOURCES: Final = Path(__file__).parent / "csrc"
_PARTS: Final = (
    "runtime.h", "checks.h", "observer.h", "memory.h", "matrix_api.h", "operands.h", "warp_mma.h",
    "tensor_state.h", "tensor_memory.h", "tensor_mma.h", "matrix_unit.c",
)  # fmt: skip
_TYPES, _NONE = 8, 0xFFFF


def source() -> str:
    """C text: the table of models, which of them `tcgen05.mma` means by its descriptor, and the unit."""
    from equiv.rounding.matrix_native import initialiser
    from equiv.rounding.matrix_table import variant

    rows = [
        f"/* {number}: {name} */ {initialiser(variant(name, arch))}"
        for number, (name, arch) in enumerate(models.names())
    ]
    known = models.tensor_names()
    kinds = len(models.TENSOR_KINDS)
    cells = [
        str(models.number(known[key]) if key in known else _NONE)
        for kind in range(kinds) for d in range(2) for a in range(_TYPES) for b in range(_TYPES)
        for scale in range(2) for block in range(2)
        for key in ((kind, d, a, b, scale, block),)
    ]  # fmt: skip
    return "\n".join([
        '#include "matrix.h"',
        "static const eq_mma MODELS[] = {", ",\n".join(rows), "};",
        f"static const uint16_t TENSOR_MODEL[{kinds}][2][{_TYPES}][{_TYPES}][2][2] = {{{', '.join(cells)}}};",
        '#include "matrix_unit.c"', "",
    ])  # fmt: skip


@cache
def address() -> int:
    """Address of the unit's table of entry points; builds the library if need be.

    Raises:
        UnsupportedError: there is no gcc.
    """
    from equiv.rounding.matrix_native import HEADERS

    path = ccode.build("matrix-unit", source(), [*(_SOURCES / part for part in _PARTS), *HEADERS])
    unit = ctypes.CDLL(str(path))
    unit.equiv_matrix.restype = ctypes.c_void_p
    return int(unit.equiv_matrix())
