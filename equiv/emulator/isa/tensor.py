"""`tcgen05`: tensor memory, its loads, stores and copies, and the products that accumulate there (spec numerics 1.6).

Everything happens at once, which is one legal order, so waits and fences have nothing to do.
"""

from __future__ import annotations

from functools import partial

from equiv.emulator.isa import models
from equiv.emulator.isa.matrix import UNIT, sources, targets
from equiv.emulator.isa.memory import check
from equiv.emulator.isa.table import Entry, Mods

_ARCH = 100
_GROUP = "group=cta_group::1|cta_group::2"
_COLLECTOR = "collector?=collector::a::fill|collector::a::use|collector::a::lastuse|collector::a::discard"
# Shape -> (lanes of a warp, bits a lane, registers for each repetition).
_SHAPES = {
    "32x32b": (32, 32, 1),
    "16x64b": (16, 64, 1),
    "16x128b": (16, 128, 2),
    "16x256b": (16, 256, 4),
    "16x32bx2": (16, 0, 1),
}


def _count(shape: str, mods: Mods) -> Mods:
    return {"count": str(int(mods["num"][1:]) * _SHAPES[shape][2])}


def _move(shape: str, mods: Mods) -> str:
    """tcgen05.ld or .st; the half-warps of 16x32bx2 are `i` columns apart."""
    rows, bits, _ = _SHAPES[shape]
    count, load = int(mods["count"]), mods["what"] == "ld"
    packed, split = int(bool(mods["packed"])), "(uint32_t)i" if shape == "16x32bx2" else "0"
    return "\n".join([
        "uint32_t at[32]; LANES(l) at[l] = (uint32_t)a.at[l];",
        "if (whole_warp(w, o, m) || uniform32(w, o, at)) return FAULT;",
        targets(count) if load else sources("s", count),
        f"const TensorMove t = {{{rows}, {bits}, {count}, {packed}, at[0], {split}}};",
        f"return {UNIT}{'tensor_load(w, o, &t, d)' if load else 'tensor_store(w, o, &t, s)'};",
    ])  # fmt: skip


def _moves() -> list[Entry]:
    found = []
    for shape, (_, bits, step) in _SHAPES.items():
        numbers = "|".join(f"x{1 << n}" for n in range(8) if (1 << n) * step <= 128)
        split = " i:imm" if bits == 0 else ""
        for what, pack, operands in (
            ("ld", "pack::16b", f"d=b32*count [a]:tensor{split}"),
            ("st", "unpack::16b", f"[a]:tensor{split} s:b32*count"),
        ):
            found.append(
                Entry(
                    f"tcgen05 what={what} sync aligned {shape} num={numbers} packed?={pack} type=b32",
                    operands,
                    partial(_move, shape),
                    "warp",
                    needs_lanes="FULL",
                    arch=_ARCH,
                    derived=partial(_count, shape),
                )
            )
    return found


def _product(mods: Mods, *, kind: str, in_tensor: bool, masked: bool, pair: int) -> str:
    """One product for every active lane; normally one thread has been elected."""
    scaled = kind.startswith("mx")
    sixteen = (mods.get("vec") or "") in {"block16", "scale_vec::4X"}
    values = {
        "kind": str(models.TENSOR_KINDS.index(kind)),
        "block": "0" if not scaled else "16" if sixteen else "32",
        "d": "(uint32_t)d.at[l]",
        "instruction": "i_[l]",
        "a_in_tensor": str(int(in_tensor)),
        "accumulate": "c_ >> l & 1",
        "scale_a": "(uint32_t)fa.at[l]" if scaled else "0",
        "scale_b": "(uint32_t)fb.at[l]" if scaled else "0",
        "pair": str(pair),
        "a": "a.at[l]" if in_tensor else "a_[l]",
        "b": "b_[l]",
        "skip": "skip",
    }
    skip = "const uint32_t skip[] = {x0_[l], x1_[l], x2_[l], x3_[l]};" if masked else "const uint32_t *const skip = 0;"
    fields = ", ".join(f".{name} = {value}" for name, value in values.items())
    call = f"{UNIT}tensor_mma(w, o, (uint32_t)l, &t)"
    return f"LANES(l) if (HAS(l)) {{ {skip} const TensorMma t = {{{fields}}}; if ({call}) return FAULT; }}"


_SCALED = {
    "mxf8f6f4": " block_scale vec?=scale_vec::1X|block32",
    "mxf4": " block_scale vec?=scale_vec::2X|block32",
    "mxf4nvf4": " block_scale vec=scale_vec::2X|scale_vec::4X|block16|block32",
}


def _products() -> list[Entry]:
    """Every kind with A in shared or in tensor memory, with and without a mask of disabled lanes."""
    found = []
    for kind in models.TENSOR_KINDS:
        scale = _SCALED.get(kind, "")
        for pair in (1, 2):
            masks = (False, True) if pair == 1 and not scale else (False,)
            for in_tensor, masked in ((place, mask) for place in (False, True) for mask in masks):
                if pair == 2 and scale:
                    continue
                operands = f"[d]:tensor {'[a]:tensor' if in_tensor else 'a:b64'} b:b64 i:b32"
                operands += " [fa]:tensor [fb]:tensor" if scale else " x:b32*4" if masked else ""
                found.append(
                    Entry(
                        f"tcgen05 mma cta_group::{pair} kind::{kind}{scale} {_COLLECTOR}",
                        f"{operands} c:pred",
                        partial(_product, kind=kind, in_tensor=in_tensor, masked=masked, pair=pair),
                        "warp",
                        hints=("collector",),
                        arch=_ARCH,
                        note="of a pair by published model: that it computes as one CTA does" if pair == 2 else "",
                    )
                )
    return found


