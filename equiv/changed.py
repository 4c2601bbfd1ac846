"""Which cases a change can affect, for `equiv run --changed BASE`.

A pair is affected by a changed file that its modules reach through imports, also those inside functions and those named
as `module:name` in a string, as parties are; by a file that is no module through the package that holds it; and by the
line itself (runner, comparison, emulator), which every pair runs on. A changed case file affects the cases in it that
are new or read differently. Imports are read from the source, nothing is executed.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections import deque
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from equiv import casefile, pairs
from equiv.errors import CaseFileError
from equiv.git import git

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from equiv.records import Case

LINE = ("equiv.verify", "equiv.workers", "equiv.device", "equiv.emulator.device")
"""What every pair runs on."""
EVERYTHING = ("pyproject.toml", "constraints.txt")
"""Files that say which versions compile the kernels."""
_NAMED = re.compile(r"[A-Za-z_]\w*((\.[A-Za-z_]\w*)+|(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Selection:
    """What is left of some cases.

    Attributes:
        cases: those that the change can affect.
        reasons: a line for each pair: why its cases, or some of them, are among these, or why none is.
    """

    cases: tuple[Case, ...]
    reasons: tuple[str, ...]


def select(wanted: Sequence[Case], base: str, directory: Path | None = None) -> Selection:
    """The wanted cases that what changed since `base` can affect.

    Args:
        wanted: cases of any pairs.
        base: a git revision; changes are those since its merge base with HEAD, uncommitted and untracked files too.
        directory: the folder of the case files, as for the run.

    Raises:
        UsageError: this is no git repository, or it has no such revision.
    """
    root = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel").strip())
    start = _git(root, "merge-base", base, "HEAD").strip()
    files = {
        *_git(root, "diff", "--name-only", "--no-renames", start).splitlines(),
        *_git(root, "ls-files", "--others", "--exclude-standard").splitlines(),
    }
    by_pair: dict[str, list[Case]] = {}
    for case in wanted:
        by_pair.setdefault(case.pair, []).append(case)
    kept: list[Case] = []
    reasons = []
    for name, cases in by_pair.items():
        path = casefile.case_file(name, directory).resolve()
        if reason := _reached(root, name, files):
            kept += cases
            reasons.append(f"{name}, all {len(cases)} cases: {reason}")
        elif path.is_relative_to(root) and str(path.relative_to(root)) in files:
            before = _before(root, start, path, pairs.get(name))
            changed = [case for case in cases if before.get(case.id) != case]
            kept += changed
            reasons.append(f"{name}, {len(changed)} of {len(cases)} cases: new or changed in {path.relative_to(root)}")
        else:
            reasons.append(f"{name}, no case: none of the {len(files)} changed file(s) can affect it")
    return Selection(tuple(kept), tuple(reasons))


def _git(where: Path, *command: str) -> str:
    return git("--changed", where, *command).decode()


def _before(root: Path, start: str, path: Path, pair: pairs.Pair) -> dict[str, Case]:
    """Cases of a file as it was, by id; none if it was not there or could not be read."""
    name = str(path.relative_to(root))
    if name not in _git(root, "ls-tree", "-r", "--name-only", start, "--", name).splitlines():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / path.name
        old.write_text(_git(root, "show", f"{start}:{name}"))
        try:
            found = casefile.load(old, pair)
        except CaseFileError:
            return {}  # it was broken: every case of it is new
    now = {case.id: case for case in casefile.load(path, pair)}
    # Where a case stands in its file does not matter.
    return {case.id: now[case.id] for case in found if case.id in now and _same(case, now[case.id])}


def _same(one: Case, other: Case) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("seed", "suites", "axes", "regimes"))


def _reached(root: Path, pair: str, files: Iterable[str]) -> str:
    """Why a changed file affects a pair, or ""; the first reason in the order of the files' names."""
    reached = _reach(root, pairs.homes(pair))
    for name in sorted(files):
        if name in EVERYTHING:
            return f"{name} changed"
        chain = reached.get(name) or _of_package(name, reached)
        if chain:
            through = f" through {', '.join(chain[1:-1])}" if chain[1:-1] else ""
            return f"{name} changed, which {chain[0]} reaches{through}" if chain[1:] else f"{name} changed"
    return ""


def _of_package(name: str, reached: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """How a file that is no module is reached: as the nearest package above it is."""
    if name.endswith(".py"):
        return ()
    for folder in Path(name).parents:
        if chain := reached.get(str(folder / "__init__.py")):
            return chain
    return ()


@cache
def _reach(root: Path, homes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """File below `root` -> modules from the start to it, for what a pair's module and the line reach."""
    found: dict[str, tuple[str, ...]] = {}
    waiting: deque[tuple[str, tuple[str, ...]]] = deque((module, (module,)) for module in (*homes, *LINE))
    seen: set[str] = set()
    while waiting:
        module, chain = waiting.popleft()
        if module in seen:
            continue
        seen.add(module)
        source = _source(module)
        if source is None or not source.is_relative_to(root):
            continue
        found.setdefault(str(source.relative_to(root)), chain)
        package = module if source.name == "__init__.py" else module.rpartition(".")[0]
        parents = [module.rpartition(".")[0]] if "." in module else []
        for other in (*parents, *_imported(source, package)):
            waiting.append((other, (*chain, other)))
    return found


def _source(module: str) -> Path | None:
    """The file of a module, without importing the packages above it; None if it has none."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # `__main__`, which a script makes without one
        return None
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    if not rest:
        return Path(spec.origin).resolve()
    below = Path(spec.origin).parent.joinpath(*rest)
    for path in (below.with_suffix(".py"), below / "__init__.py"):
        if path.is_file():
            return path.resolve()
    return None


@cache
def _imported(source: Path, package: str) -> tuple[str, ...]:
    """Modules, or what may be one, that a file imports or names as `module:name`."""
    return tuple(dict.fromkeys(_names(ast.parse(source.read_text()), package)))


def _names(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)  # a submodule, or a name that is none
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.fullmatch(node.value):
            yield node.value.partition(":")[0]
