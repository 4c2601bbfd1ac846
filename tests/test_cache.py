"""The cache directory and its atomic writes."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

from equiv.cache import cache_dir, write_atomic
from equiv.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_variable_names_the_directory_and_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert cache_dir() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_it_is_under_the_home_directory(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("EQUIV_CACHE_DIR", raising=False)
    else:
        monkeypatch.setenv("EQUIV_CACHE_DIR", value)
    assert cache_dir() == tmp_path / ".cache" / "equiv"


def test_a_written_file_has_the_bytes_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.bin"
    write_atomic(target, b"first")
    write_atomic(target, b"second")
    assert target.read_bytes() == b"second"
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.mkdir()  # a directory cannot be replaced by a file
    with pytest.raises(OSError, match=r"file\.bin"):
        write_atomic(target, b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def _write_often(path: Path, byte: int) -> None:
    for _ in range(200):
        write_atomic(path, bytes([byte]) * 50_000)


def test_a_reader_never_sees_a_part_of_what_two_processes_write(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    write_atomic(target, b"\0" * 50_000)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(target, byte)) for byte in (1, 2)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        data = target.read_bytes()
        assert len(data) == 50_000
        assert len(set(data)) == 1
        seen.add(data[0])
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert target.read_bytes()[0] in {1, 2}
    assert seen <= {0, 1, 2}


def test_a_directory_that_cannot_be_made_is_a_usage_error_that_says_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(UsageError, match=r"file/cache: Not a directory: set EQUIV_CACHE_DIR to a folder that can be"):
        cache_dir()
