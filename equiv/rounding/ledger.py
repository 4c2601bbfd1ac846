"""The ledger: every rounding point of an operator as a row, from which its model takes the functions that it executes.

A row holds the facts a reader needs (from, to, mode, ties, ...) and, by name, every way its step may be computed. A
declaration picks one of the row's *variants*; `Ledger.without` switches a row off and `Ledger.replace` forces a step,
so that one can ask what the numbers would be if a rounding were missing or done otherwise. Ids are the spec's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from equiv.errors import UsageError

Step = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One rounding point.

    Attributes:
        value: what is computed, in words.
        source: format it comes from. target: format it goes to.
        mode: rounding mode. ties, saturation, nan, zero: what happens there, "" where it cannot happen.
        oracle: where the oracle does it. candidate: where the candidate does it.
        why: the reason it is there, or how it is known to be exact.
        kind: `rounding` (switching it off changes bits of some case), `exact` (no step changes a bit) or `variant`
            (parties use formulas which differ for some inputs).
        steps: name -> function on bit patterns; the declarable variants first.
        variants: how many of `steps`, from the first, a declaration may name.
        faults: ways in which kernels get the row wrong, name -> function: no declaration may name one, `replace` may.
        off: the step that stands for "this row is missing": what is stored in fewer bits is cut off, a float32 result
            is rounded towards zero, a step with a formula of its own is left out.
    """

    id: str
    value: str
    source: str
    target: str
    mode: str
    kind: str
    steps: Mapping[str, Step] = field(repr=False)
    variants: int = 1
    off: str = ""
    faults: Mapping[str, Step] = field(default_factory=dict, repr=False)
    ties: str = ""
    saturation: str = ""
    nan: str = ""
    zero: str = ""
    oracle: str = ""
    candidate: str = ""
    why: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Variants that a declaration may name; the first one is the default."""
        return tuple(self.steps)[: self.variants]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The rows of one operator, in the order in which they happen.

    Attributes:
        forced: row id -> step that is used whatever a declaration says.
        tap: is told of every execution of a row: its id, its operands and its result.
    """

    rows: tuple[Row, ...]
    forced: Mapping[str, str] = field(default_factory=dict)
    tap: Callable[[str, tuple[Any, ...], Any], None] | None = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, row_id: str) -> Row:
        """The row of that id.

        Raises:
            UsageError: no such row; the known ones are listed.
        """
        for row in self.rows:
            if row.id == row_id:
                return row
        raise UsageError(f"no ledger row {row_id!r}; known: {', '.join(row.id for row in self.rows)}")

    def step(self, row_id: str, variants: Mapping[str, str]) -> Step:
        """The function that executes a row under the variants of a declaration.

        Raises:
            UsageError: no such row, or it has no variant of the declared name.
        """
        row = self[row_id]
        if row_id in self.forced:
            return self._tapped(row_id, {**row.steps, **row.faults}[self.forced[row_id]])
        name = variants.get(row_id, row.names[0])
        if name not in row.names:
            raise UsageError(f"row {row_id} has no variant {name!r}; known: {', '.join(row.names)}")
        return self._tapped(row_id, row.steps[name])

    def _tapped(self, row_id: str, step: Step) -> Step:
        tap = self.tap
        if tap is None:
            return step

        def tapped(*operands: Any, **options: Any) -> Any:  # noqa: ANN401  as the step
            result = step(*operands, **options)
            tap(row_id, operands, result)
            return result

        return tapped

    def without(self, row_id: str) -> Self:
        """The ledger with one row switched off.

        Raises:
            UsageError: no such row, or nothing stands for its absence.
        """
        row = self[row_id]
        if not row.off:
            raise UsageError(f"row {row_id} ({row.kind}) cannot be switched off")
        return self.replace(row_id, row.off)

    def replace(self, row_id: str, step: str) -> Self:
        """The ledger with one row computed by another of its steps, a declarable variant or not, or by a fault.

        Raises:
            UsageError: no such row or step; the known ones are listed.
        """
        row = self[row_id]
        known = (*row.steps, *row.faults)
        if step not in known:
            raise UsageError(f"row {row_id} has no step {step!r}; known: {', '.join(known)}")
        return replace(self, forced={**self.forced, row_id: step})

    def check(self, variants: Mapping[str, str]) -> None:
        """Refuses variants of rows or names that do not exist, so that a typing error cannot mean "default".

        Raises:
            UsageError: naming the row or variant.
        """
        for row_id in variants:
            self.step(row_id, variants)
