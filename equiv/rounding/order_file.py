"""Traced orders as a file: what `equiv order PAIR --json` prints, and what a pair or a kernel declares with it.

One entry a party, architecture, form and set of compiler versions; orders as `Order.to_json` writes them. The variants
of ledger rows are nothing that a trace finds: whoever reads the file adds them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equiv.errors import RecordError
from equiv.fields import Field
from equiv.rounding.declaration import Declaration
from equiv.rounding.orders import Order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA, VERSION = "equiv orders", 1


def render(found: Iterable[Declaration]) -> str:
    """The file of some declarations, one a line; their variants are left out."""
    lines = [
        json.dumps(
            {
                "party": one.party,
                "arch": one.arch,
                "form": one.form,
                "toolchain": dict(one.toolchain),
                "orders": {name: order.to_json() for name, order in one.orders.items()},
            },
            separators=(",", ":"),
        )
        for one in found
    ]
    listed = ",\n".join(lines)
    return f'{{"schema": "{SCHEMA}", "version": {VERSION}, "declarations": [\n{listed}\n]}}\n'


@dataclass(frozen=True, slots=True)
class OrderFile:
    """What a file declares."""

    declarations: tuple[Declaration, ...]

    @classmethod
    def read(cls, path: Path) -> OrderFile:
        """Reads a file.

        Raises:
            RecordError: it cannot be read or is none; the field that is wrong is named.
        """
        whole = Field.read(path)
        whole.version(SCHEMA, VERSION)
        whole.keys({"schema", "version", "declarations"})
        return cls(tuple(_declaration(one) for one in whole["declarations"].items()))

    def find(
        self,
        party: str,
        toolchain: Mapping[str, str],
        arch: str,
        form: str = "",
        variants: Mapping[str, str] | None = None,
    ) -> Declaration | None:
        """The declaration of exactly these versions with these variants of ledger rows, None if the file has none."""
        for one in self.declarations:
            same = {package: toolchain.get(package) for package in one.toolchain} == one.toolchain
            if same and (one.party, one.arch, one.form) == (party, arch, form):
                return Declaration(party, one.toolchain, arch, one.orders, variants or {}, form)
        return None


def _declaration(entry: Field) -> Declaration:
    entry.keys({"party", "arch", "form", "toolchain", "orders"})
    return Declaration(
        entry["party"].text(),
        {package: version.text() for package, version in entry["toolchain"].entries()},
        entry["arch"].text(),
        {name: _order(order) for name, order in entry["orders"].entries()},
        {},
        entry["form"].text(),
    )


def _order(entry: Field) -> Order:
    data: Any = entry.data
    try:
        order = Order.from_json(data)
        whole = order.covers  # walks every node
        sound = all(whole[root] == tuple(range(order.terms)) for root in order.roots) and len(order.roots) > 0
    except (RecordError, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise RecordError(f"{entry.file}: {entry.path} is no order: {error}") from error
    if not sound or any(type(at) is not int or not 0 <= at < len(order.roots) for at in order.owner):
        raise RecordError(f"{entry.file}: {entry.path} is no order: a root does not add each term once")
    return order
