"""Runs in time, as plain text: a line each, what the newest one came to, and since when its bad cases are bad."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from equiv.records import SEVERITY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from equiv.history import Night, Turn
    from equiv.records import Verdict

    Report = Callable[[Sequence[Verdict], Mapping[str, str], Sequence[str]], str]


def render(nights: Sequence[Night], turns: Sequence[Turn], report: Report) -> str:
    """The table of runs, the first bad run of each case that fails, and what `report` says of the newest run."""
    newest = nights[-1]
    missing = [f"shard {shard} of the newest run is missing: it is not whole" for shard in newest.missing]
    parts = [_table(nights)] if len(nights) > 1 else []
    parts += [_turn(turn) for turn in turns] if len(nights) > 1 else []
    return "".join(f"{part}\n" for part in parts) + report(newest.verdicts, newest.environment, missing)


def _table(nights: Sequence[Night]) -> str:
    rows = [["run begun", *SEVERITY, "cases", "seconds", "missing"]]
    for night in nights:
        counts = Counter(verdict.status for verdict in night.verdicts)
        seconds = sum(verdict.seconds for verdict in night.verdicts)
        numbers = [str(counts[status]) for status in SEVERITY]
        rows.append(
            [night.started, *numbers, str(len(night.verdicts)), f"{seconds:.0f}", ", ".join(night.missing) or "-"]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) + "\n"


def _turn(turn: Turn) -> str:
    before = f"last good {turn.before}" if turn.before else "never good in these runs"
    return f"{turn.status} {turn.case}  {turn.device}  first bad {turn.since}, {before}"
