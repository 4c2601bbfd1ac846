"""What differing elements have in common, in words: where they lie, and how the wrong values relate to the right ones.

A pattern is said only if it holds for every differing element. It is a hint for a reader; no verdict depends on it.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from equiv.rounding.formats import FORMATS, UNORDERED, Format, decode, ordered, ulp_distance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from equiv.records import Bits

    Mask = npt.NDArray[np.bool_]

_FLOAT64_FRACTION = np.uint64((1 << 52) - 1)
LISTED = 4
"""Indices of one dimension that are listed one by one."""
PROBED = 64
"""Differing elements that are looked at before all are."""


def describe(left: Bits, right: Bits, differs: Mask, dims: Sequence[str], format_name: str) -> str:
    """The patterns of a difference, joined by semicolons; "" if nothing stands out.

    Args:
        left: bit patterns taken as right.
        right: bit patterns that differ, of the same shape.
        differs: which elements to look at.
        dims: what each index means.
        format_name: a number format, or a plain integer type.
    """
    if int(differs.sum()) < 2:
        return "; ".join(_values(left[differs], right[differs], format_name))
    found = [*_places(differs, dims), *_values(left[differs], right[differs], format_name)]
    found += _moved(left, right, differs, dims)
    return "; ".join(found)


def _places(differs: Mask, dims: Sequence[str]) -> Iterator[str]:
    if differs.all():
        yield "everywhere"
        return
    touched = [np.unique(index) for index in np.nonzero(differs)]
    found = [_indices(at, size, dim) for at, size, dim in zip(touched, differs.shape, dims, strict=True)]
    words = [said for said in found if said]
    if words:
        whole = None not in found and int(differs.sum()) == np.prod([len(indices) for indices in touched])
        yield ("all of " if whole else "all in ") + ", ".join(words)


def _indices(indices: npt.NDArray[np.int64], size: int, dim: str) -> str | None:
    """The touched indices of one dimension: one, every n-th, a tail, a range, a few; "" if all, None if irregular."""
    first, last = int(indices[0]), int(indices[-1])
    if len(indices) == size:
        return ""
    if len(indices) == 1:
        return f"{dim} {first}"
    steps = np.diff(indices)
    step = int(steps[0])
    if np.all(steps == 1):
        tail = ": the tail" if last == size - 1 and first > 0 else ""
        return f"{dim}s {first}..{last}{tail}"
    if len(indices) > 2 and np.all(steps == step):
        complete = first < step and last + step >= size
        return f"every {_nth(step)} {dim} from {first}" + ("" if complete else f" to {last}")
    return f"{dim}s {', '.join(map(str, indices))}" if len(indices) <= LISTED else None


def _nth(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _values(left: Bits, right: Bits, format_name: str) -> Iterator[str]:
    """How wrong values relate to right ones, both `[n]`."""
    if format_name in FORMATS:
        yield from _numbers(left, right, FORMATS[format_name])
    if len(left) > 1 and np.all(right == right[0]):
        yield f"got 0x{int(right[0]):x} everywhere there"


def _numbers(left: Bits, right: Bits, fmt: Format) -> Iterator[str]:
    unlike = left ^ right
    if fmt.sign_mask and np.all(unlike == fmt.sign_mask):
        yield "only the sign differs"
        return
    distance = ulp_distance(left, right, fmt)
    if np.all(distance == 1):
        up = ordered(right, fmt) > ordered(left, fmt)
        size, expected_size = right & fmt.magnitude_mask, left & fmt.magnitude_mask
        way = "up or down"
        if up.all() or not up.any():
            way = "up" if up.all() else "down"
        elif np.all(size < expected_size):
            way = "towards zero"
        elif np.all(size > expected_size):
            way = "away from zero"
        yield f"each one code {way}" if fmt.width <= 8 else f"each one ulp {way}"
    if np.all(distance == UNORDERED):
        yield "NaN on one side, or NaNs with different bits"
        return
    wrong, expected = decode(right, fmt), decode(left, fmt)
    if np.all(np.isfinite(wrong) & np.isfinite(expected) & (wrong != 0) & (expected != 0)):
        ratios = np.unique(wrong / expected)
        if len(ratios) == 1 and not ratios.view(np.uint64)[0] & _FLOAT64_FRACTION:
            yield f"each {ratios[0]:g} times the expected value"


def _moved(left: Bits, right: Bits, differs: Mask, dims: Sequence[str]) -> Iterator[str]:
    """Whether the wrong values are right ones of another place along a dimension, or two dimensions are exchanged."""
    places, wrong = np.nonzero(differs), right[differs]
    for axis, dim in enumerate(dims):
        size = left.shape[axis]
        if size < 2:
            continue
        index = np.arange(size)
        sources = [(index + shift, f"{dim} {shift:+d}") for shift in (1, -1, 2, -2)]
        sources += [(index ^ bit, f"{dim} xor {bit}") for bit in (1, 2, 4, 8, 16, 32, 64)]
        sources += [(size - 1 - index, f"the {dim} as far from the other end")]
        for source, words in sources:
            came = source[places[axis]]
            looked = np.flatnonzero((came >= 0) & (came < size))
            if 2 * len(looked) <= len(wrong):
                continue
            for part in (looked[:PROBED], looked):  # millions may differ, and few of them tell
                moved = left[tuple(came[part] if at == axis else where[part] for at, where in enumerate(places))]
                if not np.array_equal(moved, wrong[part]):
                    break
            else:
                if len(np.unique(moved)) > 2:
                    yield f"each holds what belongs to {words}"
                    return
    for one, other in combinations(range(left.ndim), 2):
        if left.shape[one] == left.shape[other]:
            moved = left.swapaxes(one, other)[differs]
            if np.array_equal(moved, wrong) and len(np.unique(moved)) > 2:
                yield f"transposed: {dims[one]} and {dims[other]} are exchanged"
                return
