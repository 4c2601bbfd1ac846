"""What the source tree promises about itself: imports go one way, light commands stay light, modules stay small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "equiv"
MODULES = sorted(PACKAGE.rglob("*.py"))
LIMIT = 400

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "records",
        "arguments",
        "cache",
        "ccode",
        "entries",
        "fields",
        "geometry",
        "git",
        "packages",
        "terminal",
    ),
    ("gpus", "rounding"),
    ("emulator", "envelope", "inputs", "buffers", "patterns", "spread"),
    ("casefile", "pairs", "kernels", "compare", "device", "dsa_index", "dsa_front", "kda"),
    ("runner",),
    ("verify", "order", "explain", "stored", "shrink", "shrink_values"),
    ("wire", "workers"),
    ("journal", "plan", "report", "changed", "history", "drawn", "ray_engine"),
    ("dump", "dump_compare", "bundle", "journaled"),
    (
        "commands",
        "determinism",
        "running",
        "soak",
        "budget",
        "reporting",
        "debugging",
        "doctor",
        "bench",
        "mutate",
        "trail",
        "new_pair",
        "skeleton",
    ),
    ("cli", "pytest_plugin"),
)
"""From left to right: a module imports from its own layer and from those before it, never from one behind it."""

KERNELS = ("triton_ref", "cute")
"""Beside the layers: what a stranger can take as it is. They know torch, their DSL, sizes, formats and errors."""

FOR_KERNELS = ("errors", "geometry", "rounding.formats")
PARTIES = "parties"
"""A pair's module of that name calls the kernels; nothing else imports them, but for what measures their speed."""


def unit(module: Path) -> str:
    """`rounding` of `equiv/rounding/formats.py`, `pairs` of `equiv/pairs.py`, "" of the package itself."""
    first = module.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(module: Path) -> Iterator[str]:
    """What a module imports of the package, without the leading `equiv.`; also inside functions and for types only."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            if node.module == "equiv":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("equiv."):
                yield node.module.removeprefix("equiv.")
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("equiv.") for alias in node.names if alias.name.startswith("equiv."))


def layer(name: str) -> int:
    found = [at for at, names in enumerate(LAYERS) if name in names]
    assert found, f"module {name!r} is in no layer: give it one"
    return found[0]


def typing_only(module: Path) -> set[str]:
    """What a module imports for its hints alone: these imports run nothing."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found |= {
                inner.module.removeprefix("equiv.")
                for inner in ast.walk(node)
                if isinstance(inner, ast.ImportFrom) and inner.module
            }
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_go_one_way(module: Path) -> None:
    own = unit(module)
    if not own:
        return
    wrong = []
    for name in set(imported(module)) - typing_only(module):
        other = name.partition(".")[0]
        if own in KERNELS:
            allowed = other == own or any(name == known or name.startswith(f"{known}.") for known in FOR_KERNELS)
        elif other in KERNELS:
            allowed = module.stem == PARTIES or own in ("bench", "skeleton")  # the skeleton is to be somebody else's
        else:
            allowed = layer(other) <= layer(own)
        if not allowed:
            wrong.append(name)
    assert not wrong, f"{own} must not import {', '.join(wrong)}"


@pytest.mark.parametrize(
    "module", [module for module in MODULES if unit(module) in KERNELS], ids=lambda path: path.name
)
def test_kernels_take_plain_arguments_and_know_no_case_even_for_their_hints(module: Path) -> None:
    known = {name for name in imported(module) if name.partition(".")[0] != unit(module)}
    assert {name for name in known if not name.startswith(FOR_KERNELS)} == set()


@pytest.mark.parametrize("module", ["equiv.triton_ref.dsa", "equiv.cute.dsa.index"])
def test_a_kernel_loads_nothing_of_the_line(module: str) -> None:
    program = f"import sys, {module}\nprint(*sorted(name for name in sys.modules if name.startswith('equiv.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    found = {name.split(".")[1] for name in done.stdout.splitlines()[-1].split()}
    assert found <= {module.split(".")[1], "errors", "geometry"}


def test_the_import_check_sees_what_it_should() -> None:
    assert "triton_ref.dsa" in set(imported(PACKAGE / "dsa_index" / "parties.py"))
    assert "report" in set(imported(PACKAGE / "running.py"))
    assert "device" in set(imported(PACKAGE / "workers.py"))  # inside a function
    assert layer("cli") > layer("report") > layer("verify") > layer("rounding") > layer("errors")
    assert "pairs" in typing_only(PACKAGE / "runner.py")


HEAVY = ("torch", "triton", "cutlass", "equiv.emulator")


def loaded(program: str) -> set[str]:
    """Which heavy modules a program has loaded at its end."""
    check = f"\nimport sys\nprint('LOADED', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program + check], capture_output=True, text=True, check=True, cwd=ROOT)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    return set(line.split()[1:])


@pytest.mark.parametrize(
    "program",
    [
        "import equiv; equiv.Status, equiv.Verdict, equiv.Case, equiv.device",
        "from equiv.cli import main; main(['list', 'dsa_index'])",
        "from equiv.cli import main; main(['list', 'dsa_index', '--json'])",
        "from equiv.cli import main; main(['rounding', 'dsa_index'])",
        "import equiv.pytest_plugin",
    ],
)
def test_what_is_light_loads_neither_torch_nor_a_compiler(program: str) -> None:
    assert loaded(program) == set()


def test_the_check_for_heavy_modules_finds_them() -> None:
    assert loaded("import torch") == {"torch"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_a_module_is_one_idea_of_at_most_400_lines_with_a_docstring(module: Path) -> None:
    text = module.read_text()
    assert len(text.splitlines()) <= LIMIT
    assert not text.strip() or ast.get_docstring(ast.parse(text))


TREE = [
    path
    for pattern in ("*.py", "*.md", "*.toml", "*.c", "*.h", "*.txt", "*.yml", "Makefile", ".ci/*")
    for path in ROOT.rglob(pattern)
    if path.is_file() and not {".git", ".venv", "runs", "__pycache__"} & set(path.relative_to(ROOT).parts)
]
MACHINE = re.compile(
    r"(?<![\w.])/(?:work|home|root|Users|tmp/v|mnt|data)/|index-url|pypi\.\w+\.(?:internal|corp|local)"
)


@pytest.mark.parametrize("path", TREE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_names_a_place_of_one_machine(path: Path) -> None:
    if path == Path(__file__):
        return
    found = [line for line in path.read_text().splitlines() if MACHINE.search(line)]
    assert found == []


def test_every_name_of_the_public_interface_exists_and_stays_callable_when_its_module_is_imported() -> None:
    program = (
        "import equiv, equiv.device, equiv.verify\n"
        "assert all(getattr(equiv, name) is not None for name in equiv.__all__)\n"
        "assert callable(equiv.device) and callable(equiv.verify)\n"
        "try: equiv.device('abacus:1')\n"
        "except equiv.EquivError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "no device named 'abacus:1'; known: emulated:sm_90a, emulated:sm_100a, cuda:N, cuda\n"


def test_a_name_that_is_not_public_is_refused() -> None:
    import equiv

    with pytest.raises(AttributeError, match="module 'equiv' has no attribute 'verfiy'"):
        equiv.verfiy  # noqa: B018
