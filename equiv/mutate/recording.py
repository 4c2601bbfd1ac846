"""Records the cases of a run, several at a time if there are processes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.errors import DeviceError, UnsupportedError
from equiv.mutate import pool
from equiv.mutate.argued import axes_of
from equiv.mutate.moving import Parcel, pack, unpack
from equiv.mutate.scene import Scene, record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.pairs import Pair
    from equiv.records import Case


def attempt(pair: Pair, case: Case, arch: str) -> Scene | str:
    """The scene of a case, or why it cannot be played."""
    try:
        return record(pair, case, arch)
    except (UnsupportedError, DeviceError) as error:
        return str(error)


def recorded(pair: Pair, cases: Sequence[Case], arch: str, jobs: int) -> list[Scene | str]:
    """What `attempt` makes of each case, by so many processes; a case over which one dies is recorded here."""
    if jobs == 1:
        return [attempt(pair, case, arch) for case in cases]

    def one(number: int) -> Parcel | str:
        found = attempt(pair, cases[number], arch)
        if isinstance(found, str):
            return found
        parcel = pack(found)
        found.close()
        return parcel

    result: dict[int, Scene | str] = {}
    for number, found in pool.work(len(cases), one, lambda *_: None, jobs, kinds=_kinds(pair, cases)):
        if found is not None:
            result[number] = unpack(found, pair) if isinstance(found, Parcel) else found
    return [result[number] if number in result else attempt(pair, case, arch) for number, case in enumerate(cases)]


def _kinds(pair: Pair, cases: Sequence[Case]) -> list[str]:
    """Cases of one kind probably share their kernels, so that one process need compile them."""
    names = pair.soak.compiled
    return [
        repr([value for name, value in sorted(axes.items()) if names is None or name in names])
        for axes in axes_of(pair, cases)
    ]
