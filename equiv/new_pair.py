"""The command `equiv new-pair`: writes a package with a small operator that runs, to be replaced piece by piece."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import pairs
from equiv.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LONGEST = 40
STANDIN = "skeleton_name"
"""What the files say where the name is to go; with a hyphen in the name of the distribution."""


def add_parser(commands: Any) -> None:  # noqa: ANN401
    """Adds `new-pair` to the commands."""
    new = commands.add_parser("new-pair", help="write a package with a pair of your own: kernels, model, cases, a test")
    new.add_argument("name", metavar="NAME", help="of the pair and of its package: lower case, a Python name")
    new.add_argument("--dir", type=Path, metavar="D", help="folder to write, which must not be there (default ./NAME)")
    new.set_defaults(command=_new)


def _new(options: argparse.Namespace) -> int:
    folder = options.dir or Path(options.name)
    for path in write(options.name, folder):
        print(path)
    print(f"\nnext:\n  pip install -e {folder}\n  equiv run {options.name}\n  equiv rounding {options.name}")
    return 0


def write(name: str, folder: Path) -> list[Path]:
    """Writes the package `name` into a fresh folder; the files, in order.

    Raises:
        UsageError: the name is no good or taken, or the folder is there already or cannot be written.
    """
    _refuse(name)
    if folder.exists():
        raise UsageError(f"{folder}: is there already; nothing was written")
    written = []
    try:
        for at, source in _templates():
            path = folder / _named(at, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_named(source.read_text(encoding="utf-8"), name), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    return written


def _refuse(name: str) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > LONGEST:
        wanted = f"a lower-case Python name of at most {LONGEST} letters, digits and single underscores"
        raise UsageError(f"new-pair {name!r}: expected {wanted}")
    if name in pairs.names():
        raise UsageError(f"new-pair {name!r}: a pair of that name is installed")
    if find_spec(name):
        raise UsageError(f"new-pair {name!r}: a Python module of that name is installed, which the package would hide")


def _named(text: str, name: str) -> str:
    return text.replace(STANDIN, name).replace(STANDIN.replace("_", "-"), name.replace("_", "-"))


def _templates() -> Iterator[tuple[str, Traversable]]:
    """(path in the package, file) of all templates, sorted."""
    todo = [("", files("equiv.skeleton") / "files")]
    while todo:
        at, one = todo.pop()
        if one.is_file():
            yield at, one
        elif one.name != "__pycache__":
            todo += sorted(
                ((f"{at}/{below.name}".lstrip("/"), below) for below in one.iterdir()),
                key=lambda entry: entry[0],
                reverse=True,
            )
