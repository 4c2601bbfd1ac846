"""Loads, stores, atomics, address arithmetic, and the hints and fences without effect on values.

Loads, stores and atomics happen at once, which is one legal order; so fences have nothing to do.
"""

from __future__ import annotations

from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods, c_type

_SEM = {"ld": "weak|relaxed|acquire|volatile|mmio.relaxed", "st": "weak|relaxed|release|volatile|mmio.relaxed"}
_SCOPE = "scope?=cta|cluster|gpu|sys"
_L1 = "l1?=L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
_L2 = "l2?=L2::evict_normal|L2::evict_first|L2::evict_last"
_PREFETCH = "size?=L2::64B|L2::128B|L2::256B"
_NARROW = "b8|u8|s8|b16|u16|s16|b32|u32|s32|f32"
_WIDE = "b64|u64|s64|f64"
_SHARED = "shared|shared::cta|shared::cluster"
_HINTS = ("sem", "scope", "cop", "nc", "l1", "l2", "hint", "size")


def check(space: str, name: str, size: int, align: int, *, write: bool) -> str:
    """C that checks the addresses in `name` and turns them into host addresses; leaves the handler on a violation."""
    last = int(write)
    call = {
        "global": f"global_check(w, o, m, &{name}, {size}, {align}, {last})",
        "const": f"global_check(w, o, m, &{name}, {size}, {align}, {last})",
        "": f"generic_check(w, o, m, &{name}, {size}, {align}, {last})",
        "shared": f"shared_check(w, o, m, &{name}, {size}, {align}, 0)",
        "shared::cta": f"shared_check(w, o, m, &{name}, {size}, {align}, 0)",
        "shared::cluster": f"shared_check(w, o, m, &{name}, {size}, {align}, 1)",
        "local": f"local_check(w, o, m, &{name}, {size}, {align})",
        "param": f"param_check(w, o, m, &{name}, {size}, {align})",
        "param::entry": f"param_check(w, o, m, &{name}, {size}, {align})",
    }[space]
    return f"if ({call}) return FAULT;"


def shared(space: str) -> bool:
    """Whether an address of that space may lie in shared memory, whose reads and writes are watched (csrc/checks.h)."""
    return space.startswith("shared") or not space


def _odd(names: list[str], bits: int) -> str:
    """C: true if a lane's value shows a byte of never-written shared memory."""
    width = 64 if bits == 64 else 32
    tests = " | ".join(f"ODD{width}({name}_[l], low, high)" for name in names)
    return (
        f"w->launch->watch && ({{ const uint64_t low = w->launch->watch->low, high = w->launch->watch->high;"
        f" uint{width}_t odd = 0; LANES(l) odd |= {tests}; odd; }})"
    )


def _names(stem: str, mods: Mods) -> list[str]:
    return [f"{stem}{i}" for i in range(int(mods["vec"][1:]))] if mods.get("vec") else [stem]


def _load(mods: Mods) -> str:
    names, lane = _names("d", mods), c_type(mods["type"])
    size = TYPE_BITS[mods["type"]] // 8
    total = size * len(names)
    lines = [check(mods["space"], "a", total, total, write=False)]
    if mods["a@"] == "uniform" and mods["space"].startswith("param"):
        lines.append(f"const {lane} *p = (const {lane} *)a.at[0];")
        lines += [
            f"{{ const {lane} v = p[{i}]; LANES(l) {name}_[l] = HAS(l) ? v : {name}_[l]; }}"
            for i, name in enumerate(names)
        ]
        return "\n".join(lines)
    lines.append(f"LANES(l) {{ {lane} v[{len(names)}]; memcpy(v, (const void *)a.at[l], {total});")
    lines += [f"{name}_[l] = HAS(l) ? v[{i}] : {name}_[l];" for i, name in enumerate(names)]
    lines.append("}")
    if shared(mods["space"]):
        lines.append(f"if ({_odd(names, size * 8)} && read_check(w, o, m, a.at, {total})) return FAULT;")
    return "\n".join(lines)


