"""The command `equiv report RUN...`: one run or many, from their journals, on the terminal or as a page.

Runs of `equiv determinism` are a series of their own: they ask something else of the same cases.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import journal
from equiv.determinism import conditions
from equiv.errors import UsageError
from equiv.history import nights, turns
from equiv.report import determinism, html, nightly, text
from equiv.report.outcome import exit_code

if TYPE_CHECKING:
    import argparse

    from equiv.history import Night


def add_parser(commands: Any) -> None:  # noqa: ANN401
    """Adds `report` to the commands."""
    report = commands.add_parser(
        "report", help="runs from their journals: shards put together, and since when what fails"
    )
    report.add_argument(
        "journals", nargs="+", type=Path, metavar="RUN", help="a journal of any command, or a folder of them"
    )
    report.add_argument("--html", type=Path, metavar="FILE", help="write one page that needs nothing else")
    report.add_argument("--strict", action="store_true", help="WITHIN fails")
    report.add_argument("--require", action="store_true", help="UNSUPPORTED fails")
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    """What the newest run of each command came to, as the command says it; 1 also if a shard of one is missing."""
    paths = [
        path for given in options.journals for path in (sorted(given.glob("*.jsonl")) if given.is_dir() else [given])
    ]
    if not paths:
        raise UsageError(f"no journal in {', '.join(map(str, options.journals))}")
    runs: dict[str, list[journal.Run]] = {"run": [], "determinism": []}
    for path in paths:
        run = journal.read(path)
        runs["determinism" if run.command == "determinism" else "run"].append(run)
    series = {command: nights(some) for command, some in runs.items() if some}
    parts, codes = [], []
    for command, found in series.items():
        head = f"equiv {command}\n\n" if len(series) > 1 else ""
        parts.append(head + nightly.render(found, turns(found), _whole(command, found[-1])))
        codes.append(_code(command, found[-1], options))
    print("\n".join(parts), end="")
    if options.html:
        page = html.render({command: (found, turns(found)) for command, found in series.items()})
        try:
            options.html.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
        except OSError as error:
            raise UsageError(f"{options.html}: cannot be written: {error.strerror}") from error
    return 1 if 1 in codes else min(codes)


def _whole(command: str, newest: Night) -> nightly.Report:
    """What a command says of its newest run."""
    if command != "determinism":
        return text.render
    return partial(determinism.render, conditions=conditions(newest.settings["only"].split()))


def _code(command: str, newest: Night, options: argparse.Namespace) -> int:
    if command == "determinism":
        code = determinism.exit_code(newest.verdicts, require=options.require)
    else:
        code = exit_code(newest.verdicts, strict=options.strict, require=options.require)
    return code or int(bool(newest.missing))
