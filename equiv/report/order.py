"""Traced orders as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from equiv.order import UNDECLARED
from equiv.rounding.phrases import phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.order import Discovered, Traced


def render(case: str, found: Sequence[Traced], missing: Sequence[str], forms: Sequence[str] = ()) -> str:
    """Each distinct tree once, with where it was found and whether it is as declared; then what could not be traced.

    Args:
        case: that was run.
        found: of each reduction whether it was traced, and its order.
        missing: parties that could not be traced, in words.
        forms: those of the parties that the case does not have, in words.
    """
    groups: dict[tuple[str, ...], list[Traced]] = {}
    for one in found:
        digest = one.order.digest if one.order else ""
        groups.setdefault((one.party, one.form, one.reduction, digest, one.problem, one.untraced), []).append(one)
    lines = [f"traced: {case}"]
    for (party, form, reduction, digest, problem, untraced), members in groups.items():
        first = members[0]
        versions = ", ".join(f"{package} {version}" for package, version in first.toolchain.items())
        what = "NOT DECLARED" if problem == UNDECLARED else "NOT AS DECLARED"
        verdict = f"{what}: {problem}" if problem else f"not traced: {untraced}" if untraced else "as declared"
        places = " and ".join(one.arch for one in members)
        who = f"{party} {form}" if form else party
        lines.append(f"\n{who} ({versions}) on {places}: {reduction}  {digest}{'  ' if digest else ''}{verdict}")
        if first.order:
            lines.append(f"  {phrase(first.order)}")
            lines.append(textwrap.indent(str(first.order), "  "))
    for (party, arch), partly in {(one.party, one.arch): one.partly for one in found if one.partly}.items():
        lines.append(f"\nfollowed in part: {party} on {arch}: {', '.join(partly)}")
    lines += [f"\nnot traced: {one}" for one in missing]
    if forms:
        lines += ["\nnot traced, as this case has other forms (`equiv order CASE`):", *(f"  {one}" for one in forms)]
    traced, wrong = sum(not one.untraced for one in found), sum(bool(one.problem) for one in found)
    left = len(found) - traced
    lines.append(f"\n{traced} orders traced, {wrong} not as declared, {left + len(missing)} not traced")
    return "\n".join(lines)


def discovered(case: str, found: Sequence[Discovered], missing: Sequence[str]) -> str:
    """Each kind of reduction that was found, in words, with where; then what could not be traced."""
    groups: dict[tuple[str, str, int, tuple[str, ...], int, str], list[Discovered]] = {}
    for one in found:
        groups.setdefault((one.party, one.form, one.terms, one.buffers, one.count, one.order.digest), []).append(one)
    lines = [f"traced: {case}; the pair describes no reduction, so this is all there are of 3 terms or more"]
    for (party, form, terms, buffers, count, digest), members in groups.items():
        versions = ", ".join(f"{package} {version}" for package, version in members[0].toolchain.items())
        places = " and ".join(one.arch for one in members)
        lines.append(f"\n{party} ({versions}) on {places}: {count} of {terms} {form} of {', '.join(buffers)}  {digest}")
        lines.append(f"  {phrase(members[0].order)}")
    lines += [f"\nnot traced: {one}" for one in missing]
    lines.append("\nnothing of these is compared: a pair names them by `terms`")
    return "\n".join(lines)
