"""Small charts as SVG text for a page without scripts: bars, a heat map, a strip of statuses.

Colours go from the page's style sheet (`.mark`, `.s-MISMATCH`), and every mark has a title that says its number.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BAR_HEIGHT = 90
CELL = 12
LEVELS = 9
"""Opacities of a heat map, that of empty cells among them."""

STYLE = f".heat rect {{ width: {CELL - 1}px; height: {CELL - 1}px; }}\n" + "\n".join(
    f".heat .h{level} {{ fill-opacity: {0.2 + 0.8 * level / (LEVELS - 1) if level else 0.06:.2f}; }}"
    for level in range(LEVELS)
)
"""What a page's style sheet needs of cells, which are many."""


def bars(counts: Sequence[int], labels: Sequence[str], unit: str) -> str:
    """Vertical bars on a common baseline, the largest as high as the chart; `labels` stand below and in the titles.

    Args:
        counts: what each bar stands for, 0 or more.
        labels: one for each bar.
        unit: what is counted, `elements`.
    """
    width = max(14, min(46, 640 // max(1, len(counts))))
    top = max(counts, default=0) or 1
    parts = []
    for at, (count, label) in enumerate(zip(counts, labels, strict=True)):
        height = max(1 if count else 0, round(BAR_HEIGHT * count / top))
        x = at * width
        parts.append(
            f'<rect class="mark" x="{x + 1}" y="{BAR_HEIGHT - height}" width="{width - 2}" height="{height}">'
            f"<title>{escape(label)}: {count} {escape(unit)}</title></rect>"
        )
        if len(counts) <= 24 or at % 8 == 0:
            parts.append(f'<text x="{x + width / 2}" y="{BAR_HEIGHT + 12}">{escape(label)}</text>')
    size = (max(1, len(counts)) * width, BAR_HEIGHT + 18)
    return _svg(size, parts, f"{sum(counts)} {unit} in {len(counts)} bars")


def heat(grid: Sequence[Sequence[int]], rows: str, columns: str) -> str:
    """A heat map: a cell is as opaque as its share of the fullest one, in `LEVELS` steps; empty cells stay pale.

    Args:
        grid: counts by row and column.
        rows: what the rows are, in words.
        columns: what the columns are.
    """
    top = max((count for row in grid for count in row), default=0) or 1
    parts = []
    for y, row in enumerate(grid):
        for x, count in enumerate(row):
            level = -(-(LEVELS - 1) * count // top)
            title = f"<title>{escape(rows)} {y}, {escape(columns)} {x}: {count}</title>"
            parts.append(f'<rect class="h{level}" x="{x * CELL}" y="{y * CELL}">{title}</rect>')
    size = (max((len(row) for row in grid), default=1) * CELL, max(1, len(grid)) * CELL)
    return _svg(size, parts, f"{rows} by {columns}", "heat")


def share(used: float) -> str:
    """A horizontal bar of a share from 0 to 1."""
    filled = round(120 * min(1.0, max(0.0, used)))
    parts = [
        '<rect class="rail" x="0" y="2" width="120" height="8"/>',
        f'<rect class="mark" x="0" y="2" width="{filled}" height="8"><title>{used:.1%}</title></rect>',
    ]
    return _svg((120, 12), parts, f"{used:.1%}")


def _svg(size: tuple[int, int], parts: Sequence[str], label: str, name: str = "") -> str:
    width, height = size
    attributes = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height, "role": "img"}
    if name:
        attributes["class"] = name
    said = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<svg{said} aria-label="{escape(label)}">{"".join(parts)}</svg>'
