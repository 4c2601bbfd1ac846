"""What `equiv explain` found, as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from equiv.explain import Explanation, Reading
    from equiv.records import Case

WIDTH = 118
SHOWN = 5
"""Changes that are shown of those that reproduce only some of the bits."""


def render(case: Case, device: str, found: Sequence[Explanation]) -> str:
    """Of each party that differs from its model: where, as if what, and what is a matter of place."""
    if not found:
        return f"{case.name}  {device}\n  both parties equal their models: there is nothing to explain"
    return "\n".join([f"{case.name}  {device}", *(line for one in found for line in _party(one))])


def _party(one: Explanation) -> Iterator[str]:
    yield f"  {one.party}"
    for name, difference in one.wrong.items():
        pattern = f": {difference.pattern}" if difference.pattern else ""
        yield from _filled(f"{name}: {difference.count} of {difference.total} elements differ from the model{pattern}")
    for said in one.scales:
        yield from _filled(said)
    for name in one.placed:
        yield from _filled(f"STATE FAULT in {name}: first at {one.wrong[name].worst[0].place}")
    if one.placed:
        yield from _filled(
            f"({', '.join(one.placed)}: bits that are copied or left alone, so they were read from, or written to, the "
            "wrong place, or not written at all)"
        )
    computed = [name for name in one.wrong if name not in one.placed]
    exact = [reading for reading in one.readings if not reading.remaining]
    for reading in exact:
        given = computed + [name for name in one.placed if reading.complete]
        yield from _filled(f"AS IF {' and '.join(reading.changes)}: this gives every bit of {', '.join(given)}")
    if len(exact) > 1:
        yield from _filled("this case cannot tell these apart; another one may")
    part = [reading for reading in one.readings if reading.in_part]
    for reading in part[:SHOWN]:
        yield from _filled(
            f"AS IF {' and '.join(reading.changes)}, but in some places only: this gives every wrong bit of "
            f"{', '.join(computed)}, and would change {reading.spoilt} elements elsewhere that are right"
        )
    if computed and not exact and not part:
        yield from _filled(f"nothing that was tried ({one.tried} models) gives every bit of {', '.join(computed)}")
        if one.placed:
            yield from _filled("as one would expect where they follow from the STATE FAULT")
            return
        for reading in one.readings[:SHOWN]:
            yield from _filled(f"closer if {' and '.join(reading.changes)}: {_remaining(reading)}")


def _remaining(reading: Reading) -> str:
    left = ", ".join(f"{count} of {name}" for name, count in reading.left.items() if count) or "none of them"
    spoilt = f", and {reading.spoilt} that were right differ" if reading.spoilt else ""
    return f"{left} would still differ{spoilt}"


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="      ")
