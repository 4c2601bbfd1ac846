"""A case as an entry of a case file, every axis and regime stated, whatever the file's defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import AxisValue, Case


def toml(case: Case) -> str:
    """The `[[case]]` table; `nightly` is its suite if it has none."""
    lines = [
        "[[case]]",
        f"id = {_value(case.id)}",
        f"why = {_value(case.why)}",
        f"seed = {case.seed}",
        f"suites = [{', '.join(map(_value, case.suites or ('nightly',)))}]",
        f"axes = {_table(case.axes)}",
        f"regimes = {_table(case.regimes)}",
    ]
    return "\n".join(lines)


def _table(entries: Mapping[str, AxisValue]) -> str:
    return "{ " + ", ".join(f"{key} = {_value(value)}" for key, value in entries.items()) + " }"


def _value(value: AxisValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
