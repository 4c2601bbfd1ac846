"""The C twin of `kda_scan` behind ctypes: csrc/delta.h runs an order by its nodes, 16 rows of a state at a time."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from equiv.ccode import library
from equiv.errors import RecordError

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.rounding.orders import Order

    U32 = npt.NDArray[np.uint32]

_CSRC: Final = Path(__file__).parent / "csrc"
HEADERS: Final = (_CSRC / "delta.h", _CSRC / "numerics.h")
_KINDS: Final = {"leaf": 0, "const": 1, "add": 2, "fma": 3}
_NODES: Final = 1024
DIM: Final = 128

_TEXT: Final = """#include "delta.h"
void equiv_scan(int64_t items, int tokens, const float *state, const float *q, const float *k, const float *decay,
                const float *v, const float *beta, const eq_program *dot, const eq_program *out,
                const eq_delta_steps *steps, uint32_t *states, uint32_t *o, uint32_t *u) {
    eq_delta_scan(items, tokens, state, q, k, decay, v, beta, dot, out, steps, states, o, u);
}
void equiv_fold(int64_t items, int tokens, int forward, const int32_t *counts, const float *state, const float *decay,
                const float *k, const float *u, uint32_t *result) {
    eq_delta_fold(items, tokens, forward, counts, state, decay, k, u, result);
}
void equiv_dot(int64_t rows, const float *a, const float *b, const eq_program *p, const int32_t *roots, int found,
               uint32_t *result) {
    eq_delta_dot(rows, a, b, p, roots, found, result);
}
"""


class _Program(ctypes.Structure):
    _fields_ = [("nodes", ctypes.c_void_p), ("count", ctypes.c_int32), ("root", ctypes.c_int32)]


class _Steps(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("decays", "mul_add", "bf16_difference", "bf16_correction")]


@cache
def _native() -> ctypes.CDLL:
    found = library("delta", _TEXT, HEADERS)
    long, whole, at = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
    found.equiv_scan.argtypes = (long, whole, *(at,) * 12)
    found.equiv_fold.argtypes = (long, whole, whole, *(at,) * 6)
    found.equiv_dot.argtypes = (long, at, at, at, at, whole, at)
    for function in (found.equiv_scan, found.equiv_fold, found.equiv_dot):
        function.restype = None
    return found


@cache
def _nodes(order: Order) -> npt.NDArray[np.int32]:
    """An order's nodes as C reads them, `[n, 3]`.

    Raises:
        RecordError: the order has matrix instructions or sums of unknown arithmetic, is not over 128 terms or too long.
    """
    unknown = sorted({str(node[0]) for node in order.nodes} - set(_KINDS))
    if unknown or order.terms != DIM or len(order.nodes) > _NODES:
        kinds = f" with {', '.join(unknown)}" if unknown else ""
        raise RecordError(
            f"an order of {order.terms} terms in {len(order.nodes)} nodes{kinds}: no sum over 128 channels"
        )
    lines = [(_KINDS[node[0]], node[1], node[2] if len(node) > 2 else 0) for node in order.nodes]
    return np.array(lines, dtype=np.int64).astype(np.uint32).view(np.int32)


def _program(order: Order) -> _Program:
    nodes = _nodes(order)
    return _Program(nodes.ctypes.data, len(nodes), order.roots[0])


def _lines(*arrays: npt.ArrayLike) -> list[U32]:
    return [np.ascontiguousarray(array, dtype=np.uint32) for array in arrays]


def dot(a: npt.ArrayLike, b: npt.ArrayLike, order: Order) -> U32:
    """`Order.dot` on `[..., 128]`, in C.

    Raises:
        RecordError: the order is none of plain and fused additions over 128 terms.
    """
    x, y = _lines(*np.broadcast_arrays(a, b))
    result = np.empty((*x.shape[:-1], len(order.roots)), dtype=np.uint32)
    roots = np.array(order.roots, dtype=np.int32)
    program = ctypes.byref(_program(order))
    at = (x.ctypes.data, y.ctypes.data, program, roots.ctypes.data)
    _native().equiv_dot(x.size // DIM, *at, len(roots), result.ctypes.data)
    return result


def scan(
    state: U32,
    operands: tuple[U32, ...],
    orders: tuple[Order, Order],
    steps: tuple[int, int, int, int],
    *,
    keep: bool,
) -> tuple[U32, U32, U32]:
    """`kda_scan.scan` for the steps that C knows.

    Args:
        state: `[N, 128, 128]` float32 bits.
        operands: q, k, decay, v `[N, T, 128]` and beta `[N, T]`.
        orders: of the dot and of the output.
        steps: how often the state decays; whether the update rounds its product; whether v - S k, and u, become BF16.
        keep: whether the states after each token are wanted.

    Returns:
        States `[N, T, 128, 128]` (`[0]` unless kept), o and u `[N, T, 128]`.

    Raises:
        RecordError: an order is none of plain and fused additions over 128 terms.
    """
    page, *given = _lines(state, *operands)
    items, tokens = given[4].shape
    states = np.empty((items, tokens, DIM, DIM) if keep else 0, dtype=np.uint32)
    o, u = (np.empty((items, tokens, DIM), dtype=np.uint32) for _ in range(2))
    programs = [_program(order) for order in orders]
    at = [array.ctypes.data for array in (page, *given)]
    ends = (states.ctypes.data if keep else None, o.ctypes.data, u.ctypes.data)
    _native().equiv_scan(items, tokens, *at, *map(ctypes.byref, programs), ctypes.byref(_Steps(*steps)), *ends)
    return states, o, u


def fold(state: U32, counts: npt.ArrayLike, tokens: tuple[U32, U32, U32], *, forward: bool) -> U32:
    """`kda_scan.fold` by `kda_steps.fold_forward` or `fold_backward`, in C.

    Args:
        state: `[N, 128, 128]` float32 bits.
        counts: `[N]`, 1 to T.
        tokens: decays, normalised keys and corrections, `[N, T, 128]` each.
        forward: which of the two.
    """
    page, *given = _lines(state, *tokens)
    lengths = np.ascontiguousarray(counts, dtype=np.int32)
    result = np.empty(page.shape, dtype=np.uint32)
    at = [array.ctypes.data for array in (lengths, page, *given, result)]
    _native().equiv_fold(len(page), given[0].shape[1], int(forward), *at)
    return result
