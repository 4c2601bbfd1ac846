"""Matrix instructions of a warp or warpgroup: `ldmatrix`, `stmatrix`, `movmatrix`, `mma.sync`, `wgmma`.

The C side moves fragments (csrc/fragments.h, csrc/warp_mma.h); the arithmetic is `equiv.rounding.matrix`.
"""

from __future__ import annotations

from functools import partial

from equiv.emulator.isa import models
from equiv.emulator.isa.table import Entry, Mods

UNIT = "w->launch->matrix->"
_SHARED = "space=shared|shared::cta"
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
_FP8 = "e4m3|e5m2"


def targets(count: int) -> str:
    """C that makes the array `d` of the lanes of the destinations `d0`, `d1`, ..."""
    return f"uint32_t *const d[] = {{{', '.join(f'd{i}_' for i in range(count))}}};"


def sources(name: str, count: int) -> str:
    """The same for a vector of sources."""
    return f"const uint32_t *const {name}[] = {{{', '.join(f'{name}{i}_' for i in range(count))}}};"


def _load_tiles(mods: Mods) -> str:
    count = int(mods["num"][1:])
    return f"{targets(count)}\nreturn load_tiles(w, o, m, &a, d, {count}, {int(bool(mods['trans']))});"


def _store_tiles(mods: Mods) -> str:
    count = int(mods["num"][1:])
    return f"{sources('s', count)}\nreturn store_tiles(w, o, m, &a, s, {count}, {int(bool(mods['trans']))});"


