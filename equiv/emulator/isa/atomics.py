"""Atomic operations on memory: `atom` and `red`, scalars and vectors.

They happen at once, lanes in ascending order; each sees the one before. Float additions are counted in
`Launch.order_dependent`, because the hardware leaves open which comes first.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from equiv.emulator.isa.memory import check, shared
from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods, c_type

_FLOATS = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64"})
_POLICY = (("", ""), ("hint=L2::cache_hint", " -h:b64"))
_SPACE = "space?=global|shared|shared::cta|shared::cluster"
_ORDERS = (
    f"sem?=relaxed|acquire|release|acq_rel scope?=cta|cluster|gpu|sys {_SPACE}",
    # As Triton spells it.
    "space=global|shared scope=cta|cluster|gpu|sys sem=relaxed|acquire|release|acq_rel",
    "space=global|shared scope=cta|cluster|gpu|sys",
)
_GLOBAL = "sem?=relaxed|acquire|release|acq_rel scope?=cta|cluster|gpu|sys space?=global"
_HINTS = ("sem", "scope", "noftz", "hint")
_OPERATIONS = (
    ("add", "", "u32|s32|u64"),
    ("min", "", "u32|s32|u64|s64"),
    ("max", "", "u32|s32|u64|s64"),
    ("and", "", "b32|b64"),
    ("or", "", "b32|b64"),
    ("xor", "", "b32|b64"),
    ("inc", "", "u32"),
    ("dec", "", "u32"),
    ("add", "", "f32|f64"),
    ("add", "noftz", "f16|bf16|f16x2|bf16x2"),
)


def _value(kind: str, operation: str, flush: str) -> str:
    """C for what memory holds afterwards: `x` is there, `b` (and `c`) are given."""
    if kind in {"f16x2", "bf16x2"}:
        half = f"{kind[:-2]}_{operation}"
        return f"{half}(x & 0xffff, b & 0xffff) | {half}(x >> 16, b >> 16) << 16"
    if kind in {"f16", "bf16"}:
        return f"{kind}_{operation}(x, b)"
    if kind in {"f32", "f64"}:
        return f"reduce_element(REDUCE_ADD, ELEMENT_{kind.upper()}{flush if kind == 'f32' else ''}, x, b)"
    return {
        "add": "x + b",
        "min": "b < x ? b : x",
        "max": "b > x ? b : x",
        "and": "x & b",
        "or": "x | b",
        "xor": "x ^ b",
        "exch": "b",
        "cas": "x == b ? c : x",
        "inc": "x >= b ? 0 : x + 1",
        "dec": "x == 0 || x > b ? b : x - 1",
    }[operation]


def _atomic(mods: Mods, *, result: bool) -> str:
    kind, operation = mods["type"], mods["op"]
    lane = c_type(kind)
    size = TYPE_BITS[kind] // 8
    count = int(mods["vec"][1:]) if mods.get("vec") else 0
    # Measured on an H200: addition to global memory flushes subnormals, to shared memory it keeps them.
    flush = "_FTZ" if mods["space"] in {"global", ""} else ""
    value = _value(kind, operation, flush)
    third = f"const {lane} c = ({lane})c_[l];" if operation == "cas" else ""
    lines = [check(mods["space"], "a", size * max(count, 1), size * max(count, 1), write=True)]
    total = size * max(count, 1)
    if shared(mods["space"]):
        lines.append(f"if (w->launch->watch && read_check(w, o, m, a.at, {total})) return FAULT;")
    lines.append("LANES(l) if (HAS(l)) {")
    for number in range(max(count, 1)):
        index = str(number) if count else ""
        store = f" d{index}_[l] = x;" if result else ""
        lines.append(
            f"{{ void *at = (void *)(a.at[l] + {size * number}); {lane} x; memcpy(&x, at, {size});"
            f" const {lane} b = ({lane})b{index}_[l]; {third}"
            f" const {lane} y = ({lane})({value}); memcpy(at, &y, {size});{store} }}"
        )
    lines.append("}\nw->launch->events++;")
    if shared(mods["space"]):
        lines.append(f"if (w->launch->watch) mark_lanes(w, m, a.at, {total});")
    if kind in _FLOATS and operation == "add":
        lines.append(f"w->launch->order_dependent += {max(count, 1)} * (uint64_t)__builtin_popcount(m);")
    return "\n".join(lines)


def _pair(pattern: str, third: str = "", *, red: bool = True) -> list[Entry]:
    """`atom` and `red` of one pattern."""
    vector = "*vec" if "vec=" in pattern else ""
    policy = " -h:b64" if "hint=" in pattern else ""
    operands = f"[a]:space b:type{vector}{third}{policy}"
    entries = [
        Entry(f"atom {pattern}", f"d=type{vector} {operands}", partial(_atomic, result=True), "warp", hints=_HINTS)
    ]
    if red:
        entries.append(Entry(f"red {pattern}", operands, partial(_atomic, result=False), "warp", hints=_HINTS))
    return entries


def _entries() -> tuple[Entry, ...]:
    found = []
    for order, (hint, _) in product(_ORDERS, _POLICY):
        for operation, flush, types in _OPERATIONS:
            found += _pair(f"{order} op={operation} {flush} {hint} type={types}")
        found += _pair(f"{order} op=exch {hint} type=b32|b64", red=False)
        found += _pair(f"{order} op=cas {hint} type=b16|b32|b64", " c:type", red=False)
    for hint, _ in _POLICY:
        found += _pair(f"{_GLOBAL} op=add {hint} vec=v2|v4 type=f32")
        found += _pair(f"{_GLOBAL} op=add|min|max noftz {hint} vec=v2|v4|v8 type=f16|bf16")
        found += _pair(f"{_GLOBAL} op=add|min|max noftz {hint} vec=v2|v4 type=f16x2|bf16x2")
    found += _pair(f"{_GLOBAL} vec=v2|v4 type=f32 op=add")
    return tuple(found)


ENTRIES = (
    *_entries(),
    Entry("multimem rest=*", "", kind="refused", note="multimem addresses reach several devices; one is emulated"),
)