def _store(mods: Mods) -> str:
    """Which of several lanes that store to one address wins is open in PTX; here as measured on an H200.

    A pass stores 128 bytes' worth of lanes: 32 of up to 4 bytes, 16 of 8, 8 of 16. Of one pass the lowest lane's value
    stays, a later pass overwrites an earlier one; `k ^ (lanes - 1)` visits passes upwards and their lanes downwards.
    """
    names, lane = _names("b", mods), c_type(mods["type"])
    total = TYPE_BITS[mods["type"]] // 8 * len(names)
    values = ", ".join(f"({lane}){name}_[l]" for name in names)
    lanes = 128 // max(total, 4)
    return (
        check(mods["space"], "a", total, total, write=True)
        + f"\nLANES(k) {{ const int l = k ^ {lanes - 1}; if (HAS(l)) {{ const {lane} v[] = {{{values}}};"
        + f" memcpy((void *)a.at[l], v, {total}); }} }}"
        + (
            f"\nif ({_odd(names, total // len(names) * 8)}) mark_lanes(w, m, a.at, {total});"
            if shared(mods["space"])
            else ""
        )
    )


def _store_bulk(mods: Mods) -> str:
    one = check(mods["space"], "one", 1, 8, write=True)
    return (
        "if (i) return fault(w, o, FAULT_VALUE, 0, i, 0, 2);\n"
        "LANES(l) if (HAS(l) && n_[l]) { const uint32_t mine = m; Addresses one = a; m = 1u << l;\n"
        f"{one}\nuint8_t *start = (uint8_t *)one.at[l]; one = a; one.at[l] += n_[l] - 1;\n"
        f"{one.replace(', 8, ', ', 1, ').replace(', 8)', ', 1)')}\nmemset(start, 0, n_[l]); m = mine; }}"
    )


def _access(base: str, place: str, vectors: str, types: str, arch: int = 0) -> list[Entry]:
    """A load or store, with and without a cache policy; `place`: groups for state space and cache operator."""
    operands, body = (_LOAD, _load) if base == "ld" else (_STORE, _store)
    pattern = f"{base} sem?={_SEM[base]} {_SCOPE} {place} {_L1} {_L2} {{}} {_PREFETCH} {vectors} type={types}"
    return [
        Entry(pattern.format(""), operands, body, "warp", hints=_HINTS, arch=arch),
        Entry(pattern.format("hint=L2::cache_hint"), f"{operands} -h:b64", body, "warp", hints=_HINTS, arch=arch),
    ]


_SPACES = f"space?=global|{_SHARED}|local|const|param|param::entry"
_STORE_SPACES = f"space?=global|{_SHARED}|local"
_LOAD = "d=type*vec~ [a]:space"
_STORE = "[a]:space b:type*vec~"

