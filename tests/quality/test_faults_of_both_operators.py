"""Does equiv find the bug? Faults that reports on such kernels tell of, seeded into both operators, are named.

`python tests/support/fault_table.py` prints all of them with what they were named by.
"""

from __future__ import annotations

from pathlib import Path

import index_faults
import kda_faults
import pytest
from kda_row_faults import ROWS
from seeded import Fault, found, package

from equiv import dsa_index, kda
from equiv.casefile import load

CASE_FILES = Path(__file__).parents[2] / "cases"
CASES = {pair.name: {case.id: case for case in load(CASE_FILES / f"{pair.name}.toml", pair)}
         for pair in (kda.PAIR, dsa_index.PAIR)}  # fmt: skip
DEVICES = ("emulated:sm_90a", "emulated:sm_100a")
ALL = (*kda_faults.FAULTS, *index_faults.FAULTS)


def on(fault: Fault) -> str:
    """The architectures by turns."""
    return DEVICES[ALL.index(fault) % 2]


def _indexer() -> list[object]:
    slow = pytest.mark.slow
    return [
        pytest.param(fault, id=fault.name, marks=[slow] if fault.name in index_faults.LONG else [])
        for fault in index_faults.FAULTS
    ]


@pytest.mark.parametrize("fault", _indexer())
def test_a_fault_of_the_indexer_is_named(fault: Fault) -> None:
    case = CASES["dsa_index"][fault.case]
    assert "pr" in case.suites
    assert fault.named in found(dsa_index.PAIR, "index_faults", fault, case, on(fault))


@pytest.mark.parametrize("fault", [*kda_faults.SCHEDULE[1:], *kda_faults.PLACES], ids=lambda fault: fault.name)
def test_a_fault_of_slots_counts_or_barriers_of_kda_is_named(fault: Fault) -> None:
    case = CASES["kda"][fault.case]
    assert "pr" in case.suites
    assert fault.named in found(kda.PAIR, "kda_faults", fault, case, on(fault))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ROWS, ids=lambda fault: fault.name)
def test_a_fault_of_arithmetic_of_kda_is_caught_and_named_at_its_row(fault: Fault) -> None:
    case = CASES["kda"][fault.case]
    assert "pr" in case.suites
    said = found(kda.PAIR, "kda_faults", fault, case, on(fault))
    assert "elements differ from the model" in said
    assert fault.named in said


def test_there_are_more_than_thirty_and_nearly_all_have_a_name() -> None:
    assert len(ALL) >= 60
    assert len({fault.name for fault in ALL}) == len(ALL)
    assert sum(bool(fault.named) for fault in ALL) >= 0.95 * len(ALL)


def test_a_fault_whose_text_is_no_longer_in_the_kernel_is_an_error() -> None:
    gone = Fault("gone", "wide-b3-t1", "kda/wide.py", "no such text", "", "")
    with pytest.raises(ValueError, match=r"gone: 0 times in kda/wide.py, not 1: 'no such text'"):
        package(gone)
    with pytest.raises(ValueError, match=r"gone: no module kda/nothing.py"):
        package(Fault("gone", "wide-b3-t1", "kda/nothing.py", "a", "b", ""))
