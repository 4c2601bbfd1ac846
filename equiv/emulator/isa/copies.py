"""Asynchronous copies: `cp.async`, bulk copies and reductions, tensor copies, `st.async` and their groups.

When they land is a matter of the launch (`equiv.emulator.engine.launch`); csrc/async.h says how.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from equiv.emulator.isa.memory import check
from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods

_PREFETCH = "size?=L2::64B|L2::128B|L2::256B"
_POLICY = (("", ""), ("hint=L2::cache_hint", " -h:b64"))
_TX = "mbarrier::complete_tx::bytes"
_ELEMENTS = {"u32": "U32", "s32": "S32", "u64": "U64", "s64": "S64", "f16": "F16", "bf16": "BF16", "f32": "F32",
             "f64": "F64", "b32": "U32", "b64": "U64"}  # fmt: skip
_INTEGERS = (("add", "u32|s32|u64"), ("min", "u32|s32|u64|s64"), ("max", "u32|s32|u64|s64"), ("inc", "u32"),
             ("dec", "u32"), ("and", "b32|b64"), ("or", "b32|b64"), ("xor", "b32|b64"))  # fmt: skip
_SHARED_INTEGERS = (("add", "u32|s32|u64"), ("min", "u32|s32"), ("max", "u32|s32"), ("inc", "u32"), ("dec", "u32"),
                    ("and", "b32"), ("or", "b32"), ("xor", "b32"))  # fmt: skip
_OPERATIONS = "add|min|max|inc|dec|and|or|xor"


def _reduction(mods: Mods) -> str:
    """C arguments: the operation and the type of its elements."""
    if "op" not in mods:
        return "REDUCE_MOVE, 0"
    # Additions to global memory flush subnormals as `red` does (measured for it).
    flush = "_FTZ" if mods["type"] == "f32" else ""
    return f"REDUCE_{mods['op'].upper()}, ELEMENT_{_ELEMENTS[mods['type']]}{flush}"


def _copy(part: str, _: Mods) -> str:
    """cp.async: `e` bytes, of which the first `count[l]` are read and the rest are zero."""
    count = "b_[l]" if part == "bytes" else "(b_ >> l & 1 ? 0 : e)" if part == "ignore" else "e"
    return f"uint64_t count[32]; LANES(l) count[l] = {count};\nif (copy_async(w, o, m, &a, &s, e, count)) return FAULT;"


def _copies() -> tuple[Entry, ...]:
    return tuple(
        Entry(
            f"cp async cop=ca|cg space=shared|shared::cta global {hint} {_PREFETCH}",
            f"[a]:shared [s]:global e:imm{operands}{policy}",
            partial(_copy, part),
            "warp",
            hints=("cop", "hint", "size"),
        )
        for (operands, part), (hint, policy) in product((("", ""), (" b:b32", "bytes"), (" b:pred", "ignore")), _POLICY)
    )


def _copy_arrive(mods: Mods) -> str:
    host = check(mods["space"], "a", 8, 8, write=True)
    return f"{host}\nif (copy_arrive(w, o, m, &a, {int(bool(mods['noinc']))})) return FAULT;"


_COMMIT = "LANES(l) w->{0}_group[l] += HAS(l);"


def _wait(end: str, *, everything: bool, mods: Mods) -> str:
    reading = int(bool(mods.get("read")))
    pending = "0" if everything else "(uint32_t)i"
    return f"if (copy_wait(w, m, {end}, {pending}, {reading}, {int(everything)})) return FAULT;"


def _groups() -> tuple[Entry, ...]:
    return (
        Entry("cp async commit_group", "", _COMMIT.format("copy"), "warp"),
        Entry(
            "cp async wait_group", "i:count", lambda mods: _wait("END_COPY_GROUP", everything=False, mods=mods), "warp"
        ),
        Entry("cp async wait_all", "", lambda mods: _wait("END_COPY_GROUP", everything=True, mods=mods), "warp"),
        Entry("cp async mbarrier arrive noinc? space?=shared|shared::cta type=b64", "[a]:space", _copy_arrive, "warp"),
        Entry("cp async bulk commit_group", "", _COMMIT.format("bulk"), "warp"),
        Entry(
            "cp async bulk wait_group read?",
            "i:count",
            lambda mods: _wait("END_BULK_GROUP", everything=False, mods=mods),
            "warp",
        ),
    )


def _load(mods: Mods) -> str:
    shared = int(mods["src"] != "global")
    ranks = "ranks_" if mods.get("multicast") else "0"
    return f"return bulk_load(w, o, m, &a, &s, n_, &b, {shared}, {ranks}, {_reduction(mods)});"


def _store(mods: Mods) -> str:
    return f"return bulk_store(w, o, m, &a, &s, n_, {_reduction(mods)});"


def _bulk() -> tuple[Entry, ...]:
    entries = [
        Entry(
            f"cp async bulk dst=shared::cluster src=shared::cta {_TX}", "[a]:dst [s]:src n:u32 [b]:dst", _load, "warp"
        )
    ]
    for hint, policy in _POLICY:
        hints = ("hint",) if hint else ()
        for destination, multicast, ranks in (
            ("shared::cluster|shared::cta", "", ""),
            ("shared::cluster", "multicast=multicast::cluster", " ranks:u16"),
        ):
            entries.append(
                Entry(
                    f"cp async bulk dst={destination} src=global {_TX} {multicast} {hint}",
                    f"[a]:dst [s]:src n:u32 [b]:dst{ranks}{policy}",
                    _load,
                    "warp",
                    hints=hints,
                )
            )
        pattern = f"global shared::cta bulk_group {hint}"
        operands = f"[a]:global [s]:shared::cta n:u32{policy}"
        entries.append(Entry(f"cp async bulk {pattern}", operands, _store, "warp", hints=hints))
        entries.append(Entry(f"cp async bulk prefetch L2 src=global {hint}", f"[s]:src -n:u32{policy}", kind="none"))
        for operation, types in (*_INTEGERS, ("add", "f32|f64")):
            reduction = f"op={operation} type={types}"
            entries.append(Entry(f"cp reduce async bulk {pattern} {reduction}", operands, _store, "warp", hints=hints))
        halves = ((operation, "noftz" if operation == "add" else "") for operation in ("add", "min", "max"))
        for operation, flush in halves:
            reduction = f"op={operation} {flush} type=f16|bf16"
            entries.append(Entry(f"cp reduce async bulk {pattern} {reduction}", operands, _store, "warp", hints=hints))
    for operation, types in _SHARED_INTEGERS:
        pattern = f"cp reduce async bulk dst=shared::cluster src=shared::cta {_TX} op={operation} type={types}"
        entries.append(Entry(pattern, "[a]:dst [s]:src n:u32 [b]:dst", _load, "warp"))
    return tuple(entries)


def _tensor(mods: Mods) -> str:
    rank = int(mods["dim"][0])
    coordinates = "".join(f" memcpy(at[{d}], c{d}_, sizeof at[{d}]);" for d in range(rank))
    load = "dst" in mods
    barrier, ranks = ("&b" if load else "0"), ("ranks_" if mods.get("multicast") else "0")
    operation = f"REDUCE_{mods['op'].upper()}" if "op" in mods else "REDUCE_MOVE"
    pair = int(mods.get("group") == "cta_group::2")
    return (
        check("", "t", 128, 64, write=False) + f"\nint32_t at[{rank}][32];{coordinates}\n"
        f"return box_issue(w, o, m, &t, {rank}, at, &a, {barrier}, {ranks}, {pair}, {operation});"
    )


def _tensors() -> tuple[Entry, ...]:
    dim = "dim=1d|2d|3d|4d|5d"
    entries = []
    for hint, policy in _POLICY:
        hints = ("tile", "hint") if hint else ("tile",)
        for destination, multicast, ranks, group, arch in (
            ("shared::cluster|shared::cta", "", "", "", 0),
            ("shared::cluster", "multicast=multicast::cluster", " ranks:u16", "", 0),
            ("shared::cluster|shared::cta", "", "", "group=cta_group::1|cta_group::2", 100),
            ("shared::cluster", "multicast=multicast::cluster", " ranks:u16", "group=cta_group::1|cta_group::2", 100),
        ):
            entries.append(
                Entry(
                    f"cp async bulk tensor {dim} dst={destination} global tile? {_TX} {multicast} {group} {hint}",
                    f"[a]:dst [t,c]:*dim [b]:dst{ranks}{policy}",
                    _tensor,
                    "warp",
                    hints=hints,
                    arch=arch,
                )
            )
        tail = f"tile? bulk_group {hint}"
        operands = f"[t,c]:*dim [a]:shared::cta{policy}"
        pattern = f"cp async bulk tensor {dim} global shared::cta {tail}"
        entries.append(Entry(pattern, operands, _tensor, "warp", hints=hints))
        pattern = f"cp reduce async bulk tensor {dim} global shared::cta op={_OPERATIONS} {tail}"
        entries.append(Entry(pattern, operands, _tensor, "warp", hints=hints))
        pattern = f"cp async bulk prefetch tensor {dim} L2 global tile? {hint}"
        entries.append(Entry(pattern, f"[t,c]:*dim{policy}", kind="none"))
    return tuple(entries)


def _store_async(mods: Mods) -> str:
    names = [f"v{i}" for i in range(int(mods["vec"][1:]))] if mods.get("vec") else ["v"]
    size = TYPE_BITS[mods["type"]] // 8
    packed = " ".join(f"memcpy(value[l] + {size * i}, &{name}_[l], {size});" for i, name in enumerate(names))
    return (
        f"uint8_t value[32][16]; LANES(l) {{ {packed} }}\n"
        f"return store_async(w, o, m, &a, &b, value, {size * len(names)}, {_reduction(mods)});"
    )


_STORE_OPERANDS = "[a]:space v:type*vec [b]:space"
_STORE = f"st async weak? space=shared::cluster {_TX}"
_REDUCE = f"red async relaxed cluster space=shared::cluster {_TX}"
ENTRIES = (
    *_copies(),
    *_groups(),
    *_bulk(),
    *_tensors(),
    Entry(f"{_STORE} vec?=v2|v4 type=b32|u32|s32|f32", _STORE_OPERANDS, _store_async, "warp", hints=("weak",)),
    Entry(f"{_STORE} vec?=v2 type=b64|u64|s64|f64", _STORE_OPERANDS, _store_async, "warp", hints=("weak",)),
    *(
        Entry(f"{_REDUCE} op={operation} type={types}", "[a]:space v:type [b]:space", _store_async, "warp")
        for operation, types in _SHARED_INTEGERS
    ),
)
