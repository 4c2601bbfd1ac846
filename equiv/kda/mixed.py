"""The values "by_head" of `kda`: each head has values of its own kind, so that one case sees what several would.

Six kinds go by head, and by request with their states; under the values "gated" all heads are of kind 2:

    0 q and k of any size, outputs at BF16 ties    3 rows and taps over many binades, outputs whose norm is at ties
    1 convolution, raw gate and output at ties     4 subnormal q and k, rates beyond 2**126
    2 SiLU and gated outputs at ties               5 subnormal v and states, rates below 2**-126
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.kda import DIM
from equiv.inputs import Draws
from equiv.kda.states import MOST
from equiv.kda.tensors import axis, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from equiv.inputs import Ints, Shape
    from equiv.records import Bits, Case

    Fill = Callable[[Draws, Shape], Bits]
    Names = tuple[str, str, str, str, str, str]

KINDS = 6
GATED = 2
VALUES = ("by_head", "gated")
BY_HEAD: Mapping[str, Names] = {
    "q": ("amplitudes", "ties", "normal", "wide", "subnormals", "normal"),
    "k": ("amplitudes", "ties", "normal", "wide", "subnormals", "normal"),
    "v": ("normal", "ties", "normal", "wide", "normal", "subnormals"),
    "out_gate": ("open", "pairs", "pairs", "open", "flat", "normal"),
    "conv_state": ("normal", "normal", "normal", "wide", "subnormals", "normal"),
    "conv_w": ("last_tap", "ties", "normal", "wide", "normal", "normal"),
    "conv_bias": ("zero", "zero", "normal", "normal", "zero", "zero"),
    "a_log": ("normal", "normal", "normal", "normal", "largest", "least"),
    "dt_bias": ("normal", "normal", "normal", "mixed", "subnormals", "huge"),
    "f_b": ("normal", "ties", "ties", "ties", "subnormals", "normal"),
}
"""Piece -> the regime of each kind of head. The windows of v are ordinary in kind 4 and subnormal in kind 5."""
F_A = ("normal", "ties")
"""Of the rows, by turns."""
STATES: tuple[Names, Names] = (
    ("aimed_midpoints", "aimed_midpoints", "aimed_gates", "aimed_norms", "zero", "subnormals"),
    ("aimed_norms", "aimed_gates", "aimed_gates", "aimed_norms", "normal", "subnormals"),
)
"""Of the first, third, ... request of a head, and of the others."""
PIECES = (*BY_HEAD, "f_a", "norm_w", "state")


def kinds(case: Case) -> Ints:
    """The kind of each head of a case with values of `VALUES`."""
    heads = np.arange(whole(case, "heads"))
    return heads % KINDS if case.regimes.get("values") == VALUES[0] else np.full_like(heads, GATED)


def fill(piece: str, table: Mapping[str, Fill], draws: Draws, shape: Shape, heads: Ints) -> Bits:
    """A piece `shape` of which a head has one row or several, or, where there is one row, some columns.

    heads: their kinds.
    """
    if piece == "f_a":
        both = [table[name](Draws(draws.seed, f"{piece}/{name}"), shape) for name in F_A]
        return np.where(np.arange(shape[0])[:, None] % len(F_A), both[1], both[0]).astype(np.uint16)
    if piece == "norm_w":
        return _norm_w(*(table[name](Draws(draws.seed, f"{piece}/{name}"), shape) for name in ("normal", "wide")))
    groups, width = (len(heads) * (3 if piece == "conv_bias" else 1), 0) if shape[0] == 1 else shape
    width = width or shape[1] // groups
    names = np.array(BY_HEAD[piece])[_kinds(piece, heads, groups)]
    found: Bits | None = None
    for name in dict.fromkeys(BY_HEAD[piece]):
        some = np.flatnonzero(names == name)
        if some.size:
            bits = table[name](Draws(draws.seed, f"{piece}/{name}"), (len(some), width))
            found = np.empty((groups, width), dtype=bits.dtype) if found is None else found
            found[some] = bits
    assert found is not None
    return found.reshape(shape)


def _kinds(piece: str, kinds: Ints, groups: int) -> Ints:
    """The kind of each row of a piece: a row a head, or, of weights, a channel; q, k, v come one after the other."""
    if piece == "conv_state":
        kinds = np.concatenate([kinds, kinds, np.where(kinds >= 4, 9 - kinds, kinds)])
    if piece in {"conv_w", "f_b"}:
        kinds = np.repeat(kinds, DIM)
    return np.tile(kinds, groups // len(kinds))


def _norm_w(normal: Bits, wide: Bits) -> Bits:
    """By channel: 1, 3/2, 1, and by turns an ordinary weight and a wide one."""
    channel = np.arange(DIM)
    other = np.where(channel % 8 == 3, normal, wide)
    return np.where(channel % 2 == 0, 0x3F80, np.where(channel % 4 == 1, 0x3FC0, other)).astype(np.uint16)


def states(case: Case, requests: int) -> npt.NDArray[np.str_]:
    """The regime [R, H] of the heads of R real requests; none is aimed where states are BF16 or too many."""
    heads = whole(case, "heads")
    turn = (np.arange(requests)[:, None] + np.arange(heads) // KINDS) % 2
    names: npt.NDArray[np.str_] = np.array(STATES)[turn, kinds(case)]
    if axis(case, "state") != "f32" or whole(case, "batch") * heads > MOST:
        names = np.where(np.char.startswith(names, "aimed"), "normal", names)
    return names
