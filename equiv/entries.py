"""Entry points: what installed packages bring to equiv. Finding one loads nothing; every fault names it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from equiv.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = TypeVar("Kind")


def names(group: str) -> tuple[str, ...]:
    """Names in a group, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def point(group: str, name: str) -> EntryPoint:
    """The entry point of that name.

    Raises:
        UsageError: there is none (those of the group are listed), or two packages bring different ones.
    """
    noun = group.removeprefix("equiv.").removesuffix("s")
    found = {one.value: one for one in entry_points(group=group) if one.name == name}
    if not found:
        raise UsageError(f"no {noun} named {name!r}; known: {', '.join(names(group)) or 'none'}")
    if len(found) > 1:
        raise UsageError(f"entry point {group} {name!r} is claimed by {' and '.join(sorted(found))}: uninstall one")
    return next(iter(found.values()))


def load(group: str, name: str, kind: type[Kind]) -> Kind:
    """What an entry point gives.

    Raises:
        UsageError: there is no such one, it cannot be loaded, or it gives something else than a `kind`.
    """
    one = point(group, name)
    what = f"entry point {group} {name!r} ({one.value})"
    try:
        found = one.load()
    except (Exception, SystemExit) as error:  # somebody's module: whatever it raises, this is what is wrong with it
        raise UsageError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        raise UsageError(f"{what} gives a {type(found).__name__}, not a {kind.__name__}")
    return found
