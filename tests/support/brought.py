"""Packages that bring entry points, as installing them would leave them: a module and its `.dist-info`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def install(folder: Path, name: str, source: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Puts a module and the metadata of its distribution into a folder that is on the path."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1\n")
    lines = [
        line for group, named in points.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in named.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
