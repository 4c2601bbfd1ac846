"""Random cases of a pair: axes and regimes drawn from all that the pair declares, each case by its own number.

A draw depends on (pair, seed, number) alone, so any case can be made again without those before it. Axes that kernels
are compiled for are drawn once for `sharing` consecutive numbers, everything else for each number. What the pair's own
`check` refuses goes back to its default if that is all it takes, or the case is drawn again; so it is if it would take
too long (`Pair.soak`). All of this is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from equiv.buffers import span, storage
from equiv.errors import UsageError
from equiv.inputs import Draws
from equiv.records import Case

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from equiv.pairs import Axis, Pair
    from equiv.records import AxisValue

SHARING = 20
"""Consecutive cases that share their compiled axes, unless another number is asked for."""
ATTEMPTS = 10_000
"""Draws after which a pair is held to have no legal case."""
SPAN = 1 << 33
"""Bytes that a sparse tensor of a random case spans at most: past 2**32, and small enough for a GPU."""
CHANCES = (0.1, 0.3, 0.6)
"""Cases are tame, mixed and wild by turns: how likely a regime or option leaves its default; sizes always do."""
BYTES_A_SECOND = 4e6
"""Of a pair that does not say how long its cases take."""

MENDED, ILLEGAL, LONG, WIDE = "mended", "refused", "too long", "too wide"
"""What became of a draw that is no case as it is: the first one was kept with some defaults, the others were not."""


@dataclass(slots=True)
class Cases:
    """Random cases of one pair.

    Attributes:
        seed: 0 <= seed < 2**64; the same seed gives the same cases.
        most: seconds that a case may be expected to take (`Soak.seconds`); 0: the pair's own bound.
        sharing: consecutive cases that share their compiled axes, at least 1; another number, other cases.
        refused: reason -> how many draws so far were no case as they were.
    """

    pair: Pair
    seed: int
    most: float = 0.0
    sharing: int = SHARING
    refused: Counter[str] = field(default_factory=Counter)
    _shapes: dict[int, dict[str, AxisValue]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses a seed that no case file could state (UsageError)."""
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed} is not an integer from 0 to 2**64 - 1")
        self.most = self.most or self.pair.soak.most

    def case(self, number: int) -> Case:
        """Case `number` of this seed.

        Raises:
            UsageError: no draw of the pair is legal and short enough.
        """
        shape = self.shape(number)
        loose = [axis for axis in self.pair.axes if axis.name not in shape]
        chance = CHANCES[number % len(CHANCES)]
        for words in self._tries(f"case/{number}", 1 + 3 * len(loose) + 2 * len(self.pair.regimes)):
            seed = next(words) & 0xFFFFFFFF
            axes = {axis.name: _value(axis, words, chance) for axis in loose}
            regimes = {piece: _choice(known, words, chance, known[0]) for piece, known in self.pair.regimes.items()}
            case = self._case(number, seed, {**shape, **axes}, regimes)
            mended = self._mended(case, {axis.name for axis in loose})
            if self._fits(mended):
                self.refused[MENDED] += mended is not case
                return mended
        raise self._hopeless(f"case {number}")

    def shape(self, number: int) -> Mapping[str, AxisValue]:
        """The compiled axes of case `number`."""
        at = number // self.sharing
        if at not in self._shapes:
            self._shapes[at] = self._shape(at)
        return self._shapes[at]

    def _shape(self, at: int) -> dict[str, AxisValue]:
        names = self.pair.soak.compiled
        fixed = [axis for axis in self.pair.axes if names is None or axis.name in names]
        rest = {axis.name: axis.default for axis in self.pair.axes}
        regimes = {piece: known[0] for piece, known in self.pair.regimes.items()}
        for words in self._tries(f"shape/{at}", 3 * len(fixed)):
            found = {axis.name: _value(axis, words, 1.0 if axis.choices else CHANCES[-1]) for axis in fixed}
            if self._fits(self._case(at * self.sharing, 0, {**rest, **found}, regimes)):
                return found
        raise self._hopeless(f"shape {at}")

    def _tries(self, purpose: str, count: int) -> Iterator[Iterator[int]]:
        draws = Draws(self.seed, f"soak/{self.pair.name}")
        for attempt in range(ATTEMPTS):
            yield iter(draws.words(f"{purpose}/{attempt}", (count,)).tolist())

    def _case(self, number: int, seed: int, axes: Mapping[str, AxisValue], regimes: Mapping[str, str]) -> Case:
        ordered = {axis.name: axes[axis.name] for axis in self.pair.axes}
        why = f"Case {number} of `equiv soak {self.pair.name} --seed {self.seed}`."
        return Case(self.pair.name, f"soak-{self.seed}-{number}", why, seed, ("nightly",), ordered, regimes)

    def _mended(self, case: Case, loose: set[str]) -> Case:
        """The case with the defaults of the loose axes and regimes that the pair's check complains about."""
        places = [path.partition(".") for path, _ in self.pair.check(case)]
        axes = {name for kind, _, name in places if kind == "axes" and name in loose}
        regimes = {piece for kind, _, piece in places if kind == "regimes"}
        if not axes and not regimes:
            return case
        usual = {axis.name: axis.default for axis in self.pair.axes if axis.name in axes}
        tame = {piece: known[0] for piece, known in self.pair.regimes.items() if piece in regimes}
        return replace(case, axes={**case.axes, **usual}, regimes={**case.regimes, **tame})

    def _fits(self, case: Case) -> bool:
        reason = self._refusal(case)
        if reason:
            self.refused[reason] += 1
        return not reason

    def _refusal(self, case: Case) -> str:
        if self.pair.check(case):
            return ILLEGAL
        if seconds(self.pair, case) > self.most:
            return LONG
        return WIDE if max(map(span, self.pair.layout(case)), default=0) > SPAN else ""

    def _hopeless(self, what: str) -> UsageError:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.refused.items())
        return UsageError(
            f"{self.pair.name}: no legal {what} of seed {self.seed} in {ATTEMPTS} draws ({reasons}); "
            f"cases may take {self.most:g} s"
        )


