"""What a change can affect: pairs by what their modules reach, cases by how they read, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from equiv import casefile, changed, cli, pairs
from equiv.changed import select
from equiv.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.records import Case

CASES = Path(__file__).parent / "support" / "cases"
SOURCES = {
    "mini/__init__.py": 'PARTY = "mini.parties:oracle"\n',
    "mini/parties.py": "def oracle() -> None:\n    from mini import kernel\n    from .deep.helper import x\n",
    "mini/kernel.py": "import json\n",
    "mini/deep/__init__.py": "",
    "mini/deep/helper.py": "x = 1\n",
    "mini/deep/table.inc": "1, 2\n",
    "mini/alone.py": "",
    "README.md": "words\n",
    "pyproject.toml": "",
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed repository with a pair's package and the case file of `fake`, whose home is that package."""
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "cases").mkdir()
    shutil.copy(CASES / "fake.toml", tmp_path / "cases")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pairs, "homes", lambda _name: ("mini",))
    changed._reach.cache_clear()
    changed._imported.cache_clear()
    return tmp_path


def git(where: Path, *command: str) -> None:
    subprocess.run(["git", "-C", str(where), *command], check=True)


def cases(repository: Path) -> tuple[Case, ...]:
    return casefile.load(repository / "cases" / "fake.toml")


def chosen(repository: Path) -> tuple[list[str], str]:
    found = select(cases(repository), "HEAD", repository / "cases")
    return [case.id for case in found.cases], found.reasons[0]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("mini/__init__.py", "mini/__init__.py changed"),
        ("mini/parties.py", "mini/parties.py changed, which mini reaches"),
        ("mini/kernel.py", "mini/kernel.py changed, which mini reaches through mini.parties"),
        ("mini/deep/helper.py", "mini/deep/helper.py changed, which mini reaches through mini.parties"),
        ("mini/deep/table.inc", "mini/deep/table.inc changed, which mini reaches through mini.parties, mini.deep"),
        ("pyproject.toml", "pyproject.toml changed"),
    ],
)
def test_what_a_pair_reaches_selects_all_of_its_cases_and_says_how(repository: Path, file: str, reason: str) -> None:
    (repository / file).write_text(SOURCES[file] + "\n")
    ids, said = chosen(repository)
    assert len(ids) == len(cases(repository))
    assert said.startswith(f"fake, all {len(ids)} cases: {reason}")


@pytest.mark.parametrize("file", ["mini/alone.py", "README.md", "new.txt"])
def test_what_no_pair_reaches_selects_nothing(repository: Path, file: str) -> None:
    (repository / file).write_text("# other\n")
    assert chosen(repository) == ([], "fake, no case: none of the 1 changed file(s) can affect it")


def test_of_a_changed_case_file_the_cases_that_read_differently_are_taken(repository: Path) -> None:
    file = repository / "cases" / "fake.toml"
    text = file.read_text().replace('id = "wrong"\nwhy', 'id = "wrong"\n# a comment\nwhy', 1)
    before = cases(repository)
    assert "behaviour" in before[0].axes
    file.write_text("# moved down by a line\n" + text)
    assert chosen(repository)[0] == []
    file.write_text(text.replace("seed = 2", "seed = 99", 1) + file.read_text()[:0])
    ids, said = chosen(repository)
    assert ids == ["wrong"]
    assert said == f"fake, 1 of {len(before)} cases: new or changed in cases/fake.toml"


def test_a_committed_change_counts_since_the_merge_base_and_a_case_that_is_new_is_taken(repository: Path) -> None:
    file = repository / "cases" / "fake.toml"
    first = file.read_text()
    new = first[first.index("[[case]]") :].split("[[case]]")[1].replace('id = "good"', 'id = "good-too"')
    file.write_text(f"{first}\n[[case]]{new}")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "second")
    found = select(cases(repository), "HEAD~1", repository / "cases")
    assert [case.id for case in found.cases] == ["good-too"]
    assert select(cases(repository), "HEAD", repository / "cases").cases == ()


def test_a_revision_that_is_none_and_a_folder_that_is_no_repository_are_usage_errors(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"--changed: git merge-base nowhere HEAD: .*nowhere"):
        select(cases(repository), "nowhere", repository / "cases")
    monkeypatch.chdir(tmp_path_factory.mktemp("bare"))
    with pytest.raises(UsageError, match=r"--changed: git rev-parse --show-toplevel: .*not a git repository"):
        select(cases(repository), "HEAD", repository / "cases")


def test_a_run_in_which_nothing_can_be_affected_says_so_and_succeeds(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "--cases", "cases", "fake::good", "--changed", "HEAD"]) == 0
    out = capsys.readouterr()
    assert "fake, no case: none of the 0 changed file(s) can affect it" in out.err
    assert out.out == "no case is affected by what changed since HEAD: nothing was run\n"
    assert not (repository / "runs").exists()


def test_kernels_models_and_the_emulator_s_c_code_are_reached_by_the_shipped_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(changed.__file__).parents[1].resolve()
    reached: Callable[[str], str] = lambda file: changed._reached(root, "dsa_index", [file])  # noqa: E731
    assert reached("equiv/cute/convert.py").endswith("through equiv.dsa_index.parties, equiv.cute.dsa.index")
    assert reached("equiv/triton_ref/dsa.py")
    assert reached("equiv/rounding/csrc/numerics.h")
    assert reached("equiv/emulator/csrc/engine.c")
    assert reached("equiv/rounding/dsa_ledger.py")
    assert reached("equiv/bench/micro.py") == ""
    assert reached("tests/test_changed.py") == ""


def test_a_case_is_the_same_wherever_it_stands() -> None:
    one = casefile.load(CASES / "fake.toml")[0]
    assert changed._same(one, replace(one, origin="elsewhere", why="other words"))
    assert not changed._same(one, replace(one, seed=one.seed + 1))
