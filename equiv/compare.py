"""Judges one logical output: bits first, distances in int64 ulps, and the status by the declared contracts.

Equality is equality of bit patterns: -0 differs from +0, a NaN from a NaN with another payload. What a status means is
written in `judge`; nothing here knows an operator, a device or a tolerance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv import spread
from equiv.patterns import describe
from equiv.records import Difference, Element, OutputVerdict, Status
from equiv.rounding.formats import FORMATS, UNORDERED, decode, ulp_distance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from equiv.records import Bits, OutputSpec

    Mask = npt.NDArray[np.bool_]
    Place = Callable[[tuple[int, ...]], str]
    Shared = Callable[[npt.NDArray[np.int64]], str]
    Fit = tuple[Bits, float]

ORACLE, CANDIDATE, BOTH = "oracle", "candidate", "both"
PARTIES = (ORACLE, CANDIDATE)
CONTRACTS = ("bitwise", "envelope", "candidate")
FIRST, WORST = 2, 6
"""Differing elements shown: the first ones by index and the worst ones by ulps."""
INTEGERS = {"u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "i32": "i4", "i64": "i8"}
"""Plain integers: they have values and no ulps."""


def compare_bits(
    spec: OutputSpec,
    left_name: str,
    left: Bits,
    right_name: str,
    right: Bits,
    *,
    excluded: Mask | None = None,
    place: Place | None = None,
    shared: Shared | None = None,
    patterns: bool = True,
) -> Difference | None:
    """How `right` differs from `left`, or None if all bits are equal.

    Args:
        spec: names, format and dimensions of the output.
        left_name: whose bits are expected, `model` or `oracle`.
        left: its bit patterns.
        right_name: whose bits are looked at.
        right: its bit patterns, of the same shape and unsigned type.
        excluded: elements not to be compared (and not counted in `total`), or None.
        place: index -> words; by default the names of the dimensions.
        shared: indices `[n, dims]` -> what they have in common, in words, or "".
        patterns: whether to look for what the differing elements have in common, which takes longest of all.

    Raises:
        ValueError: shapes or types differ, or are not those of the format: the output was cut wrongly.
    """
    _check(spec, left_name, left, right_name, right)
    differs = np.asarray(left != right)
    total = left.size
    if excluded is not None:
        mask = _mask(excluded, spec, left.shape)
        differs &= ~mask
        total -= int(mask.sum())
    count = int(differs.sum())
    if not count:
        return None
    places = np.argwhere(differs)
    wrong, expected = right[differs], left[differs]
    distance = _distance(expected, wrong, spec.format)
    ranked = np.argsort(-distance, kind="stable") if distance is not None else np.arange(count)
    chosen = dict.fromkeys([*range(min(FIRST, count)), *ranked[:WORST].tolist()])
    elements = []
    for at in chosen:
        index = tuple(int(i) for i in places[at])
        ulps = None if distance is None or distance[at] == UNORDERED else int(distance[at])
        words = place(index) if place else ", ".join(f"{dim} {i}" for dim, i in zip(spec.dims, index, strict=True))
        values = [float(_values(bits[at : at + 1], spec.format)[0]) for bits in (expected, wrong)]
        elements.append(Element(index, words, int(expected[at]), int(wrong[at]), values[0], values[1], ulps))
    found = []
    if patterns:
        found = [shared(places) if shared else "", describe(left, right, differs, spec.dims, spec.format)]
    pattern = "; ".join(words for words in found if words)
    sizes = () if distance is None else spread.sizes(distance[distance != UNORDERED])
    grid = spread.grid(differs)
    return Difference(
        spec.name, left_name, right_name, spec.format, count, total, tuple(elements), pattern, sizes, grid
    )


def _check(spec: OutputSpec, left_name: str, left: Bits, right_name: str, right: Bits) -> None:
    if spec.format not in FORMATS and spec.format not in INTEGERS:
        raise ValueError(f"{spec.name}: unknown format {spec.format!r}")
    wanted = FORMATS[spec.format].dtype if spec.format in FORMATS else np.dtype(f"u{INTEGERS[spec.format][1:]}")
    for name, bits in ((left_name, left), (right_name, right)):
        if bits.dtype != wanted or bits.ndim != len(spec.dims):
            found = f"{bits.dtype} with {bits.ndim} dimensions"
            raise ValueError(f"{spec.name} of {name}: expected {wanted} with dimensions {spec.dims}, got {found}")
    if left.shape != right.shape:
        raise ValueError(f"{spec.name}: {left_name} has shape {left.shape}, {right_name} has {right.shape}")


def _mask(given: Bits | Mask, spec: OutputSpec, shape: tuple[int, ...]) -> Mask:
    mask = np.asarray(given)
    if mask.shape != shape or mask.dtype != np.bool_:
        raise ValueError(f"mask of {spec.name}: expected booleans of shape {shape}, got {mask.dtype} of {mask.shape}")
    return mask.view(np.bool_)


def _distance(left: Bits, right: Bits, format_name: str) -> npt.NDArray[np.int64] | None:
    return ulp_distance(left, right, FORMATS[format_name]) if format_name in FORMATS else None


def _values(bits: Bits, format_name: str) -> npt.NDArray[np.float64]:
    if format_name in FORMATS:
        return decode(bits, FORMATS[format_name])
    return bits.view(INTEGERS[format_name]).astype(np.float64)


def judge(
    spec: OutputSpec,
    outputs: Mapping[str, Bits],
    models: Mapping[str, Bits | None],
    fits: Mapping[str, Fit] | None = None,
    undefined: Bits | None = None,
    *,
    declared: Sequence[str] = (),
    place: Place | None = None,
    shared: Shared | None = None,
) -> OutputVerdict:
    """The verdict on one output.

    IDENTICAL: both parties equal the model under their declarations, and each other. REORDERED: both equal the model,
    differ from each other as declared, and lie in the envelope; never where the contract is `bitwise`. WITHIN: a
    declaration is unknown; both lie in the envelope, or agree bit for bit where the contract is `bitwise`. MISMATCH:
    all else; the party that differs from its model is blamed, `both` if both do. Where the contract is `candidate`, the
    oracle is not looked at: IDENTICAL if the candidate equals its model, WITHIN if there is none, else MISMATCH.

    Args:
        spec: the output and its contract.
        outputs: `oracle` and `candidate` -> what each left behind.
        models: `oracle` and `candidate` -> the model under that party's declaration, None if it is unknown.
        fits: `oracle` and `candidate` -> (mask of elements inside the envelope, share of it used), or None.
        undefined: boolean mask of elements that the contract leaves undefined: not compared, but counted.
        declared: what the parties declare differently, in words.
        place: index -> where the element is, in words.
        shared: indices -> what these elements have in common, in words.

    Raises:
        ValueError: unknown contract, an `envelope` contract without `fits`, or arrays that do not match the spec.
    """
    if spec.contract not in CONTRACTS:
        raise ValueError(f"{spec.name}: unknown contract {spec.contract!r}")
    excluded = None if undefined is None else _mask(undefined, spec, outputs[ORACLE].shape)
    left_out = 0 if excluded is None else int(excluded.sum())

    def verdict(
        status: Status, summary: str, *differences: Difference | None, blamed: str = "", used: float | None = None
    ) -> OutputVerdict:
        shown = tuple(difference for difference in differences if difference is not None)
        return OutputVerdict(spec.name, status, summary, shown, blamed, used, left_out)

    def compare(
        left_name: str, left: Bits, party: str, skipped: Mask | None = excluded, *, patterns: bool = True
    ) -> Difference | None:
        right = outputs[party]
        return compare_bits(
            spec, left_name, left, party, right, excluded=skipped, place=place, shared=shared, patterns=patterns
        )

    if spec.contract == "candidate":
        promised = models[CANDIDATE]
        if promised is None:
            return verdict(Status.WITHIN, "declaration of candidate unknown; promised by it alone, so not compared")
        alone = compare("model", promised, CANDIDATE)
        if alone is None:
            return verdict(Status.IDENTICAL, f"all {outputs[CANDIDATE].size - left_out} elements equal the model")
        summary = f"the candidate differs from what it promises in {_count(alone)}: {spec.promise}"
        return verdict(Status.MISMATCH, summary, alone, blamed=CANDIDATE)
    wrong = {
        party: difference
        for party in PARTIES
        if (model := models[party]) is not None and (difference := compare("model", model, party)) is not None
    }
    unknown = [party for party in PARTIES if models[party] is None]
    # Differences that both models have are as declared, in no pattern that tells anything.
    expected = not wrong and not unknown and bool(declared) and spec.contract == "envelope"
    between = compare(ORACLE, outputs[ORACLE], CANDIDATE, patterns=not expected)
    if wrong:
        blamed = BOTH if len(wrong) == len(PARTIES) else next(iter(wrong))
        return verdict(Status.MISMATCH, _blame(wrong, unknown, between), *wrong.values(), blamed=blamed)
    total = outputs[ORACLE].size - left_out
    if between is None and not unknown:
        return verdict(Status.IDENTICAL, f"all {total} elements equal the model")
    if between is not None and spec.contract == "bitwise":
        suspect = unknown[0] if len(unknown) == 1 else ""
        summary = f"{_count(between)} differ between oracle and candidate; the contract is bitwise: {spec.promise}"
        return verdict(Status.MISMATCH, summary, between, blamed=suspect)
    if spec.contract == "envelope" and fits is None:
        raise ValueError(f"{spec.name}: the contract is an envelope and none was given")
    used = max(share for _, share in fits.values()) if fits else None
    for party, (inside, _) in (fits or {}).items():
        within = _mask(inside, spec, outputs[party].shape)
        outside = int((~within if excluded is None else ~within & ~excluded).sum())
        if outside:
            skipped = within if excluded is None else within | excluded
            base = ORACLE if party == CANDIDATE else CANDIDATE
            shown = compare(base, outputs[base], party, skipped)
            blamed = party if party in unknown else ""
            summary = f"{outside} of {total} elements of the {party} lie outside the envelope"
            return verdict(Status.MISMATCH, summary, shown or between, blamed=blamed, used=used)
    if unknown:
        agree = "oracle and candidate agree bit for bit" if between is None else f"{_count(between)} differ, all inside"
        return verdict(Status.WITHIN, f"declaration of {' and '.join(unknown)} unknown; {agree}", between, used=used)
    if not declared:
        summary = f"{_count(between)} differ between the models, though the parties declare no difference"
        return verdict(Status.MISMATCH, summary, between, used=used)
    return verdict(Status.REORDERED, f"{_count(between)} differ as declared, inside the envelope", between, used=used)


def _count(difference: Difference | None) -> str:
    assert difference is not None
    return f"{difference.count} of {difference.total} elements"


def _blame(wrong: Mapping[str, Difference], unknown: Sequence[str], between: Difference | None) -> str:
    if len(wrong) == len(PARTIES):
        counts = " and ".join(f"{party} in {_count(difference)}" for party, difference in wrong.items())
        agree = "; they agree with each other" if between is None else ""
        return f"both parties differ from their models, {counts}{agree}"
    party, difference = next(iter(wrong.items()))
    other = ORACLE if party == CANDIDATE else CANDIDATE
    state = "has no known declaration" if other in unknown else "equals its own"
    return f"the {party} differs from its model in {_count(difference)}; the {other} {state}"
