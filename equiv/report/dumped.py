"""What `equiv compare` found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.report.text import difference_lines
from equiv.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from equiv.dump_compare import Compared


def render(found: Sequence[Compared]) -> str:
    """Every case that is not equal, then the counts; A and B are the two dumps in the order given."""
    lines = [line for one in found if not one.equal for line in _case(one)]
    equal = [one for one in found if one.equal]
    lines += [f"versions: {said}" for said in dict.fromkeys(said for one in found for said in one.versions)]
    elements = sum(one.elements for one in found)
    places = ", ".join(dict.fromkeys(one.places for one in found if one.places))
    lines.append(
        f"{len(found)} case(s), {len(equal)} equal, {sum(one.outputs for one in found)} outputs with {elements} "
        f"elements compared{f', {places}' if places else ''}"
    )
    return visible("\n".join(lines) + "\n")


def _case(one: Compared) -> Iterator[str]:
    yield f"{'DIFFERENT' if one.differences else 'NOT COMPARED'} {one.case}  seed {one.seed}  {one.places}".rstrip()
    for problem in one.problems:
        first, *rest = problem.splitlines()
        yield f"  {first}"
        yield from (f"    {line}" for line in rest)
    for party, difference in one.differences:
        yield f"  {party}: {difference.output}"
        yield from difference_lines(difference)
    yield from (f"  declared  {said}" for said in one.declared)
