"""What the repository that a command is called in knows, asked of `git` itself."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from equiv.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def git(option: str, where: Path, *command: str) -> bytes:
    """What `git` prints in a folder.

    Raises:
        UsageError: it fails; the message begins with the option of the command line that asked for it.
    """
    done = subprocess.run(["git", "-C", str(where), *command], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise UsageError(f"{option}: git {' '.join(command)}: {said}")
    return done.stdout