ENTRIES = (
    *_access("ld", f"{_SPACES} cop?=ca|cg|cs|lu|cv nc?", "vec?=v2|v4", _NARROW),
    *_access("ld", f"{_SPACES} cop?=ca|cg|cs|lu|cv nc?", "vec?=v2", _WIDE),
    *_access("ld", "space=global nc?", "vec=v8", "b32|u32|s32|f32", 100),
    *_access("ld", "space=global nc?", "vec=v4", _WIDE, 100),
    *_access("st", f"{_STORE_SPACES} cop?=wb|cg|cs|wt", "vec?=v2|v4", _NARROW),
    *_access("st", f"{_STORE_SPACES} cop?=wb|cg|cs|wt", "vec?=v2", _WIDE),
    *_access("st", "space=global", "vec=v8", "b32|u32|s32|f32", 100),
    *_access("st", "space=global", "vec=v4", _WIDE, 100),
    Entry("cvta to space=global|const type=u64", "d=u64 a:u64", "d = a;"),
    Entry("cvta space=global|const type=u64", "d=u64 a:u64", "d = a;"),
    Entry("cvta space=param type=u64", "d=u64 a:u64", "d = a + (uint64_t)(uintptr_t)w->launch->params;"),
    Entry("cvta to space=param type=u64", "d=u64 a:u64", "d = a - (uint64_t)(uintptr_t)w->launch->params;"),
    Entry(f"cvta space={_SHARED} type=u64", "d=u64 a:u64", "d = a | GENERIC_SHARED;"),
    Entry(f"cvta to space={_SHARED}|local type=u64", "d=u64 a:u64", "d = a & 0xffffffffu;"),
    Entry("cvta space=local type=u64", "d=u64 a:u64", "d = a | GENERIC_LOCAL;"),
    Entry("isspacep space=shared|shared::cta|shared::cluster", "p=pred a:u64", "p = a >> 32 == GENERIC_SHARED >> 32;"),
    Entry("isspacep space=local", "p=pred a:u64", "p = a >> 32 == GENERIC_LOCAL >> 32;"),
    Entry("isspacep space=global", "p=pred a:u64", "p = a >> 56 == 0;"),
    Entry("mapa space=shared::cluster type=u32", "d=u32 a:u32 b:u32", "d = (a & 0xffffffu) | b << 24;"),
    Entry("mapa space=shared::cluster type=u64", "d=u64 a:u64 b:u32", "d = (a & 0xffffffu) | (uint64_t)b << 24;"),
    Entry("mapa type=u64", "d=u64 a:u64 b:u32", "d = GENERIC_SHARED | (a & 0xffffffu) | (uint64_t)b << 24;"),
    Entry("getctarank space=shared::cluster type=u32", "d=u32 a:u32", "d = a >> 24;"),
    Entry("getctarank type=u64", "d=u32 a:u64", "d = (uint32_t)a >> 24;"),
    Entry(
        "st bulk weak? space?=shared|shared::cta",
        "[a]:space n:u64 i:imm",
        _store_bulk,
        "warp",
        hints=("weak",),
        arch=100,
        note="the value can only be 0",
    ),
    Entry("fence sem?=sc|acq_rel|acquire|release scope=cta|cluster|gpu|sys", "", kind="none"),
    Entry("fence sem=acquire sync_restrict::shared::cluster cluster", "", kind="none"),
    Entry("fence sem=release sync_restrict::shared::cta cluster", "", kind="none"),
    Entry("fence proxy async::generic acquire sync_restrict::shared::cluster cluster", "", kind="none"),
    Entry("fence proxy async::generic release sync_restrict::shared::cta cluster", "", kind="none"),
    Entry("fence mbarrier_init release cluster", "", kind="none"),
    Entry("fence proxy kind=alias|async|async::generic", "", kind="none"),
    Entry("fence proxy async space=global|shared::cta|shared::cluster", "", kind="none"),
    Entry("fence proxy tensormap::generic release scope=cta|cluster|gpu|sys", "", kind="none"),
    Entry("fence proxy tensormap::generic acquire scope=cta|cluster|gpu|sys", "[a]: i:imm", kind="none"),
    Entry("membar level=cta|gl|sys", "", kind="none"),
    Entry("membar proxy kind=alias|async", "", kind="none"),
    Entry("prefetch space?=global|local level=L1|L2|L2::evict_last|L2::evict_normal", "[a]:space", kind="none"),
    Entry("prefetch space?=const|param tensormap", "[a]:space", kind="none"),
    Entry("prefetchu L1", "[a]:", kind="none"),
    Entry("discard space?=global level=L2", "[a]:space i:imm", kind="none"),
    Entry("applypriority space?=global level=L2::evict_normal", "[a]:space i:imm", kind="none"),
    Entry(
        "createpolicy fractional first=L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged"
        " second?=L2::evict_first|L2::evict_unchanged type=b64",
        "d=b64 -f:f32?",
        "d = 0;",
        hints=("first", "second"),
        note="a policy has no effect on values",
    ),
    Entry("griddepcontrol what=wait|launch_dependents", "", kind="none", note="grids run in order"),
)
