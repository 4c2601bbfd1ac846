"""Verdicts and plans as JSON values and back, exactly: one definition for the journal and the JSON report.

Non-finite floats are written as the strings "nan", "inf", "-inf", because JSON has no numbers for them.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from equiv.errors import RecordError
from equiv.records import Difference, Element, OutputVerdict, Status, Verdict

Json = dict[str, Any]
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Planned:
    """One case on one device with one seed: what a verdict is about, and the key that finds it; `again` repeats it."""

    case: str
    device: str
    seed: int
    again: str = field(default="", compare=False)

    @staticmethod
    def of(verdict: Verdict) -> Planned:
        """The plan entry that a verdict answers."""
        return Planned(verdict.case, verdict.device, verdict.seed, verdict.again)


def encode(record: Verdict | OutputVerdict | Difference | Element | Planned) -> Json:
    """A record as a JSON object with the record's own field names."""
    return {entry.name: _encoded(getattr(record, entry.name)) for entry in fields(record)}


def _encoded(value: Any) -> Any:  # noqa: ANN401  any field of any record
    if isinstance(value, OutputVerdict | Difference | Element):
        return encode(value)
    if isinstance(value, tuple):
        return [_encoded(entry) for entry in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)  # a Status becomes a plain string, as xdist's channel demands
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else str(float(value))
    return dict(value)


def verdict(data: Json) -> Verdict:
    """The verdict that `encode` made `data` from.

    Raises:
        RecordError: a field is missing, unknown or of a wrong kind; the text names it.
    """
    return _build(Verdict, data, {"status": Status, "outputs": _all(_output), "declared": tuple, "notes": tuple})


def planned(data: Json) -> Planned:
    """The plan entry that `encode` made `data` from; raises RecordError as `verdict` does."""
    return _build(Planned, data, {})


def _output(data: Json) -> OutputVerdict:
    return _build(OutputVerdict, data, {"status": Status, "differences": _all(_difference)})


def _difference(data: Json) -> Difference:
    return _build(Difference, data, {"worst": _all(_element), "ulps": tuple, "grid": _all(tuple)})


def _element(data: Json) -> Element:
    return _build(Element, data, {"index": tuple, "expected": float, "got": float})


def _all(convert: Any) -> Any:  # noqa: ANN401
    return lambda entries: tuple(convert(entry) for entry in entries)


def _build(kind: type[Record], data: Json, converters: dict[str, Any]) -> Record:
    try:
        return kind(**{key: converters[key](value) if key in converters else value for key, value in data.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"not a {kind.__name__}: {error}") from error
