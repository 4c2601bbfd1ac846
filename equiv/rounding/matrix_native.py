"""The C twin of `matrix` behind ctypes, with the same signature, and the text by which generated C names a variant.

csrc/matrix.h holds the code; the table in `matrix_table` is the only source of its parameters.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from equiv.ccode import build
from equiv.rounding.conversions import Mode
from equiv.rounding.matrix import checked

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.rounding.formats import Format
    from equiv.rounding.matrix import Codes
    from equiv.rounding.matrix_table import MatrixVariant

_CSRC: Final = Path(__file__).parent / "csrc"
HEADERS: Final = tuple(_CSRC / f"{name}.h" for name in ("matrix", "matrix_quick", "matrix_sums", "numerics"))
TEXT: Final = """#include "matrix.h"
int equiv_mma(const eq_mma *v, int m, int n, int k, eq_mma_in a, eq_mma_in b, eq_mma_in c, eq_mma_out d, int negate,
              eq_mma_in scale_a, eq_mma_in scale_b) {
    return eq_mma_block(v, m, n, k, a, b, c, d, negate, scale_a, scale_b);
}
"""
_ABSENT: Final = 0xFFFFFFFF


class _FormatStruct(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("magnitude", "sign", "infinity", "nan_from", "nan")),
        *((name, ctypes.c_int32) for name in ("bytes", "fraction", "bias", "subnormals")),
    ]


class _VariantStruct(ctypes.Structure):
    _fields_ = [
        *((name, _FormatStruct) for name in ("a", "b", "c", "scale")),
        *((name, ctypes.c_int32) for name in (
            "k", "step", "align", "zero_exponent", "kept", "nearest", "dropped", "unpacked", "scale_block", "group")),
        ("order", ctypes.c_uint8 * 64),
    ]  # fmt: skip


class _MatrixStruct(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("rows", ctypes.c_ssize_t), ("columns", ctypes.c_ssize_t)]


def _format(fmt: Format | None) -> tuple[int, ...]:
    if fmt is None:
        return (0,) * len(_FormatStruct._fields_)
    ends = (_ABSENT if end is None else end for end in (fmt.infinity, fmt.nan_from))
    bias, fraction = fmt.bias, fmt.fraction
    return fmt.magnitude_mask, fmt.sign_mask, *ends, fmt.nan, fmt.dtype.itemsize, fraction, bias, int(fmt.subnormals)


def _fields(model: MatrixVariant) -> tuple[tuple[int, ...], ...]:
    """Members of `eq_mma` in its order: four formats, ten integers, the order of k."""
    row, result = model.row, model.result
    scale, block = (None, 0) if model.scales is None else (model.scales.format, model.scales.block)
    numbers = (model.k, len(model.blocks[0]), row.align, result.zero_exponent, result.kept,
               int(result.mode is Mode.RN), row.dropped, int(row.unpacked), block, row.group)  # fmt: skip
    order = tuple(k for block in model.blocks for k in block)
    return *(_format(f) for f in (model.a, model.b, result.format, scale)), numbers, order


def initialiser(model: MatrixVariant) -> str:
    """C text `{...}` that initialises an `eq_mma`, for code that includes matrix.h."""
    *formats, numbers, order = _fields(model)
    parts = [f"{{{', '.join(map(str, values))}}}" for values in formats]
    return f"{{{', '.join([*parts, *map(str, numbers)])}, {{{', '.join(map(str, order))}}}}}"


@cache
def _struct(model: MatrixVariant) -> _VariantStruct:
    *formats, numbers, order = _fields(model)
    padded = (ctypes.c_uint8 * 64)(*order)
    return _VariantStruct(*(_FormatStruct(*values) for values in formats), *numbers, padded)


def bound(path: Path) -> Any:  # noqa: ANN401  ctypes' function type has no name
    """The function of a library built from `TEXT`."""
    function = ctypes.CDLL(str(path)).equiv_mma
    matrix = _MatrixStruct
    sizes = (ctypes.c_int,) * 3
    function.argtypes = (ctypes.POINTER(_VariantStruct), *sizes, *(matrix,) * 4, ctypes.c_int, matrix, matrix)
    function.restype = ctypes.c_int
    return function


@cache
def native() -> Any:  # noqa: ANN401
    """The same, built for this machine."""
    return bound(build("matrix", TEXT, HEADERS))


def _matrix(array: npt.NDArray[Any] | None) -> _MatrixStruct:
    if array is None:
        return _MatrixStruct(None, 0, 0)
    return _MatrixStruct(array.ctypes.data, *(stride // array.itemsize for stride in array.strides))


def fused_dot(
    model: MatrixVariant,
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike | None = None,
    *,
    negate: bool = False,
    scale_a: npt.ArrayLike | None = None,
    scale_b: npt.ArrayLike | None = None,
) -> Codes:
    """`matrix.fused_dot`, in C.

    Raises:
        UsageError: as there.
        UnsupportedError: there is no gcc.
        MemoryError: the decoded operands do not fit.
    """
    left, right, addend, sa, sb = checked(model, a, b, c, (scale_a, scale_b))
    (m, k), n = left.shape, right.shape[1]
    d = np.empty((m, n), dtype=model.result.format.dtype)
    pieces = [_matrix(x) for x in (left, right, addend, d)]
    if native()(ctypes.byref(_struct(model)), m, n, k, *pieces, int(negate), _matrix(sa), _matrix(sb)):
        raise MemoryError(f"{model.instruction}: [{m}, {k}] x [{k}, {n}]")
    return d
