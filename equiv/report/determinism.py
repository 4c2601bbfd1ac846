"""The determinism matrix as text: a row a pair, device and party, a column a condition; below it what changed, whole.

A cell says how many cases are the `same` under its condition, CHANGED, `declared` (other orders are declared for that
batch size), ERROR or NOT_RUN; `unsupported`: the device cannot do it; `-`: there is nothing to ask.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from equiv.records import OutputVerdict, Status, Verdict
from equiv.report import outcome
from equiv.report.text import difference_lines
from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORDS = {
    Status.IDENTICAL: "same",
    Status.REORDERED: "declared",
    Status.MISMATCH: "CHANGED",
    Status.UNSUPPORTED: "unsupported",
}
_LOUD = (Status.MISMATCH, Status.ERROR, Status.NOT_RUN)


def render(
    verdicts: Sequence[Verdict], environment: Mapping[str, str], remarks: Sequence[str], conditions: Mapping[str, str]
) -> str:
    """The whole report; `conditions` are the columns, each with its meaning."""
    parts = [_table(verdicts, list(conditions))]
    parts += [text for verdict in verdicts if (text := _case(verdict))]
    parts += ["\n".join(lines) for lines in (_declared(verdicts), _unsupported(verdicts), _noted(verdicts)) if lines]
    parts.append("\n".join(f"{name.ljust(max(map(len, conditions)))}  {said}" for name, said in conditions.items()))
    parts += ["with " + ", ".join(f"{name} {version}" for name, version in environment.items())]
    parts += ["\n".join(remarks)] if remarks else []
    found = Counter(cell.status for verdict in verdicts for cell in _cells(verdict))
    counted = ", ".join(f"{found[status]} {_word(status)}" for status in (*WORDS, Status.ERROR, Status.NOT_RUN))
    parts.append(f"{len(verdicts)} case(s), {found.total()} cells: {counted}")
    return visible("\n\n".join(parts) + "\n")


def exit_code(verdicts: Sequence[Verdict], *, require: bool) -> int:
    """As of a run (`outcome.exit_code`); with `require` it is 1 for a single cell that the device cannot do."""
    lacking = any(cell.status is Status.UNSUPPORTED for verdict in verdicts for cell in verdict.outputs)
    return 1 if require and lacking else outcome.exit_code(verdicts, require=require)


def _cells(verdict: Verdict) -> Sequence[OutputVerdict]:
    """Its cells; one for both parties where the case came to none: its worker died, or it was not reached."""
    return verdict.outputs or (OutputVerdict("both once", verdict.status, verdict.summary),)


def _word(status: Status) -> str:
    return WORDS.get(status, str(status))


def _table(verdicts: Sequence[Verdict], conditions: list[str]) -> str:
    cells: dict[tuple[str, str, str], dict[str, Counter[Status]]] = {}
    for verdict in verdicts:
        pair = verdict.case.partition("::")[0] if len(verdicts) > 1 else verdict.case
        for cell in _cells(verdict):
            party, _, condition = cell.output.partition(" ")
            row = cells.setdefault((pair, verdict.device, party), {})
            row.setdefault(condition, Counter())[cell.status] += 1
    columns = ["once"] * any("once" in row for row in cells.values()) + conditions
    rows = [["pair" if len(verdicts) > 1 else "case", "device", "party", *columns]]
    for key, row in sorted(cells.items()):
        rows.append([*key, *(_cell(row.get(condition, Counter())) for condition in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _cell(found: Counter[Status]) -> str:
    loud_first = sorted(found, key=lambda status: status not in _LOUD)
    several = found.total() > 1
    return ", ".join(f"{_word(status)} {found[status]}" if several else _word(status) for status in loud_first) or "-"


def _case(verdict: Verdict) -> str:
    cells = [cell for cell in verdict.outputs if cell.status in _LOUD]
    if not cells and verdict.status not in _LOUD:
        return ""
    lines = [f"{_word(verdict.status)} {verdict.case}  {verdict.device}  seed {verdict.seed}"]
    if not cells:
        lines += [f"  {line}" for line in verdict.summary.splitlines()]
    for cell in cells:
        first, *rest = cell.summary.splitlines() or [""]
        lines += [f"  {cell.output}: {_word(cell.status)}: {first}", *(f"    {line}" for line in rest)]
        for difference in cell.differences:
            lines += [f"    {difference.output}", *(f"  {line}" for line in difference_lines(difference))]
    lines += [f"  again     {verdict.again}"] if verdict.again else []
    return "\n".join(lines)


def _declared(verdicts: Sequence[Verdict]) -> list[str]:
    """What is declared of the batches that change, with how many cases it is said of."""
    found = Counter((verdict.device, line) for verdict in verdicts for line in verdict.declared)
    return [f"declared {device}, {count} case(s): {line}" for (device, line), count in found.items()]


def _unsupported(verdicts: Sequence[Verdict]) -> list[str]:
    cells = (cell for verdict in verdicts for cell in verdict.outputs if cell.status is Status.UNSUPPORTED)
    return [f"unsupported, {count} cell(s): {said}" for said, count in Counter(cell.summary for cell in cells).items()]


def _noted(verdicts: Sequence[Verdict]) -> list[str]:
    found = Counter((verdict.device, note) for verdict in verdicts for note in verdict.notes)
    return [f"NOTE {device}, {count} case(s): {note}" for (device, note), count in found.items()]
