"""Settings changed for the length of a block."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MISSING = object()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:  # noqa: ANN401  any object, any attribute
    """`owner.name` is `value` inside the block, and afterwards what it was: also if it was inherited, or not there."""
    own = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is not _MISSING:
            setattr(owner, name, own)
        elif name in vars(owner):
            delattr(owner, name)
        else:  # a property that put the value elsewhere
            setattr(owner, name, None)
