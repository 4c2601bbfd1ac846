"""Packages installed by pip into folders of their own, and the command in a process that sees them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def install(package: Path, folder: Path) -> dict[str, str]:
    """Installs a copy of a package below `folder`, and gives the environment in which it is there."""
    source, site = folder / "source", folder / "site"
    shutil.copytree(package, source)  # building leaves files beside the sources
    options = ["-q", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    subprocess.run(command, check=True)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), os.environ["PYTHONPATH"]])}


def equiv(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder."""
    command = [sys.executable, "-m", "equiv.cli", *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
