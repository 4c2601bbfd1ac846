"""How often each instruction of a kernel is come to, so that a mutant meets only cases that get to it.

Every handler is wrapped by one that counts. It also applies the guard itself, since an instruction whose guard is false
counts as reached: with its guard negated it would be executed.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from equiv import ccode
from equiv.emulator.backend import INCLUDES

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.emulator.engine import Program

_SOURCE = """#include "runtime.h"
Handler **reach_run;
const uint32_t *reach_guard, *reach_flip;
uint64_t *reach_count;
int reach(Warp *w, const Op *o, uint32_t m) {
    const uint64_t at = (uint64_t)(o - w->launch->code);
    reach_count[at]++;
    m &= *(uint32_t *)(w->regs + reach_guard[at]) ^ reach_flip[at];
    return m ? reach_run[at](w, o, m) : NEXT;
}
"""


@cache
def _library() -> ctypes.CDLL:
    return ccode.library("reach", _SOURCE, [INCLUDES[0] / "runtime.h"])


class Counting:
    """A copy of a program that counts; one may run at a time in a process.

    Attributes:
        program: to launch instead.
        count: of each instruction, by warps.
    """

    def __init__(self, program: Program) -> None:
        library = _library()
        code = program.code.copy()
        tables = {
            "reach_run": np.ascontiguousarray(code["run"]),
            "reach_guard": np.ascontiguousarray(code["guard"]),
            "reach_flip": np.ascontiguousarray(code["flip"]),
            "reach_count": np.zeros(len(code), np.uint64),
        }
        self.count: npt.NDArray[np.uint64] = tables["reach_count"]
        self._tables = tables
        code["run"] = ctypes.cast(library.reach, ctypes.c_void_p).value
        code["guard"] = code["guard"][-1]  # the exit behind the last instruction has a guard that is always true
        code["flip"] = 0
        self.program = replace(program, code=code)

    def begin(self) -> None:
        """The launches that follow count here."""
        for name, table in self._tables.items():
            ctypes.c_void_p.in_dll(_library(), name).value = table.ctypes.data