def seconds(pair: Pair, case: Case) -> float:
    """About how long a case takes one core on an emulated device."""
    if pair.soak.seconds:
        return pair.soak.seconds(case)
    return sum(math.prod(spec.shape) * storage(spec).size for spec in pair.layout(case)) / BYTES_A_SECOND


def _value(axis: Axis, words: Iterator[int], chance: float) -> AxisValue:
    """A value of an axis, from three words whatever becomes of them."""
    leave, first, second = next(words), next(words), next(words)
    size = axis.kind == "int" and not axis.choices and axis.default != 0  # an int of 0 means "the usual one"
    if leave >= chance * 2**64 and not size:
        return axis.default
    if axis.kind == "bool":
        return bool(first & 1)
    if axis.choices:
        return axis.choices[first % len(axis.choices)]
    if axis.low is None or axis.high is None:
        return axis.default
    if axis.kind == "int":
        return _whole(int(axis.low), int(axis.high), first, second)
    part = (first >> 11) / 2**53
    if axis.low * axis.high > 0:
        return float(np.clip(axis.low * (axis.high / axis.low) ** part, axis.low, axis.high))
    return axis.low + (axis.high - axis.low) * part


def _whole(low: int, high: int, first: int, second: int) -> int:
    """An integer of [low, high]: as many of one bit as of two, of three, ...; every other one a rounder number."""
    bits = first % ((high - low + 1).bit_length())
    above = (1 << bits) - 1 + second % (1 << bits)
    if second >> 63 and bits > 3:
        above = above >> (bits - 3) << (bits - 3)
    return min(low + above, high)


def _choice(known: Sequence[str], words: Iterator[int], chance: float, default: str) -> str:
    leave, which = next(words), next(words)
    return known[which % len(known)] if leave < chance * 2**64 else default