def _copy(mods: Mods, *, rows: int, bits: int, spread: int) -> str:
    fields = f"s_[l], (uint32_t)a.at[l], {rows}, {bits}, {spread}, {mods['group'][-1]}"
    call = f"{UNIT}tensor_copy(w, o, (uint32_t)l, &t)"
    return f"LANES(l) if (HAS(l)) {{ const TensorCopy t = {{{fields}}}; if ({call}) return FAULT; }}"


def _copies() -> list[Entry]:
    forms = (
        ("128x256b", 128, 256, 0), ("128x128b", 128, 128, 0), ("64x128b warpx2::02_13", 64, 128, 2),
        ("64x128b warpx2::01_23", 64, 128, 1), ("32x128b warpx4", 32, 128, 4),
    )  # fmt: skip
    return [
        Entry(
            f"tcgen05 cp {_GROUP} {shape}",
            "[a]:tensor s:b64",
            partial(_copy, rows=rows, bits=bits, spread=spread),
            "warp",
            arch=_ARCH,
        )
        for shape, rows, bits, spread in forms
    ]


def _commit(mods: Mods, *, multicast: bool) -> str:
    """Everything before has happened, so the mbarrier gets its arrival at once; with a mask, in each CTA it names.

    A generic address may be one of shared memory as it is: of 64 bits UTCBAR takes the low ones (Triton 3.6 does so).
    """
    space = mods.get("space", "shared::cluster")
    checked = check(space, "a", 8, 8, write=True)
    if not space:
        checked = f"LANES(l) if (!(a.at[l] >> 32)) a.at[l] |= GENERIC_SHARED;\n{checked}"
    apply = "if (mbarrier_apply(w, o, m, &a, change, 1, 0)) return FAULT;"
    arrive = f"{checked}\nLANES(l) change[l] = (Change){{1, 0, 0}};\n{apply}"
    if not multicast:
        return f"Change change[32];\n{arrive}"
    return (
        "Change change[32]; const Addresses first = a; const uint32_t all = m;\n"
        "for (uint32_t rank = 0; rank < 16; rank++) {"
        " m = 0; LANES(l) { m |= (all >> l & 1u & (uint32_t)x_[l] >> rank) << l;"
        " a.at[l] = (first.at[l] & 0xffffffu) | rank << 24; }\n"
        f"if (m) {{ {arrive} }} }}\nm = all;"
    )


def _refused(pattern: str, note: str) -> Entry:
    return Entry(pattern, "", kind="refused", note=note)


ENTRIES = (
    Entry(
        f"tcgen05 alloc {_GROUP} sync aligned space=shared::cta type=b32",
        "[a]:space n:b32",
        f"if (whole_warp(w, o, m) || uniform32(w, o, n_)) return FAULT;\nreturn {UNIT}tensor_alloc(w, o, &a, n_[0]);",
        "warp",
        needs_lanes="FULL",
        arch=_ARCH,
    ),
    Entry(
        f"tcgen05 dealloc {_GROUP} sync aligned type=b32",
        "a:b32 n:b32",
        "if (whole_warp(w, o, m) || uniform32(w, o, a_) || uniform32(w, o, n_)) return FAULT;\n"
        f"return {UNIT}tensor_dealloc(w, o, a_[0], n_[0]);",
        "warp",
        needs_lanes="FULL",
        arch=_ARCH,
    ),
    Entry(
        f"tcgen05 relinquish_alloc_permit {_GROUP} sync aligned",
        "",
        f"return {UNIT}tensor_relinquish(w, o);",
        "warp",
        needs_lanes="FULL",
        arch=_ARCH,
    ),
    *_moves(),
    *_copies(),
    *_products(),
    Entry(
        f"tcgen05 commit {_GROUP} mbarrier::arrive::one space?=shared::cluster type=b64",
        "[a]:space",
        partial(_commit, multicast=False),
        "warp",
        arch=_ARCH,
    ),
    Entry(
        f"tcgen05 commit {_GROUP} mbarrier::arrive::one shared::cluster multicast::cluster type=b64",
        "[a]:shared::cluster x:b16",
        partial(_commit, multicast=True),
        "warp",
        arch=_ARCH,
    ),
    Entry("tcgen05 what=wait::ld|wait::st sync aligned", "", kind="none", arch=_ARCH),
    Entry("tcgen05 what=fence::before_thread_sync|fence::after_thread_sync", "", kind="none", arch=_ARCH),
    _refused("tcgen05 ld red rest=*", "loads that reduce are not emulated"),
    _refused(f"tcgen05 cp {_GROUP} 4x256b", "which lanes it writes is not documented"),
    _refused("tcgen05 shift rest=*", "shifts of tensor memory are not emulated"),
    _refused("tcgen05 mma ws rest=*", "products on a part of the rows (.ws) are not emulated"),
    _refused("tcgen05 mma sp rest=*", "sparse matrices are not emulated"),
    _refused(
        f"tcgen05 cp {_GROUP} shape=128x256b|4x256b|128x128b|64x128b|32x128b rest=*",
        "copies that unpack are not emulated",
    ),
    _refused("tcgen05 mma cta_group::1 rest=*", "emulated are the kinds " + ", ".join(models.TENSOR_KINDS)),
    _refused("tcgen05 mma cta_group::2 rest=*", "of CTA pairs emulated are the kinds f16, tf32 and f8f6f4"),
)
