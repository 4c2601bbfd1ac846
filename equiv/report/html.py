"""Runs as one page of HTML that needs nothing else: no script, no network, light and dark.

The newest run's table, what fails and since when, a strip of the runs for every case that was ever bad, how much of
each envelope was used, and for every output that differs its distances, its places and its first elements.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from equiv.records import SEVERITY, Difference, OutputVerdict, Status, Verdict
from equiv.report import charts
from equiv.report.outcome import FAILING
from equiv.report.text import case_text
from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from equiv.history import Night, Turn

SHOWN = 20
"""Cases that are shown whole."""
ROWS = 200
"""Cases of the strip."""

STYLE = (
    """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #5d6873; --line: #d6dce1; --page: #fff; --mark: #2f6fb0;
  --good: #2e7d4f; --other: #7a8793; --warn: #b3780d; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5b0; --line: #3a424a; --page: #15191d;
  --mark: #6fa8dc; --good: #6cc08b; --other: #8d99a5; --warn: #e0ab4d; --bad: #f28b82; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
p, dt { color: var(--soft); } table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: .2rem .55rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, td.left, th.left { text-align: left; } td.none { color: var(--soft); }
th, td { white-space: nowrap; } .strip { margin-top: 1rem; } .strip td { border-color: var(--page); }
pre { background: color-mix(in srgb, var(--line) 35%, transparent); padding: .7rem; overflow-x: auto;
  font-size: .85rem; }
svg { overflow: visible; max-width: 100%; } svg text { font-size: 9px; fill: var(--soft); text-anchor: middle; }
.mark, .heat rect { fill: var(--mark); } .rail { fill: var(--line); } .cell { width: 1rem; height: 1rem; padding: 0; }
.IDENTICAL, .REORDERED { color: var(--good); } .WITHIN, .UNSUPPORTED { color: var(--warn); }
.MISMATCH, .ERROR, .NOT_RUN { color: var(--bad); font-weight: 600; }
td.cell.IDENTICAL, td.cell.REORDERED { background: var(--good); }
td.cell.WITHIN, td.cell.UNSUPPORTED { background: var(--warn); }
td.cell.MISMATCH, td.cell.ERROR, td.cell.NOT_RUN { background: var(--bad); }
figure { margin: .5rem 0; } figcaption { color: var(--soft); font-size: .85rem; }
"""
    + charts.STYLE
)


def render(series: Mapping[str, tuple[Sequence[Night], Sequence[Turn]]]) -> str:
    """The page; `series` are a command's runs, the last one the newest, and the cases that turned bad in them."""
    title = escape("; ".join(_title(command, nights[-1]) for command, (nights, _) in series.items()))
    body = "".join(part for command, (nights, turns) in series.items() for part in _part(command, nights, turns))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    page = f"<head>{head}<style>{STYLE}</style></head>\n<body>{body}</body>"
    return f'<!doctype html>\n<html lang="en">{page}</html>\n'


def _title(command: str, newest: Night) -> str:
    bad = sum(verdict.status in FAILING for verdict in newest.verdicts)
    name = "equiv" if command == "run" else f"equiv {command}"
    return f"{name}: {bad} of {len(newest.verdicts)} case(s) fail" if bad else f"{name}: every case is as declared"


def _part(command: str, nights: Sequence[Night], turns: Sequence[Turn]) -> Iterator[str]:
    newest = nights[-1]
    yield f"<h1>{escape(_title(command, newest))}</h1><p>run begun {escape(newest.started)}; {_environment(newest)}</p>"
    for shard in newest.missing:
        yield f"<p class='NOT_RUN'>shard {escape(shard)} is missing: this run is not whole</p>"
    yield f"<h2>Verdicts</h2>{_verdicts(newest)}"
    if turns and len(nights) > 1:
        yield f"<h2>Since when</h2>{_turns(turns)}"
    if len(nights) > 1:
        yield f"<h2>Runs</h2>{_runs(nights)}{_strip(nights)}"
    yield f"<h2>Envelopes used</h2>{_envelopes(newest)}"
    yield "<h2>Differences</h2>"
    yield from _differences(newest)


def _environment(night: Night) -> str:
    return escape(", ".join(f"{name} {version}" for name, version in night.environment.items()))