def _mma_sizes(depth: int, mods: Mods) -> Mods:
    """Registers of D and C, of A and of B: a row of A or column of B has k * bytes / 4 words."""
    words = depth * _BYTES[mods["atype"]] // 4
    results = "4" if mods["dtype"] == "f32" else "2"
    return {"results": results, "rows": str(words // 2), "columns": str(words // 4)}


def _mma(depth: int, mods: Mods) -> str:
    name = models.mma_name(str(depth), mods["dtype"], mods["atype"], mods["btype"])
    results = int(mods["results"])
    return "\n".join([
        "if (whole_warp(w, o, m)) return FAULT;",
        targets(results), sources("a", int(mods["rows"])), sources("b", int(mods["columns"])), sources("c", results),
        f"return {UNIT}mma(w, o, {models.number(name)} /* {name} */, d, a, b, c);",
    ])  # fmt: skip


def _mma_entry(depth: int, result: str, a: str, b: str) -> Entry:
    return Entry(
        f"mma sync aligned m16n8k{depth} row col dtype={result} atype={a} btype={b} ctype={result}",
        "d=b32*results a:b32*rows b:b32*columns c:b32*results",
        partial(_mma, depth),
        "warp",
        needs_lanes="FULL",
        derived=partial(_mma_sizes, depth),
        note="8-bit operands as ptxas expands them: products of f16, C added last" if "e4m3" in a else "",
    )


def _wgmma_sizes(depth: int, mods: Mods) -> Mods:
    columns = int(mods["shape"].removeprefix("m64n").removesuffix(f"k{depth}"))
    return {"results": str(columns // (2 if mods["dtype"] == "f32" else 4)), "columns": str(columns)}


def _wgmma(depth: int, from_registers: bool, mods: Mods) -> str:  # noqa: FBT001
    name = models.wgmma_name(str(depth), mods["dtype"], mods["atype"], mods["btype"])
    wide = _BYTES[mods["atype"]] == 2
    turned_a, turned_b = "ta != 0" if wide and not from_registers else "0", "tb != 0" if wide else "0"
    a, at = ("a", "0") if from_registers else ("0", "a_[0]")
    fields = f"{models.number(name)} /* {name} */, {mods['columns']}, c_ != 0, sa != 1, sb != 1, {turned_a}, {turned_b}"
    fields += f", {a}, {at}, b_[0]"
    return "\n".join([
        "if (whole_warp(w, o, m) || uniform64(w, o, b_)) return FAULT;",
        "if (c_ && c_ != FULL) return matrix_fault(w, o, 0, PROBLEM_UNIFORM, c_, 0);",
        "if ((sa != 1 && sa != ~0ull) || (sb != 1 && sb != ~0ull)) return matrix_fault(w, o, 0, PROBLEM_NEGATE, 0, 0);",
        targets(int(mods["results"])),
        sources("a", 4) if from_registers else "if (uniform64(w, o, a_)) return FAULT;",
        f"const Wgmma g = {{{fields}}};",
        f"return {UNIT}wgmma(w, o, &g, d);",
    ])  # fmt: skip


def _wgmma_entries(depth: int, result: str, a: str, b: str) -> list[Entry]:
    """A from shared memory, A from registers. 16-bit types have transposition bits for what is in shared memory."""
    shapes = "|".join(f"m64n{n}k{depth}" for n in range(8, 257, 8))
    wide = depth == 16
    return [
        Entry(
            f"wgmma mma_async sync aligned shape={shapes} dtype={result} atype={a} btype={b}",
            f"d+=b32*results {first} b:b64 c:pred sa:imm sb:imm{turned if wide else ''}",
            partial(_wgmma, depth, first != "a:b64"),
            "warp",
            needs_lanes="FULL",
            arch=90,
            last_arch=90,
            derived=partial(_wgmma_sizes, depth),
            note="each warp computes its 16 rows at once; with late completion they land at the wait",
        )
        for first, turned in (("a:b64", " ta:imm tb:imm"), ("a:b32*4", " tb:imm"))
    ]


_KINDS = (("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"))


def _group(what: str, operands: str, body: str) -> Entry:
    kind = "warp" if body else "none"
    return Entry(f"wgmma {what} sync aligned", operands, body, kind, arch=90, last_arch=90)


ENTRIES = (
    Entry(
        f"ldmatrix sync aligned m8n8 num=x1|x2|x4 trans? {_SHARED} type=b16",
        "d=b32*num [a]:space",
        _load_tiles,
        "warp",
        needs_lanes="FULL",
    ),
    Entry(
        f"stmatrix sync aligned m8n8 num=x1|x2|x4 trans? {_SHARED} type=b16",
        "[a]:space s:b32*num",
        _store_tiles,
        "warp",
        needs_lanes="FULL",
    ),
    Entry("ldmatrix sync aligned shape=m16n16|m8n16 rest=*", "", kind="refused", note="8-bit tiles are not emulated"),
    Entry("stmatrix sync aligned shape=m16n8 rest=*", "", kind="refused", note="8-bit tiles are not emulated"),
    Entry(
        "movmatrix sync aligned m8n8 trans type=b16",
        "d=b32 a:b32",
        "return transpose_tile(w, o, m, d_, a_);",
        "warp",
        needs_lanes="FULL",
    ),
    *(_mma_entry(depth, *kind) for depth in (16, 8) for kind in _KINDS),
    *(_mma_entry(depth, "f32", "tf32", "tf32") for depth in (8, 4)),
    *(_mma_entry(depth, result, _FP8, _FP8) for depth in (32, 16) for result in ("f32", "f16")),
    Entry("mma sync aligned rest=*", "", kind="refused",
          note="emulated are dense m16n8 products of f16, bf16, tf32 and fp8 with C and D of one type"),
    Entry("mma sp rest=*", "", kind="refused", note="sparse matrices are not emulated"),
    Entry("mma sp::ordered_metadata rest=*", "", kind="refused", note="sparse matrices are not emulated"),
    *(entry for kind in _KINDS for entry in _wgmma_entries(16, *kind)),
    *_wgmma_entries(8, "f32", "tf32", "tf32"),
    *(entry for result in ("f32", "f16") for entry in _wgmma_entries(32, result, _FP8, _FP8)),
    Entry("wgmma mma_async sp rest=*", "", kind="refused", note="sparse matrices are not emulated"),
    Entry("wgmma mma_async sync aligned rest=*", "", kind="refused",
          note="emulated are dense products of f16, bf16, tf32 and fp8"),
    _group("fence", "", ""),
    _group("commit_group", "", "w->wgmma_group++;"),
    _group("wait_group", "i:count", f"if (w->launch->late) {UNIT}wgmma_land(w, (uint32_t)i);"),
)  # fmt: skip
