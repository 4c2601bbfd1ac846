"""The result of a mutation run, as text for people and as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv.emulator.ptx_emitter import spelt
from equiv.mutate import OPERATORS
from equiv.mutate.operators import NOTHING
from equiv.terminal import kernel_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from equiv.mutate.argued import Argument
    from equiv.mutate.kill import Key, Outcome
    from equiv.mutate.mutants import Mutant

STATUSES = ("killed", "survived", "not reached", "equivalent", "argued", "invisible")


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Attributes:
        cases: (image, kernel) -> ids of the cases that launch it.
        made: how many mutants there are; `found` holds as many or a sample of them.
        left_out: case -> why it could not be played.
        refuted: (argument, mutant, outcome) where a case killed what an argument calls equivalent.
        idle: arguments that no mutant of a whole run needs.
        every: whether each mutant met all cases, so that a smallest set of cases can be told.
    """

    pair: str
    device: str
    suites: tuple[str, ...]
    cases: Mapping[Key, tuple[str, ...]]
    found: Sequence[tuple[Mutant, Outcome]]
    made: int
    left_out: Mapping[str, str]
    refuted: Sequence[tuple[Argument, Mutant, Outcome]] = ()
    idle: Sequence[Argument] = ()
    every: bool = False

    @property
    def counts(self) -> Counter[str]:
        """Mutants by status."""
        return Counter(outcome.status for _, outcome in self.found)

    @property
    def score(self) -> float | None:
        """Percent of the live mutants that die (live: killed, survived or not reached); None where none is live."""
        return percent(self.counts)


def percent(counts: Mapping[str, int]) -> float | None:
    """The score of mutants counted by status; None where none is live, because that shows nothing."""
    live = counts.get("killed", 0) + counts.get("survived", 0) + counts.get("not reached", 0)
    return 100.0 * counts.get("killed", 0) / live if live else None


def killers(result: Result) -> list[tuple[str, int]]:
    """(case, mutants that only it is needed for) of a set of cases that kills whatever dies, the most useful first.

    Greedy: always the case that kills most of what is left. Without `every` a case is known to kill only those mutants
    that no cheaper case has killed.
    """
    left = [{killer.partition(" (")[0] for killer in one.killers} for _, one in result.found if one.killers]
    chosen = []
    while left:
        counts = Counter(case for one in left for case in sorted(one))
        case, count = max(counts.items(), key=lambda item: (item[1], item[0]))
        chosen.append((case, count))
        left = [one for one in left if case not in one]
    return chosen


def document(result: Result) -> dict[str, Any]:
    """The result as JSON-ready data; every mutant is in it."""
    return {
        "pair": result.pair,
        "device": result.device,
        "suites": list(result.suites),
        "mutants": result.made,
        "sampled": len(result.found),
        "score": None if result.score is None else round(result.score, 2),
        "counts": {status: result.counts[status] for status in STATUSES},
        "kernels": [
            {"image": image, "kernel": kernel, "cases": list(cases), "operators": _by_operator(result, (image, kernel))}
            for (image, kernel), cases in result.cases.items()
        ],
        "killers": [{"case": case, "mutants": count} for case, count in killers(result)],
        "left_out": dict(result.left_out),
        "refuted": [
            {"argument": argument.path, "image": mutant.image, "index": mutant.index, "after": after(mutant)}
            for argument, mutant, _ in result.refuted
        ],
        "idle": [one.path for one in result.idle],
        "found": [
            {
                "image": mutant.image,
                "index": mutant.index,
                "operator": mutant.operator,
                "ptx_line": mutant.before.line,
                "source": mutant.source and list(mutant.source),
                "near": mutant.near and list(mutant.near),
                "before": spelt(mutant.before),
                "after": after(mutant),
                "status": outcome.status,
                "killers": list(outcome.killers),
                "how": outcome.how,
                "played": outcome.played,
            }
            for mutant, outcome in result.found
        ],
    }


def _by_operator(result: Result, key: Key) -> dict[str, dict[str, int]]:
    mine = [(one.operator, outcome.status) for one, outcome in result.found if (one.image, one.kernel) == key]
    table = Counter(mine)
    return {
        operator: {status: table[operator, status] for status in STATUSES if table[operator, status]}
        for operator in OPERATORS
        if any(name == operator for name, _ in mine)
    }