def _row(cells: Sequence[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    return f'<div class="wide"><table>{_row(head, "th")}{"".join(rows)}</table></div>'


def _count(status: Status, count: int) -> str:
    return f'<span class="{status}">{count}</span>' if count else "·"


def _verdicts(night: Night) -> str:
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in night.verdicts:
        groups.setdefault((verdict.case.partition("::")[0], verdict.device), []).append(verdict)
    rows = []
    for (pair, device), members in sorted(groups.items()):
        counts = Counter(verdict.status for verdict in members)
        seconds = sum(verdict.seconds for verdict in members)
        numbers = [_count(status, counts[status]) for status in SEVERITY]
        rows.append(_row([f"{escape(pair)} on {escape(device)}", *numbers, str(len(members)), f"{seconds:.1f}"]))
    return _table(["pair", *SEVERITY, "cases", "seconds"], rows)


def _turns(turns: Sequence[Turn]) -> str:
    rows = [
        _row(
            [
                f'<span class="{turn.status}">{turn.status}</span> {escape(turn.case)} on {escape(turn.device)}',
                escape(turn.since),
                escape(turn.before or "never in these runs"),
            ]
        )
        for turn in turns
    ]
    return _table(["case", "first bad run", "last good run"], rows)


def _runs(nights: Sequence[Night]) -> str:
    rows = []
    for night in nights:
        counts = Counter(verdict.status for verdict in night.verdicts)
        numbers = [_count(status, counts[status]) for status in SEVERITY]
        rows.append(_row([escape(night.started), *numbers, escape(", ".join(night.missing)) or "·"]))
    return _table(["run begun", *SEVERITY, "missing shards"], rows)


def _strip(nights: Sequence[Night]) -> str:
    """A row for every case that failed in any run, a cell for each run."""
    seen = [night.statuses for night in nights]
    keys = sorted({key for statuses in seen for key, status in statuses.items() if status in FAILING})
    if not keys:
        return "<p>No case failed in any of these runs.</p>"
    rows = []
    for key in keys[:ROWS]:
        cells = []
        for night, statuses in zip(nights, seen, strict=True):
            status = statuses.get(key)
            title = escape(f"{night.started}: {status or 'not planned'}", quote=True)
            cells.append(f'<td class="cell {status or "none"}" title="{title}"></td>')
        rows.append(f"<tr><td>{escape(f'{key[0]} on {key[1]}')}</td>{''.join(cells)}</tr>")
    more = f"<p>{len(keys) - ROWS} more are left out.</p>" if len(keys) > ROWS else ""
    return f'<div class="wide strip"><table>{"".join(rows)}</table></div>{more}'


def _envelopes(night: Night) -> str:
    """Of each output the largest share that any case used of its envelope."""
    most: dict[tuple[str, str], tuple[float, str]] = {}
    for verdict in night.verdicts:
        for output in verdict.outputs:
            if output.envelope_used is not None:
                key = (verdict.case.partition("::")[0], output.output)
                most[key] = max(most.get(key, (0.0, "")), (output.envelope_used, f"{verdict.case} on {verdict.device}"))
    if not most:
        return "<p>No output of this run was judged by an envelope.</p>"
    rows = [
        _row([f"{escape(pair)}: {escape(output)}", charts.share(used), f"{used:.1%}", escape(where)])
        for (pair, output), (used, where) in sorted(most.items())
    ]
    return _table(["output", "", "used at most", "by"], rows)


def _differences(night: Night) -> Iterator[str]:
    found = [verdict for verdict in night.verdicts if any(output.differences for output in verdict.outputs)]
    found.sort(key=lambda verdict: (-SEVERITY.index(verdict.status), verdict.case, verdict.device))
    if not found:
        yield "<p>No element of any output differs.</p>"
    for verdict in found[:SHOWN]:
        where = f"{escape(verdict.case)} on {escape(verdict.device)}"
        yield f'<h3><span class="{verdict.status}">{verdict.status}</span> {where}</h3>'
        for output in verdict.outputs:
            for difference in output.differences:
                yield _difference(output, difference)
        yield f"<details><summary>report</summary><pre>{escape(case_text(verdict))}</pre></details>"
    if len(found) > SHOWN:
        yield f"<p>{len(found) - SHOWN} more are in the journal.</p>"


def _difference(output: OutputVerdict, difference: Difference) -> str:
    said = f"{difference.output}: {difference.count} of {difference.total} differ, "
    said += f"{difference.left} against {difference.right}"
    said += f"; {difference.pattern}" if difference.pattern else ""
    used = "" if output.envelope_used is None else f"; {output.envelope_used:.1%} of the envelope used"
    parts = [f"<p>{escape(visible(said + used))}</p>"]
    if len(difference.ulps) == 1:
        parts.append(f"<p>distance in ulps: 1 in {difference.ulps[0]} elements</p>")
    elif difference.ulps:
        labels = [_range(bits) for bits in range(1, len(difference.ulps) + 1)]
        chart = charts.bars(difference.ulps, labels, "elements")
        parts.append(f"<figure>{chart}<figcaption>distance in ulps</figcaption></figure>")
    if difference.grid:
        chart = charts.heat(difference.grid, "part", "position")
        caption = "where: the last dimension across, all others down"
        parts.append(f"<figure>{chart}<figcaption>{caption}</figcaption></figure>")
        across = [sum(column) for column in zip(*difference.grid, strict=True)]
        down = [sum(row) for row in difference.grid]
        for counts, words in ((across, "along the last dimension"), (down, "along all others")):
            if len(counts) > 1:
                chart = charts.bars(counts, [str(at) for at in range(len(counts))], "elements")
                parts.append(f"<figure>{chart}<figcaption>{words}</figcaption></figure>")
    return "".join(parts)


def _range(bits: int) -> str:
    """The distances of so many bits: `1`, `2-3`, `4-7`, `2^10`."""
    if bits == 1:
        return "1"
    return f"{1 << (bits - 1)}-{(1 << bits) - 1}" if bits <= 7 else f"2^{bits - 1}"
