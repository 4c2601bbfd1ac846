"""The ledger as text and as a table."""

from __future__ import annotations

from equiv.report import rounding
from equiv.rounding.declaration import Declaration
from equiv.rounding.dsa_ledger import LEDGER
from equiv.rounding.ledger import Row


def plain(x: int) -> int:
    return x


ROWS = (
    Row("x.1", "max |x|", "f32", "bf16", "rn", "variant", {"down": plain, "up": plain}, 2, ties="even", nan="0x7f"),
    Row("x.2", "next", "f32", "f32", "up", "exact", {"only": plain}),
)


def declares(party: str, arch: str, **variants: str) -> Declaration:
    return Declaration(party, {}, arch, {}, {name.replace("_", "."): chosen for name, chosen in variants.items()})


def test_a_row_of_the_table_has_both_variants_and_says_where_they_differ_or_are_not_known() -> None:
    said = rounding.markdown(
        ROWS,
        {
            "oracle": {"sm_90a": declares("oracle", "sm_90a", x_1="up"), "sm_100a": declares("oracle", "sm_100a")},
            "candidate": {"sm_90a": None, "sm_100a": None},
        },
    )
    assert said.splitlines() == [
        "| id | value | from -> to | mode, ties | NaN | kind | oracle variant | candidate variant |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| x.1 | max &#124;x&#124; | f32 -> bf16 | rn, even | 0x7f | variant | up (sm_90a), down (sm_100a) | unknown |",
        "| x.2 | next | f32 -> f32 | up | - | exact | - | - |",
    ]


def test_no_row_refers_to_a_document_that_a_reader_does_not_have() -> None:
    assert [line for line in rounding.ledger(LEDGER).splitlines() if "spec " in line or "fact " in line] == []
