"""The report of a run as plain text.

How to read it: the table counts the cases of each status, per pair and device; its rows add up to the cases that were
planned. Below it stands every case that is not IDENTICAL, worst first; REORDERED, WITHIN and UNSUPPORTED ones are put
together where they have one reason. A difference shows the whole bits
(hexadecimal, of the format's width), the values, the distance in ulps, the place in words, and what the differing
places have in common. `again` repeats the case. Differences that the parties declare (reduction orders, variants of
ledger rows) are listed once for all cases that have them. Control characters in what others say are spelt out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from equiv.records import SEVERITY, Difference, Element, OutputVerdict, Status, Verdict
from equiv.report.outcome import closed_gaps, is_known_gap
from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH = {
    "u8": 2,
    "e4m3": 2,
    "e2m1": 1,
    "ue8m0": 2,
    "bf16": 4,
    "f16": 4,
    "f32": 8,
    "u16": 4,
    "u32": 8,
    "i32": 8,
    "i64": 16,
}
"""Hexadecimal digits of a format's bits; other formats are shown with as many as they need."""

SHOWN = 5
"""Differing elements shown of one output."""


def render(verdicts: Sequence[Verdict], environment: Mapping[str, str], remarks: Sequence[str] = ()) -> str:
    """The whole report; `remarks` are lines about the run itself (a torn journal, an interruption)."""
    parts = [table(verdicts)]
    parts += [case_text(verdict) for verdict in sorted(verdicts, key=_worst_first) if verdict.status not in _QUIET]
    grouped = {Status.UNSUPPORTED: unsupported, Status.WITHIN: within, Status.REORDERED: _reordered}
    for status, blocks in grouped.items():
        parts += blocks([verdict for verdict in verdicts if verdict.status is status])
    notes = noted([verdict for verdict in verdicts if verdict.status in _QUIET])
    parts += [notes] if notes else []
    if environment:
        parts.append("with " + ", ".join(f"{name} {version}" for name, version in environment.items()))
    parts += ["\n".join(lines) for lines in (closed(verdicts), remarks) if lines]
    return visible("\n\n".join([*parts, counts(verdicts)]) + "\n")


_QUIET = {Status.IDENTICAL, Status.REORDERED, Status.WITHIN, Status.UNSUPPORTED}
"""Cases of these are not shown one by one."""


def closed(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each known gap that is none any more."""
    return [f"{case} passes: take it out of known_gaps.toml: {gap}" for case, gap in closed_gaps(verdicts).items()]


def counts(verdicts: Sequence[Verdict]) -> str:
    """`64 cases: 40 IDENTICAL, 24 REORDERED, 0 WITHIN, ...`: every status, also those that nobody has."""
    found = Counter(verdict.status for verdict in verdicts)
    return f"{len(verdicts)} case(s): " + ", ".join(f"{found[status]} {status}" for status in SEVERITY)


def table(verdicts: Sequence[Verdict]) -> str:
    """One line a pair and device: how many cases have each status, their time, and the emulator's speed in launches."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.case.partition("::")[0], verdict.device), []).append(verdict)
    head = ["pair", "device", *SEVERITY, "cases", "seconds", "warp-instr/s"]
    rows = [head]
    for (pair, device), members in sorted(groups.items()):
        found = Counter(verdict.status for verdict in members)
        seconds = sum(verdict.seconds for verdict in members)
        instructions = sum(verdict.warp_instructions for verdict in members)
        launched = sum(verdict.launch_seconds for verdict in members)
        speed = f"{instructions / launched:.3g}" if launched and instructions else "-"
        numbers = [str(found[status]) for status in SEVERITY]
        rows.append([pair, device, *numbers, str(len(members)), f"{seconds:.1f}", speed])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(left + right).rstrip())
    return "\n".join(lines)


def case_text(verdict: Verdict) -> str:
    """Everything known about one case, from its status to the command that repeats it."""
    lines = [f"{verdict.status} {verdict.case}  {verdict.device}  seed {verdict.seed}"]
    lines += [f"  known gap: {verdict.gap}"] if is_known_gap(verdict) else []
    lines += _indented(verdict.summary)
    for output in verdict.outputs:
        if output.status is not Status.IDENTICAL:
            lines += _output(output)
    lines += [f"  declared  {difference}" for difference in verdict.declared]
    lines += [f"  note      {note}" for note in verdict.notes]
    lines += [f"  again     {verdict.again}"] if verdict.again else []
    return visible("\n".join(lines))


