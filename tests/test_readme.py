"""What the README quotes from the code is what the code says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import cli

if TYPE_CHECKING:
    import pytest

README = Path(__file__).parent.parent / "README.md"
QUOTED = re.compile(r"<!-- equiv (.+?) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def test_every_quoted_output_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    quoted = QUOTED.findall(README.read_text())
    assert [command for command, _ in quoted] == ["rounding dsa_index --markdown"]
    for command, said in quoted:
        assert cli.main(command.split()) == 0
        assert said == capsys.readouterr().out, f"paste the output of `equiv {command}` into README.md"


COMMAND = re.compile(r"^ {4,}(?:- )?(?:run: |\$ )?equiv (?P<line>[^#\n]*)", re.MULTILINE)


def test_every_command_it_shows_can_be_read() -> None:
    shown = [shlex.split(found["line"]) for found in COMMAND.finditer(README.read_text())]
    shown = [line for line in shown if not any(word.startswith("[") for word in line)]
    assert {"run", "report", "explain", "repro", "dump", "rounding"} <= {line[0] for line in shown}
    for line in shown:
        options = cli._parser().parse_args(line)
        assert callable(options.command), line
