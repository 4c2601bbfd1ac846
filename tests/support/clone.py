"""A user's clone: the tracked package and case files in a folder of their own, a git repository with one commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Clone:
    """A folder in which commands run as its owner types them; `equiv` is the package of the folder."""

    home: Path

    def git(self, *words: str) -> None:
        """A git command that must work, without any configuration of the machine's user."""
        who = ["-c", "user.name=u", "-c", "user.email=u@localhost", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *who, *words], cwd=self.home, check=True, capture_output=True)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replaces text that stands once in a file."""
        path = self.home / file
        text = path.read_text()
        assert text.count(old) == 1, f"{text.count(old)} times in {file}: {old!r}"
        path.write_text(text.replace(old, new))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`equiv` with these words, begun."""
        path = os.pathsep.join([str(self.home), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, "-m", "equiv.cli", *words],
            cwd=self.home,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def equiv(self, *words: str, ends: int) -> tuple[str, str]:
        """What `equiv` with these words prints on stdout and stderr, which must end with the code `ends`."""
        process = self.start(*words)
        try:
            said, complained = process.communicate(timeout=600)
        finally:
            process.kill()
        assert process.returncode == ends, f"equiv {' '.join(words)}: {process.returncode}\n{said}\n{complained}"
        return said, complained


def make(home: Path) -> Clone:
    """The clone, committed."""
    for name in ("equiv", "cases"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, home / name)
    clone = Clone(home)
    (home / ".gitignore").write_text("__pycache__/\n/runs/\n")
    clone.git("init")
    clone.git("add", ".")
    clone.git("commit", "-m", "as shipped")
    return clone
