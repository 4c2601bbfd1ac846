"""Reading a JSON index that somebody else may have written: every field is checked, and a wrong one named by its path.

Nothing of a file is believed before it went through a `Field`; reading one executes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equiv.errors import RecordError

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 1 << 26
"""Bytes of the largest index that is read."""
SHOWN = 80
"""Characters of a wrong value that are shown."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value of an index, with the file and the path inside it (`$.launches[0].grid`) that errors name."""

    file: str
    path: str
    data: Any

    @staticmethod
    def read(path: Path, largest: int = LARGEST) -> Field:
        """The whole of a JSON file.

        Raises:
            RecordError: it cannot be read, is larger than `largest` bytes, or no JSON.
        """
        try:
            size = path.stat().st_size
            if size > largest:
                raise RecordError(f"{path}: {size} bytes, an index has {largest} at most")
            return Field(str(path), "$", json.loads(path.read_bytes()))
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{path}: no JSON: {error}") from error

    def wrong(self, wanted: str) -> RecordError:
        """The error that says what was wanted here and what was found."""
        shown = repr(self.data)
        shown = shown if len(shown) < SHOWN else shown[: SHOWN - 3] + "..."
        return RecordError(f"{self.file}: {self.path} is {shown}, wanted {wanted}")

    def keys(self, wanted: set[str]) -> None:
        """Refuses anything but an object with exactly these fields."""
        if not isinstance(self.data, dict):
            raise self.wrong("an object")
        if set(self.data) != wanted:
            odd = ", ".join(sorted(set(self.data) ^ wanted))
            raise RecordError(f"{self.file}: {self.path} has missing or unknown fields: {odd}")

    def version(self, schema: str, number: int) -> None:
        """Refuses an object that is not of this schema and version; asked before its other fields are looked at."""
        if not isinstance(self.data, dict):
            raise self.wrong("an object")
        found = (self.data.get("schema"), self.data.get("version"))
        if found != (schema, number):
            raise RecordError(f"{self.file}: schema {found[0]!r} version {found[1]!r}, this reads {schema!r} {number}")

    def __getitem__(self, key: str) -> Field:
        return Field(self.file, f"{self.path}.{key}", self.data[key])

    def items(self, count: int | None = None) -> list[Field]:
        """The entries of a list, of `count` entries if that is given."""
        if not isinstance(self.data, list) or (count is not None and len(self.data) != count):
            raise self.wrong("a list" if count is None else f"{count} values")
        return [Field(self.file, f"{self.path}[{index}]", value) for index, value in enumerate(self.data)]

    def entries(self) -> Iterator[tuple[str, Field]]:
        """(name, value) of each field of an object."""
        if not isinstance(self.data, dict):
            raise self.wrong("an object")
        for name in self.data:
            yield name, self[name]

    def integer(self, low: int, high: int) -> int:
        """An integer in low..high; a boolean is none."""
        if type(self.data) is not int or not low <= self.data <= high:
            raise self.wrong(f"an integer in {low}..{high}")
        return self.data

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.data, bool):
            raise self.wrong("true or false")
        return self.data

    def text(self, pattern: re.Pattern[str] | None = None) -> str:
        """A text, one that matches the whole pattern if that is given."""
        if not isinstance(self.data, str) or (pattern is not None and not pattern.fullmatch(self.data)):
            raise self.wrong("a text" if pattern is None else f"a text like {pattern.pattern}")
        return self.data

    def choice(self, known: tuple[str, ...]) -> str:
        """One of these texts."""
        if self.data not in known:
            raise self.wrong(f"one of {', '.join(known)}")
        return str(self.data)