def _output(output: OutputVerdict) -> list[str]:
    used = "" if output.envelope_used is None else f", {output.envelope_used:.1%} of the envelope used"
    undefined = f", {output.undefined} undefined element(s) excluded" if output.undefined else ""
    blamed = f" ({output.blamed})" if output.blamed else ""
    first, *rest = visible(output.summary).splitlines() or [""]
    lines = [f"  {output.output}: {output.status}{blamed}: {first}{used}{undefined}"]
    lines += [f"    {line}" for line in rest]
    for difference in output.differences:
        lines += difference_lines(difference)
    return lines


def difference_lines(difference: Difference) -> list[str]:
    """How two arrays differ: the count, the elements shown, what they have in common; indented for an output."""
    parties = f"{difference.left} (expected) against {difference.right} (got)"
    lines = [f"    {difference.count} of {difference.total} differ, {parties}"]
    lines += [f"      at      {_element(element, difference.format)}" for element in difference.worst[:SHOWN]]
    lines += [f"      where   {difference.pattern}"] if difference.pattern else []
    return lines


def _element(element: Element, format_: str) -> str:
    ulps = "no distance" if element.ulps is None else f"{element.ulps} ulp"
    expected = f"{_hex(element.expected_bits, format_)} {element.expected:.9g}"
    got = f"{_hex(element.got_bits, format_)} {element.got:.9g}"
    return f"{list(element.index)} {element.place}  expected {expected}   got {got}   {ulps}"


def _hex(bits: int, format_: str) -> str:
    return f"0x{bits:0{WIDTH.get(format_, 0)}x}"


def unsupported(verdicts: Sequence[Verdict]) -> list[str]:
    """The UNSUPPORTED cases, grouped by what they need."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.summary, []).append(verdict)
    return [
        "\n".join([f"UNSUPPORTED {len(members)} case(s): {summary}", *map(_line, members)])
        for summary, members in groups.items()
    ]


def within(verdicts: Sequence[Verdict]) -> list[str]:
    """The WITHIN cases: which parties declare nothing is in their notes."""
    if not verdicts:
        return []
    head = f"WITHIN {len(verdicts)} case(s): no model to be equal to, inside what any order and variant may yield:"
    return ["\n".join([head, *map(_line, verdicts)])]


def _reordered(verdicts: Sequence[Verdict]) -> list[str]:
    """The REORDERED cases, grouped by what their parties declare differently."""
    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.declared, []).append(verdict)
    blocks = []
    for declared, members in groups.items():
        lines = [f"REORDERED {len(members)} case(s), both parties equal their models; they declare:"]
        lines += [f"  declared  {difference}" for difference in declared]
        blocks.append("\n".join([*lines, *map(_line, members)]))
    return blocks


def _line(verdict: Verdict) -> str:
    """One case of a group."""
    outputs = [output for output in verdict.outputs if output.status is not Status.IDENTICAL]
    said = "; ".join(f"{output.output}: {_short(output)}" for output in outputs)
    return f"  {verdict.case}  {verdict.device}  {said}".rstrip()


def noted(verdicts: Sequence[Verdict]) -> str:
    """The notes of cases that are not shown one by one, each with its device and how many cases have it."""
    found = Counter((verdict.device, note) for verdict in verdicts for note in verdict.notes)
    return "\n".join(f"NOTE {device}, {count} case(s): {note}" for (device, note), count in found.items())


def _short(output: OutputVerdict) -> str:
    used = "" if output.envelope_used is None else f", {output.envelope_used:.1%} of the envelope"
    counts = "; ".join(f"{difference.count} of {difference.total} differ" for difference in output.differences)
    return f"{counts or 'no bit differs'}{used}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in visible(text).splitlines()]


def _worst_first(verdict: Verdict) -> tuple[int, str, str]:
    return (-SEVERITY.index(verdict.status), verdict.case, verdict.device)
