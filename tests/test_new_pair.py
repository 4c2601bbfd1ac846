"""`equiv new-pair`: what it writes is a package that installs and runs as it is, and that notices a wrong kernel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from installed import equiv, install

from equiv import cli
from equiv.errors import UsageError
from equiv.new_pair import STANDIN, write

if TYPE_CHECKING:
    from pathlib import Path

FILES = [
    "pyproject.toml",
    "tidy_rows/__init__.py",
    "tidy_rows/candidate.py",
    "tidy_rows/cases/tidy_rows.toml",
    "tidy_rows/numbers.py",
    "tidy_rows/oracle.py",
    "tidy_rows/orders.json",
    "tests/test_tidy_rows.py",
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "tidy"
    write("tidy_rows", folder)
    return folder


@pytest.fixture(scope="module")
def environment(package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return install(package, tmp_path_factory.mktemp("installed"))


def test_it_writes_the_files_and_says_what_to_do_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-pair", "tidy_rows"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert sorted(said[: len(FILES)]) == sorted(f"tidy_rows/{name}" for name in FILES)
    assert said[len(FILES) :] == [
        "", "next:", "  pip install -e tidy_rows", "  equiv run tidy_rows", "  equiv rounding tidy_rows",
    ]  # fmt: skip
    found = [path for path in (tmp_path / "tidy_rows").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "tidy_rows")) for path in found) == sorted(FILES)
    assert not [path for path in found if STANDIN in path.read_text() or "skeleton" in path.read_text()]
    assert 'name = "tidy-rows"' in (tmp_path / "tidy_rows" / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "name", ["Rows", "1row", "tidy-rows", "tidy__rows", "rows_", "", "class", "../rows", "r" * 41, "rows.py", "réseau"]
)
def test_a_name_that_is_no_python_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a lower-case Python name of at most 40"):
        write(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_names_that_are_taken_and_folders_that_are_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="new-pair 'kda': a pair of that name is installed"):
        write("kda", tmp_path / "new")
    with pytest.raises(UsageError, match="new-pair 'numpy': a Python module of that name is installed"):
        write("numpy", tmp_path / "new")
    (tmp_path / "new").mkdir()
    with pytest.raises(UsageError, match="new: is there already; nothing was written"):
        write("tidy_rows", tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file.*: cannot be written: "):
        write("tidy_rows", tmp_path / "file" / "new")


def test_the_installed_package_brings_its_cases_and_is_green_from_any_folder(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = equiv(environment, tmp_path, "run", "tidy_rows", "--device", "emulated:sm_90a", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    found = {entry["case"].partition("::")[2]: entry for entry in report["verdicts"]}
    if found["random"]["toolchain"] != {"triton": "3.8.0", "nvidia-cutlass-dsl": "4.8.1"}:  # those of `orders.json`
        assert {entry["status"] for entry in found.values()} == {"WITHIN"}
        return
    assert {name: entry["status"] for name, entry in found.items()} == {
        "random": "REORDERED", "one-row": "IDENTICAL", "wide": "IDENTICAL", "zero-rows": "IDENTICAL",
        "small-eps": "IDENTICAL",
    }  # fmt: skip
    order, variant = found["random"]["declared"]
    assert order.startswith("order squares: oracle fma(x0, x1), then ")
    assert variant == "norm.4 (x * rstd * w): oracle row first, candidate weight first"


def test_the_orders_that_come_with_it_are_those_that_are_traced(
    environment: dict[str, str], package: Path, tmp_path: Path
) -> None:
    done = equiv(environment, tmp_path, "order", "tidy_rows", "--device", "emulated:sm_90a", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    shipped = json.loads((package / "tidy_rows" / "orders.json").read_text())["declarations"]
    traced = json.loads(done.stdout)["declarations"]
    assert [one["party"] for one in traced] == ["oracle", "candidate"]
    for one in traced:
        of_these_versions = [
            other for other in shipped if all(other[key] == one[key] for key in ("party", "arch", "toolchain"))
        ]
        assert of_these_versions in ([one], [])


def test_a_kernel_that_does_not_do_what_it_declares_is_a_mismatch(
    environment: dict[str, str], package: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    write("tidy_rows", changed)
    numbers = changed / "tidy_rows" / "numbers.py"
    numbers.write_text(numbers.read_text().replace('"candidate": {"norm.4": "weight first"}', '"candidate": {}'))
    environment = environment | {"PYTHONPATH": f"{changed}:{environment['PYTHONPATH']}"}
    done = equiv(environment, tmp_path, "run", "tidy_rows::random", "--device", "emulated:sm_90a", "-j1")
    assert done.returncode == 1
    assert "y: MISMATCH (candidate): the candidate differs from its model in " in done.stdout
