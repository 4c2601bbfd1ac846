"""What each known implementation declares, by pair, party, compiler version and architecture.

A declaration was read from the PTX that one compiler version emits, with ptxas's own contractions, and holds for that
version alone. A version that nobody read is unknown: `find` gives None for it and never a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from equiv.rounding.declarations import dsa, front, front_candidate, kda

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.rounding.declaration import Declaration, Terms

DECLARATIONS: Final[Mapping[str, tuple[Declaration, ...]]] = {
    "dsa_index": dsa.DECLARATIONS,
    "dsa_front": (*front.DECLARATIONS, *front_candidate.DECLARATIONS),
    "kda": kda.DECLARATIONS,
}
"""Pair name -> its declarations."""

TERMS: Final[Mapping[str, Mapping[str, Terms]]] = {
    "dsa_index": dsa.TERMS,
    "dsa_front": front.TERMS,
    "kda": kda.TERMS,
}
"""Pair name -> name of a reduction -> what its terms are, for finding it in a trace."""


def find(pair: str, party: str, toolchain: Mapping[str, str], arch: str, form: str = "") -> Declaration | None:
    """The declaration of one party as compiled by exactly these versions for this architecture, or None if unknown.

    Args:
        pair: name of a pair, `dsa_index`.
        party: `oracle` or `candidate`.
        toolchain: distribution -> version; distributions that a declaration does not name do not matter.
        arch: `sm_90a` or `sm_100a`.
        form: which of the party's kernels, where it has several.
    """
    for declaration in DECLARATIONS.get(pair, ()):
        named = {package: toolchain.get(package) for package in declaration.toolchain}
        if (declaration.party, declaration.arch, declaration.form) == (
            party,
            arch,
            form,
        ) and named == declaration.toolchain:
            return declaration
    return None
