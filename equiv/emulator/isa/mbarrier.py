"""mbarriers, objects in shared memory: arrivals, bytes of asynchronous copies, waits. Their state: csrc/mbarrier.h."""

from __future__ import annotations

from functools import partial

from equiv.emulator.isa.memory import check
from equiv.emulator.isa.table import Entry, Mods

_ORDER = "sem?=release|relaxed scope?=cta|cluster"
_WAIT_ORDER = "sem?=acquire|relaxed scope?=cta|cluster"
_RELAXED = "sem?=relaxed scope?=cta|cluster"
_OWN = "space?=shared|shared::cta"
_ANY = "space?=shared|shared::cta|shared::cluster"
_HINTS = ("sem", "scope")


def _host(mods: Mods) -> str:
    return check(mods["space"], "a", 8, 8, write=True) + "\n"


def _call(call: str, mods: Mods) -> str:
    return f"{_host(mods)}if ({call}) return FAULT;"


def _change(number: str, change: str, least: int, mods: Mods) -> str:
    """`change`: an initialiser of `Change` from `number`, the lane's count or bytes; `least` arrivals are possible."""
    state = "d@" in mods
    return (
        f"{_host(mods)}Change change[32]; uint64_t state[32];\n"
        f"LANES(l) {{ const int64_t n = {number}; change[l] = (Change){{{change}}}; }}\n"
        f"if (mbarrier_apply(w, o, m, &a, change, {least}, {'state' if state else '0'})) return FAULT;"
        + ("\nLANES(l) d_[l] = HAS(l) ? state[l] : d_[l];" if state else "")
    )


def _wait(mods: Mods) -> str:
    parity = "b_[l] & 1" if mods.get("parity") else "b_[l] >> 61 & 1"
    return (
        f"{_host(mods)}uint32_t parity[32]; LANES(l) parity[l] = (uint32_t)({parity});\n"
        "outcome = mbarrier_wait(w, o, &m, &a, parity, &p_); if (outcome == FAULT) return FAULT;"
    )


def _waits() -> tuple[Entry, ...]:
    note = "lanes whose phase is not over stop; false only when nothing else can happen"
    entries = []
    for base, hint in (("test_wait", ""), ("try_wait", " -h:u32?")):
        for group, operand in (("", "b:b64"), (" parity", "b:u32")):
            entries.append(
                Entry(
                    f"mbarrier {base}{group} {_WAIT_ORDER} {_OWN} type=b64",
                    f"p=pred [a]:space {operand}{hint}",
                    _wait,
                    "warp",
                    hints=_HINTS,
                    may_park=True,
                    note=note,
                )
            )
    return tuple(entries)


def _counted(word: str, order: str, operands: str, change: str) -> Entry:
    make = partial(_change, "n_[l]" if "n:" in operands else "1", change, int(word.startswith("arrive")))
    return Entry(f"mbarrier {word} {order} {_ANY} type=b64", operands, make, "warp", hints=_HINTS)


_ONE, _STATE, _BYTES = "d=b64 [a]:space", "d=b64 [a]:space n:u32", "[a]:space n:u32"
ENTRIES = (
    Entry(f"mbarrier init {_OWN} type=b64", _BYTES, partial(_call, "mbarrier_init(w, o, m, &a, n_)"), "warp"),
    Entry(f"mbarrier inval {_OWN} type=b64", "[a]:space", partial(_call, "mbarrier_inval(w, o, m, &a)"), "warp"),
    _counted("arrive", _ORDER, _ONE, "n, 0, 0"),
    _counted("arrive", _ORDER, _STATE, "n, 0, 0"),
    _counted("arrive expect_tx", _ORDER, _STATE, "1, 0, n"),
    _counted("arrive_drop", _ORDER, _ONE, "n, n, 0"),
    _counted("arrive_drop", _ORDER, _STATE, "n, n, 0"),
    _counted("arrive_drop expect_tx", _ORDER, _STATE, "1, 1, n"),
    _counted("expect_tx", _RELAXED, _BYTES, "0, 0, n"),
    _counted("complete_tx", _RELAXED, _BYTES, "0, 0, -n"),
    *_waits(),
    Entry("mbarrier pending_count type=b64", "d=u32 a:b64", "d = (uint32_t)a & MBARRIER_COUNT_MAX;"),
)