def after(mutant: Mutant) -> str:
    """The mutant's instruction, or that it is gone."""
    return "(deleted)" if mutant.after.opcode == NOTHING[0] else spelt(mutant.after)


def render(result: Result) -> str:
    """The result as text: a table for each kernel, every survivor, the cases that are needed, the score."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: Result) -> Iterator[str]:
    played = {case for cases in result.cases.values() for case in cases}
    sampled = f"{len(result.found)} of {result.made}" if len(result.found) < result.made else f"{result.made}"
    suites = f", suite {' '.join(result.suites)}" if result.suites else ""
    kernels = f"{len(played)} cases, {len(result.cases)} kernels"
    yield f"{result.pair} on {result.device}{suites}: {kernels}, {sampled} mutants"
    for case, why in result.left_out.items():
        yield f"  left out: {case}: {why}"
    for key, cases in result.cases.items():
        yield from _kernel(result, key, cases)
    yield from _listed(result, "survived", "survivors")
    yield from _listed(result, "not reached", "not reached by any case")
    if result.refuted:
        yield ""
        yield "called equivalent, and a case kills it:"
        for argument, mutant, outcome in result.refuted:
            yield f"  {argument.path}: {_where(mutant)} {spelt(mutant.before)} -> {after(mutant)}"
            yield f"      killed by {outcome.killers[0] if outcome.killers else outcome.how}"
    if result.idle:
        yield ""
        yield "arguments that no mutant needs: " + ", ".join(one.path for one in result.idle)
    needed = killers(result)
    if needed:
        yield ""
        yield f"{len(needed)} cases kill whatever dies" + (
            ":" if result.every else " (each mutant met cases up to the first that killed it, the cheapest first):"
        )
        yield from (f"  {count:5} {case}" for case, count in needed)
    yield ""
    counts = result.counts
    live = counts["killed"] + counts["survived"] + counts["not reached"]
    if counts["argued"]:
        strict = 100 * counts["killed"] / (live + counts["argued"])
        yield f"{counts['argued']} survivors are argued to be equivalent; counted as live, {strict:.1f} % would die"
    yield f"score {_shown(result.score)}: {counts['killed']} of {live} live mutants die; " + ", ".join(
        f"{counts[status]} {status}" for status in STATUSES[1:]
    )


def _kernel(result: Result, key: Key, cases: Sequence[str]) -> Iterator[str]:
    image, kernel = key
    few = ", ".join(cases[:3]) + (", ..." if len(cases) > 3 else "")
    yield ""
    yield f"{kernel_name(kernel)}, image {image[:12]}, {len(cases)} cases ({few})"
    table = _by_operator(result, key)
    total: Counter[str] = Counter()
    yield "  " + f"{'operator':12}" + "".join(f"{status:>12}" for status in STATUSES) + f"{'score':>9}"
    for operator, counts in table.items():
        total.update(counts)
        yield f"  {operator:12}" + _row(counts)
    yield f"  {'all':12}" + _row(total)


def _row(counts: Mapping[str, int]) -> str:
    return "".join(f"{counts.get(status, 0):12}" for status in STATUSES) + f"{_shown(percent(counts)):>9}"


def _shown(score: float | None) -> str:
    return "none" if score is None else f"{score:.1f} %"


def _listed(result: Result, status: str, title: str) -> Iterator[str]:
    """The mutants of that status; those that several images share are shown once."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for mutant, outcome in result.found:
        if outcome.status == status:
            words = f"[{mutant.operator}] {spelt(mutant.before)} -> {after(mutant)}"
            groups.setdefault((_where(mutant), words), []).append(
                f"{mutant.image[:12]}:{mutant.before.line} ({outcome.played} cases)"
            )
    if groups:
        yield ""
        yield f"{title}:"
        for (where, words), places in groups.items():
            yield f"  {where} {words}"
            yield f"      PTX {', '.join(places)}"


def _where(mutant: Mutant) -> str:
    """`index.py:198`: the kernel's source line, as far as the compiler says it."""
    place = mutant.source if mutant.source and mutant.source[1] else mutant.near
    if place is None:
        return f"PTX line {mutant.before.line}:"
    file, line = place
    return f"{Path(file).name}:{line}"
