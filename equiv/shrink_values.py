"""Simpler bits of one tensor with a property that must stay: zeros, then ones, then short mantissas.

Each kind of change is tried on all elements that it changes, then on halves of what it may not change at once, down to
single elements: what is left was each needed when it was tried. Integers are left alone; they are slots and counts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from equiv.rounding.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from equiv.records import Bits

INTEGERS = ("i32", "i64")
MANTISSAS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 21)
"""Bits of a mantissa that are kept, from fewest on; as many as the format has change nothing."""


def simpler(bits: Bits, format_: str, stays: Callable[[Bits], bool]) -> Iterator[str]:
    """What was done, in words, for each kind of change that helped; the last bits that `stays` accepted are the result.

    Args:
        bits: the tensor's bits.
        format_: of the tensor, `bf16`, `f32`; `u8` can only become 0.
        stays: whether the property stays with these bits; keeps those it accepts, may raise to end the search.
    """
    if format_ in INTEGERS:
        return
    for words, change in _changes(format_):
        changed = _applied(bits, change(bits), stays)
        count = int((changed != bits).sum())
        if count:
            bits = changed
            yield f"{count} elements {words}"


def _changes(format_: str) -> Iterator[tuple[str, Callable[[Bits], Bits]]]:
    yield "set to 0", np.zeros_like
    if format_ not in FORMATS:
        return
    known = FORMATS[format_]

    def numbers(bits: Bits, changed: Bits) -> Bits:
        """`changed` where `bits` are neither 0 nor infinite nor NaN."""
        magnitude = bits & bits.dtype.type(known.magnitude_mask)
        return np.where((magnitude == 0) | (magnitude > known.largest), bits, changed)

    def ones(bits: Bits) -> Bits:
        return numbers(bits, bits & bits.dtype.type(known.sign_mask) | bits.dtype.type(known.bias << known.fraction))

    yield "set to 1 or -1", ones
    for kept in MANTISSAS:
        if kept < known.fraction:
            mask = (1 << known.width) - (1 << known.fraction - kept)

            def short(bits: Bits, mask: int = mask) -> Bits:
                return numbers(bits, bits & bits.dtype.type(mask))

            yield f"cut to {kept} mantissa bits", short


def _applied(bits: Bits, goal: Bits, stays: Callable[[Bits], bool]) -> Bits:
    """`bits` with as many elements as possible as in `goal`; halves are tried in the order of their size."""
    waiting = deque([np.flatnonzero((bits != goal).ravel())])
    while waiting:
        places = waiting.popleft()
        if not len(places):
            continue
        tried = bits.copy()
        tried.ravel()[places] = goal.ravel()[places]
        if stays(tried):
            bits = tried
        elif len(places) > 1:
            middle = len(places) // 2
            waiting += [places[:middle], places[middle:]]
    return bits
