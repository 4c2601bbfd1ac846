"""Instructions that `equiv explain` found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.terminal import kernel_name
from equiv.trail.site import line_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from equiv.mutate.scene import Scene
    from equiv.records import Case
    from equiv.trail.between import Departure
    from equiv.trail.played import Played
    from equiv.trail.site import Site, Value
    from equiv.trail.walk import End
    from equiv.trail.why import Origin

SHOWN = 4
"""Further ends that are listed, by their lines."""


def between(
    case: Case, party: str, one: Played, other: Played, found: Departure | None, *, output: str | None = None
) -> str:
    """Where two ways of playing a case part; `output`: the only one that was compared."""
    lines = [f"{case.name}  {party}  {one.words} | {other.words}"]
    if found is None:
        return "\n".join([*lines, f"  the two leave the same bits in {output or 'every output'}"])
    ours, theirs = (f"0x{bits:x}" for bits in found.bits)
    lines.append(f"  {element(one.scene, found.output, found.index)}: {ours} | {theirs}")
    lines.append(f"    {found.count} of {found.total} elements of {found.output} differ")
    stored = next((site for site in found.stores if site is not None), None)
    if stored is not None:
        lines.append(f"    stored by {line_of(stored)}: {thread(stored)}")
    if found.ends:
        lines += [*_end(found.ends[0]), *_others(found.ends)]
    elif not found.cut:
        lines.append("  the way back found no instruction that departs")
    if found.cut:
        lines.append(f"  {found.steps} pairs of executions looked at; there are more")
    return "\n".join(lines)


def _others(ends: Sequence[End]) -> Iterator[str]:
    """The further ends, each line of the kernel once."""
    shown = _line(ends[0])
    count: dict[str, int] = {}
    for end in ends[1:]:
        count[_line(end)] = count.get(_line(end), 0) + 1
    more = {line: number for line, number in count.items() if line != shown}
    if shown in count:
        yield f"  the same in {count[shown]} more executions"
    for line, number in list(more.items())[:SHOWN]:
        yield f"  also at {line}, {number} times"


def _line(end: End) -> str:
    return end.why if end.site is None else line_of(end.site)


def _end(end: End) -> Iterator[str]:
    first = end.site
    if first is None:
        yield f"  DEPARTS: {end.why}"
        return
    yield f"  DEPARTS at {line_of(first)}  {first.code}"
    yield f"    {end.why}"
    yield f"    {kernel_name(first.kernel)}: {thread(first)}"
    ours, theirs = end.sites
    if ours is not None and theirs is not None and ours.text == theirs.text:
        yield f"    PTX line {ours.line}  {ours.text}"
        yield from _both(ours.values, theirs.values)
        return
    for mark, site in (("first", ours), ("second", theirs)):
        if site is None:
            yield f"    {mark}: does not come here"
            continue
        yield f"    {mark}: PTX line {site.line}  {site.text}" + ("" if site is first else f"  ({line_of(site)})")
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


def thread(site: Site) -> str:
    """Who executed it, and for the how manieth time."""
    turn = f", iteration {site.turn}" if site.turn else ""
    launch = f"launch {site.launch}, " if site.launch else ""
    return f"{launch}CTA {site.cta} warp {site.warp} lane {site.lane}{turn}"


def origin(scene: Scene, party: str, found: Origin) -> str:
    """Where a wrong element of a party comes from."""
    bits = f"0x{found.bits:x}, the model has 0x{found.expected:x}"
    lines = [f"  TRACE of {party}: {element(scene, found.output, found.index)}: {bits}"]
    if found.stored is None:
        return "\n".join([*lines, "    no store that can be followed ever wrote it"])
    lines.append(f"    stored at {line_of(found.stored)}: {thread(found.stored)}")
    more = " (the nearest; there are more)" if found.cut else ""
    lines.append(f"    made by {found.size} executions{more} of {', '.join(found.inputs) or 'no tensor'}")
    if found.missing:
        lines.append(f"    not made of all that its model's value depends on: {', '.join(found.missing)}")
    lines += [f"    not followed: {one}" for one in found.unfollowed]
    if found.stage is None or found.site is None:
        return "\n".join([*lines, "    no row of the ledger can be told from the values it was made of"])
    stage = found.stage
    named = "named above" if found.named else "the first whose value does not follow"
    lines.append(f"  DEPARTS at {line_of(found.site)}  {found.site.code}")
    operands = ", ".join(f"0x{one:x}" for one in stage.operands)
    lines.append(f"    row {stage.row} ({stage.value}), {named}: of {operands} the model makes 0x{stage.expected:x}")
    lines.append(f"    {kernel_name(found.site.kernel)}: {thread(found.site)}")
    lines.append(f"    PTX line {found.site.line}  {found.site.text}")
    lines += [f"      {_value(one)}" for one in found.site.values]
    steps = list(dict.fromkeys(line_of(one) for one in reversed(found.path)))
    return "\n".join([*lines, f"    from there to the store: {' -> '.join(steps)}"])


def element(scene: Scene, output: str, index: tuple[int, ...]) -> str:
    """An element of an output, with its place in the pair's words."""
    words = scene.pair.place(scene.case, scene.inputs, output, index) if scene.pair.place else ""
    return f"{output}[{', '.join(map(str, index))}]" + (f" ({words})" if words else "")
