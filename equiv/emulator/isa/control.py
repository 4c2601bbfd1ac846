"""Branches, exits, barriers."""

from __future__ import annotations

from functools import partial

from equiv.emulator.isa.table import MEMBERS, OUTSIDER, Entry, Mods

_FIRST = "[__builtin_ctz(m)]"

_INDEXED = (
    "uint32_t left = m, first = 0, target = 0;\n"
    "while (left) { const uint64_t i = a_[__builtin_ctz(left)]; uint32_t same = 0;"
    " if (i >= IMM(TABLE)) return fault(w, o, FAULT_VALUE, (uint32_t)__builtin_ctz(left), i, 0, 1);"
    " LANES(l) if (left >> l & 1 && a_[l] == i) same |= 1u << l;"
    " left &= ~same; const uint32_t to = (uint32_t)o->arg[TABLE + 1 + i];"
    " if (first) add_fragment(w, same, to, READY, 0, 0); else { first = same; target = to; } }\n"
    "if (w->active & ~m) add_fragment(w, w->active & ~m, (uint32_t)(o - w->launch->code) + 1, READY, 0, 0);\n"
    "w->active = first; w->pc = target; return JUMP;"
)


def _barrier(mods: Mods) -> str:
    waits = int(mods["what"] == "sync")
    return f"return barrier_arrive(w, o, m, (uint32_t)a_{_FIRST}, (uint32_t)b_{_FIRST}, {waits});"


def _reduction(mods: Mods, *, threads: bool) -> str:
    result = "NEVER" if mods["d@"] == "sink" else "(uint32_t)o->arg[0]"
    count = f"(uint32_t)b_{_FIRST}" if threads else "0"
    return (
        f"return barrier_reduce(w, o, m, (uint32_t)a_{_FIRST}, {count}, 1, BARRIER_{mods['op'].upper()}, {result}, p_);"
    )


def _reductions() -> tuple[Entry, ...]:
    entries = []
    for base, tail in (("bar cta? red", ""), ("barrier cta? red", "aligned?")):
        for operation, target, kind in (("popc", "d=u32", "u32"), ("and|or", "d=pred", "pred")):
            for operands in ("a:b32", "a:b32 b:b32"):
                pattern = f"{base} op={operation} {tail} type={kind}"
                hints = ("cta", "aligned") if tail else ("cta",)
                body = partial(_reduction, threads="b:" in operands)
                entries.append(Entry(pattern, f"{target} {operands} p:pred", body, "warp", hints=hints))
    return tuple(entries)


ENTRIES = (
    Entry("bra uni?", "t:label", "return branch(w, o, m, (uint32_t)t);", "warp", hints=("uni",), flow="jump"),
    Entry("brx idx uni?", "a:u32 t:table", _INDEXED.replace("TABLE", "1"), "warp", hints=("uni",), flow="jump"),
    Entry(
        "ret uni?",
        "",
        "return exit_lanes(w, o, m);",
        "warp",
        hints=("uni",),
        flow="exit",
        note="of a kernel: the lanes are done",
    ),
    Entry("exit", "", "return exit_lanes(w, o, m);", "warp", flow="exit"),
    Entry("trap", "", "return fault(w, o, FAULT_TRAP, (uint32_t)__builtin_ctz(m), 0, 0, 0);", "warp", flow="exit"),
    Entry("bar cta? what=sync", "a:b32 b:b32?", _barrier, "warp", hints=("cta",)),
    Entry("bar cta? what=arrive", "a:b32 b:b32", _barrier, "warp", hints=("cta",)),
    Entry("barrier cta? what=sync aligned?", "a:b32 b:b32?", _barrier, "warp", hints=("cta", "aligned")),
    Entry("barrier cta? what=arrive aligned?", "a:b32 b:b32", _barrier, "warp", hints=("cta", "aligned")),
    *_reductions(),
    Entry("bar warp sync", "mask:b32", f"{OUTSIDER} return warp_sync(w, o, m, {MEMBERS});", "warp"),
    Entry(
        "barrier cluster arrive sem?=release|relaxed aligned?",
        "",
        "return cluster_arrive(w, o, m);",
        "warp",
        hints=("sem", "aligned"),
    ),
    Entry(
        "barrier cluster wait sem?=acquire aligned?",
        "",
        "return cluster_wait(w, o, m);",
        "warp",
        hints=("sem", "aligned"),
    ),
    Entry("setmaxnreg what=inc|dec sync aligned type=u32", "i:imm", kind="none"),
    Entry("nanosleep type=u32", "-a:u32", kind="none"),
    Entry("pmevent", "i:imm", kind="none"),
)
