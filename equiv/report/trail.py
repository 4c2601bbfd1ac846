"""Instructions that `equiv explain` found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from equiv.records import Case
    from equiv.trail.between import Departure
    from equiv.trail.played import Played
    from equiv.trail.site import Site, Value
    from equiv.trail.walk import End

SHOWN = 4
"""Further ends that are listed, by their lines."""


def between(case: Case, party: str, one: Played, other: Played, found: Departure | None) -> str:
    """Where two ways of playing a case part."""
    lines = [f"{case.name}  {party}  {one.words} | {other.words}"]
    if found is None:
        return "\n".join([*lines, "  the two leave the same bits in every output"])
    ours, theirs = (f"0x{bits:x}" for bits in found.bits)
    lines.append(f"  {element(one, found.output, found.index)}: {ours} | {theirs}")
    lines.append(f"    {found.count} of {found.total} elements of {found.output} differ")
    stored = next((site for site in found.stores if site is not None), None)
    if stored is not None:
        lines.append(f"    stored by {where(stored)}: {thread(stored)}")
    for number, end in enumerate(found.ends[:1]):
        lines += _end(end, "  DEPARTS" if number == 0 else "  also")
    lines += _others(found.ends)
    if found.cut:
        lines.append(f"  {found.steps} pairs of executions looked at; there are more")
    return "\n".join(lines)


def _others(ends: Sequence[End]) -> Iterator[str]:
    """The further ends, each line of the kernel once."""
    shown = {_line(ends[0])} if ends else set()
    count: dict[str, int] = {}
    for end in ends[1:]:
        count[_line(end)] = count.get(_line(end), 0) + 1
    more = {line: number for line, number in count.items() if line not in shown}
    if len(ends) > 1 and ends:
        same = count.get(_line(ends[0]), 0)
        if same:
            yield f"  the same in {same} more executions"
    for line, number in list(more.items())[:SHOWN]:
        yield f"  also at {line}, {number} times"


def _line(end: End) -> str:
    return end.why if end.site is None else where(end.site)


def _end(end: End, label: str) -> Iterator[str]:
    first = end.site
    if first is None:
        yield f"{label}: {end.why}"
        return
    yield f"{label} at {where(first)}  {first.code}"
    yield f"    {end.why}"
    yield f"    {first.kernel[:80]}: {thread(first)}"
    ours, theirs = end.sites
    if ours is not None and theirs is not None and ours.text == theirs.text:
        yield f"    PTX line {ours.line}  {ours.text}"
        yield from _both(ours.values, theirs.values)
        return
    for mark, site in (("first", ours), ("second", theirs)):
        if site is None:
            yield f"    {mark}: does not come here"
            continue
        yield f"    {mark}: PTX line {site.line}  {site.text}" + ("" if site is first else f"  ({where(site)})")
        yield from (f"      {_value(one)}" for one in site.values)


def _both(ours: Sequence[Value], theirs: Sequence[Value]) -> Iterator[str]:
    for one, other in zip(ours, theirs, strict=True):
        same = one.bits == other.bits
        yield f"      {_value(one)}" + ("" if same else f"  |  {_pattern(other)}")


def _value(one: Value) -> str:
    return f"{'->' if one.result else '  '} {one.name}  {_pattern(one)}"


def _pattern(one: Value) -> str:
    digits = max((one.width + 3) // 4, 1)
    number = one.number
    return f"0x{one.bits:0{digits}x}" + ("" if number is None else f" ({number:.9g})")


def where(site: Site) -> str:
    """File and line of the kernel, or what is known instead."""
    if site.source is None:
        return f"PTX line {site.line}"
    return f"{site.source[0].rsplit('/', 1)[-1]}:{site.source[1]}"


def thread(site: Site) -> str:
    """Who executed it, and for the how manieth time."""
    turn = f", iteration {site.turn}" if site.turn else ""
    launch = f"launch {site.launch}, " if site.launch else ""
    return f"{launch}CTA {site.cta} warp {site.warp} lane {site.lane}{turn}"


def element(played: Played, output: str, index: tuple[int, ...]) -> str:
    """An element of an output, with its place in the pair's words."""
    scene = played.scene
    words = scene.pair.place(scene.case, scene.inputs, output, index) if scene.pair.place else ""
    return f"{output}[{', '.join(map(str, index))}]" + (f" ({words})" if words else "")
