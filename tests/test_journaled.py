"""A command goes on with its own journals only, and says whose another one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from equiv import cli
from equiv.journal import Journal
from equiv.report import environment
from equiv.wire import Planned

PLAN = [Planned("fake::good", "emulated:sm_90a", 1, "")]
KEPT = {"shard": "", "check": "", "record": "", "cases": "", "repeats": "2", "only": ""}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The working directory is empty."""
    monkeypatch.chdir(tmp_path)


def refused(command: str, settings: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says of a journal with these settings, which it must leave as it is."""
    with Journal(Path("j.jsonl"), fresh=True) as book:
        book.plan(PLAN, environment.versions(), {**KEPT, **settings})
    before = Path("j.jsonl").read_bytes()
    assert cli.main([command, "--resume", "j.jsonl"]) == 2
    assert Path("j.jsonl").read_bytes() == before
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "settings", "other"),
    [
        ("run", {"command": "determinism"}, "determinism"),
        ("determinism", {"command": "run"}, "run"),
        ("determinism", {}, "run"),  # as it was before journals said whose they are
    ],
)
def test_another_commands_journal_is_refused_and_both_are_named(
    command: str, settings: dict[str, str], other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(command, settings, capsys) == (
        f"equiv: --resume j.jsonl: a journal of `equiv {other}`, not of `equiv {command}`: "
        f"`equiv {other} --resume j.jsonl` goes on with it\n"
    )


@pytest.mark.parametrize("command", ["run", "determinism"])
def test_a_soaks_journal_is_gone_on_with_by_the_soak(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(command, {"soak": "fake --seed 6", "draws": "0"}, capsys)
    assert "a soak's journal: the same `equiv soak fake --seed 6 ...` with --journal j.jsonl goes on with it" in said
