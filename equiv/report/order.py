"""Traced orders as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from equiv.rounding.phrases import phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.order import Traced


def render(case: str, found: Sequence[Traced], missing: Sequence[str]) -> str:
    """Each distinct tree once, with where it was found and whether it is as declared; then what could not be traced."""
    groups: dict[tuple[str, str, str, str], list[Traced]] = {}
    for one in found:
        digest = one.order.digest if one.order else ""
        groups.setdefault((one.party, one.reduction, digest, one.problem), []).append(one)
    lines = [f"traced: {case}"]
    for (party, reduction, digest, problem), members in groups.items():
        first = members[0]
        versions = ", ".join(f"{package} {version}" for package, version in first.toolchain.items())
        verdict = f"NOT AS DECLARED: {problem}" if problem else "as declared"
        places = " and ".join(one.arch for one in members)
        lines.append(f"\n{party} ({versions}) on {places}: {reduction}  {digest}  {verdict}")
        if first.order:
            lines.append(f"  {phrase(first.order)}")
            lines.append(textwrap.indent(str(first.order), "  "))
    lines += [f"\nnot traced: {one}" for one in missing]
    wrong = sum(bool(one.problem) for one in found)
    lines.append(f"\n{len(found)} orders traced, {wrong} not as declared, {len(missing)} not traced")
    return "\n".join(lines)
