"""The command `equiv report RUN...`: one run or many, from their journals, on the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import journal
from equiv.errors import UsageError
from equiv.history import nights, turns
from equiv.report import html, nightly
from equiv.report.outcome import exit_code

if TYPE_CHECKING:
    import argparse


def add_parser(commands: Any) -> None:  # noqa: ANN401
    """Adds `report` to the commands."""
    report = commands.add_parser(
        "report", help="runs from their journals: shards put together, and since when what fails"
    )
    report.add_argument(
        "journals", nargs="+", type=Path, metavar="RUN", help="a journal of `equiv run`, or a folder of them"
    )
    report.add_argument("--html", type=Path, metavar="FILE", help="write one page that needs nothing else")
    report.add_argument("--strict", action="store_true", help="WITHIN fails")
    report.add_argument("--require", action="store_true", help="UNSUPPORTED fails")
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    """What the newest run came to, as `equiv run` says it; 1 also if a shard of it is missing."""
    paths = [
        path for given in options.journals for path in (sorted(given.glob("*.jsonl")) if given.is_dir() else [given])
    ]
    if not paths:
        raise UsageError(f"no journal in {', '.join(map(str, options.journals))}")
    found = nights([journal.read(path) for path in paths])
    print(nightly.render(found, turns(found)), end="")
    if options.html:
        try:
            options.html.write_text(html.render(found, turns(found)), encoding="utf-8", errors="xmlcharrefreplace")
        except OSError as error:
            raise UsageError(f"{options.html}: cannot be written: {error.strerror}") from error
    newest = found[-1]
    return exit_code(newest.verdicts, strict=options.strict, require=options.require) or int(bool(newest.missing))
