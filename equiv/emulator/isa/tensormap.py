"""Changing tensor maps in a kernel, and publishing them; their layout is in `equiv.emulator.tensormap`."""

from __future__ import annotations

from equiv.emulator.isa.memory import check, shared
from equiv.emulator.isa.table import Entry, Mods

_SPACE = "space?=global|shared::cta"


def _replace(mods: Mods) -> str:
    dimension = "d" if mods["field"] in {"box_dim", "global_dim", "global_stride", "element_stride"} else "0"
    value = "v_[l]" if mods["field"] not in {"elemtype", "interleave_layout", "swizzle_mode", "fill_mode"} else "v"
    limit = "4" if mods["field"] == "global_stride" else "5"
    return (
        f"{check(mods['space'], 'a', 128, 64, write=True)}\n"
        f"if ({dimension} >= {limit}) return fault(w, o, FAULT_COPY, 0, 0, (uint32_t){dimension}, 9);\n"
        "LANES(l) if (HAS(l)) map_replace((uint8_t *)a.at[l],"
        f" FIELD_{mods['field'].upper()}, (uint32_t){dimension}, {value});"
        + ("\nif (w->launch->watch) mark_lanes(w, m, a.at, 128);" if shared(mods["space"]) else "")
    )


def _entry(field: str, bits: str, operands: str) -> Entry:
    return Entry(
        f"tensormap replace tile field={field} {_SPACE} b1024 type={bits}", f"[a]:space {operands}", _replace, "warp"
    )


_PUBLISH = (
    check("global", "a", 128, 128, write=True)
    + "\n"
    + check("shared", "s", 128, 128, write=False)
    + "\nif (i != 128) return fault(w, o, FAULT_COPY, 0, 0, (uint32_t)i, 10);\n"
    "{ const int l = __builtin_ctz(m); memcpy((void *)a.at[l], (const void *)s.at[l], 128); }"
)


ENTRIES = (
    _entry("global_address", "b64", "v:b64"),
    _entry("rank", "b32", "v:b32"),
    _entry("box_dim|global_dim|element_stride", "b32", "d:imm v:b32"),
    _entry("global_stride", "b64", "d:imm v:b64"),
    _entry("elemtype|interleave_layout|swizzle_mode|fill_mode", "b32", "v:imm"),
    Entry(
        "tensormap cp_fenceproxy global shared::cta tensormap::generic release scope=cta|cluster|gpu|sys sync aligned",
        "[a]:global [s]:shared i:imm",
        _PUBLISH,
        "warp",
        hints=("scope",),
        needs_lanes="FULL",
    ),
)
