"""Prints every seeded fault with the case that catches it and what it is named by: `fault_table.py [DEVICE]`."""

from __future__ import annotations

import sys
from pathlib import Path

import index_faults
import kda_faults
from seeded import found

from equiv import dsa_index, kda
from equiv.casefile import load


def main(on: str) -> None:
    """Runs `explain` on all of them; the last line counts."""
    total = caught = named = 0
    for pair, module in ((kda.PAIR, kda_faults), (dsa_index.PAIR, index_faults)):
        cases = {case.id: case for case in load(Path("cases") / f"{pair.name}.toml", pair)}
        for fault in module.FAULTS:
            said = found(pair, module.__name__, fault, cases[fault.case], on)
            seen = "there is nothing to explain" not in said
            hit = bool(fault.named) and fault.named in said
            total, caught, named = total + 1, caught + seen, named + hit
            words = fault.named if hit else "caught, not named" if seen else "NOT CAUGHT"
            print(f"{pair.name:9}  {fault.name:51}  {fault.case:27}  {words}", flush=True)
    print(f"{on}: {caught} of {total} faults caught, {named} named ({named / total:.0%})")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["emulated:sm_90a"])
