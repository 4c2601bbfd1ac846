"""The compiler of the C side: which one, with which flags, and what another choice changes: nothing but the library."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equiv import ccode
from equiv.errors import EquivError, UnsupportedError

SUPPORT = Path(__file__).parent / "support"
BUILDS = [("gcc", "-march=x86-64-v3"), ("gcc", "-march=x86-64"), ("clang", "-march=native"), ("clang", "-march=x86-64")]


def test_without_a_compiler_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UnsupportedError, match="neither gcc nor clang is there") as caught:
        ccode.compiler()
    assert caught.value.needs == "tool:gcc"


def test_cc_names_the_compiler_and_one_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc")
    assert Path(ccode.compiler()).name == "cc"
    monkeypatch.setenv("CC", "tcc-of-nobody")
    with pytest.raises(UnsupportedError, match=r"\$CC is 'tcc-of-nobody', which is not there"):
        ccode.compiler()


def test_other_flags_are_another_library_and_wrong_ones_are_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path))
    text = "int answer(void) { return 42; }\n"
    native = ccode.build("answer", text, [])
    monkeypatch.setenv("EQUIV_CFLAGS", "-O1 -DUNUSED")
    assert ccode.tuning()[0] == ("-O1", "-DUNUSED")
    other = ccode.build("answer", text, [])
    assert other != native
    assert sorted(tmp_path.iterdir()) == sorted([native, other])
    assert ccode.library("answer", text, []).answer() == 42
    monkeypatch.setenv("EQUIV_CFLAGS", "-march=abacus")
    with pytest.raises(UnsupportedError, match=r"-march=abacus .* does not run: .*abacus"):
        ccode.build("answer", text, [])


def test_text_that_does_not_compile_is_an_error_with_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path))
    with pytest.raises(EquivError, match=r"failed on the code of wrong-[0-9a-f]{20}:\n(.|\n)*undeclared_thing"):
        ccode.build("wrong", "int f(void) { return undeclared_thing; }\n", [])
    assert list(tmp_path.iterdir()) == []


def results(**environment: str) -> dict[str, str]:
    """Digests of what a process computes whose C code is built with these variables."""
    command = [sys.executable, str(SUPPORT / "computed.py")]
    clean = {name: value for name, value in os.environ.items() if name not in {"CC", "EQUIV_CFLAGS"}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**clean, **environment})
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def usual() -> dict[str, str]:
    return results()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are for x86-64")
@pytest.mark.parametrize(("compiler", "flags"), BUILDS)
def test_kernels_and_twins_give_the_same_bits_whatever_compiles_them(
    compiler: str, flags: str, usual: dict[str, str], tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    assert results(CC=compiler, EQUIV_CFLAGS=flags, EQUIV_CACHE_DIR=str(tmp_path)) == usual
    assert len(list(tmp_path.glob("**/*.so"))) >= 4
