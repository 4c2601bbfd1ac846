"""Instructions that are known and refused: each says why, so that a kernel is not run on a guess."""

from __future__ import annotations

from equiv.emulator.isa.table import Entry


def _refused(pattern: str, reason: str) -> Entry:
    return Entry(pattern, "", kind="refused", note=reason)


_UNMEASURED = "its bits are not measured"
_PRE_VOLTA = "the form without .sync is gone since sm_70"

ENTRIES = (
    _refused("sin rest=*", f"{_UNMEASURED}, nor is the range reduction in front of it"),
    _refused("cos rest=*", f"{_UNMEASURED}, nor is the range reduction in front of it"),
    _refused("rcp approx ftz type=f64", _UNMEASURED),
    _refused("rsqrt approx ftz? type=f64", _UNMEASURED),
    _refused("cvt rs rest=*", f"stochastic rounding: {_UNMEASURED}"),
    _refused("fma rn oob rest=*", "out-of-bounds NaNs are not emulated"),
    _refused("shfl mode=up|down|bfly|idx rest=*", _PRE_VOLTA),
    _refused("vote mode=all|any|uni|ballot rest=*", _PRE_VOLTA),
    _refused("brkpt", "there is no debugger to stop in"),
)
