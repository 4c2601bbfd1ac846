"""`cvt` from and to the 8-, 6- and 4-bit formats and block scales (`spec/numerics.md` section 4).

In the forms with two sources the first goes to the high half of the destination; packed sources go element by element.
"""

from __future__ import annotations

from equiv.emulator.isa.table import Entry, Mods

_WIDEN = {"f16x2": "eq_f16_to_f32", "bf16x2": "eq_bf16_to_f32"}


def _shift(kind: str) -> int:
    return 4 if kind == "e2m1x2" else 8


def _code(mods: Mods, value: str) -> str:
    """f32 to one code."""
    kind, finite = mods["dtype"].removesuffix("x2"), "_satfinite" if mods["satfinite"] else ""
    value = f"relu_f32({value})" if mods.get("relu") else value
    return f"eq_cvt_{kind}_{mods['rnd']}{finite}({value})"


def _two(mods: Mods) -> str:
    return f"d = {_code(mods, 'a')} << {_shift(mods['dtype'])} | {_code(mods, 'b')};"


def _packed(mods: Mods) -> str:
    widen, shift = _WIDEN[mods["atype"]], _shift(mods["dtype"])
    return f"d = {_code(mods, f'{widen}(a >> 16)')} << {shift} | {_code(mods, f'{widen}(a & 0xffffu)')};"


def _widen(mods: Mods) -> str:
    kind, shift = mods["atype"].removesuffix("x2"), _shift(mods["atype"])
    target = mods["dtype"].removesuffix("x2")
    low, high = (
        f"eq_cvt_{target}_rn(eq_{kind}_to_f32({value}))" for value in (f"(a & {(1 << shift) - 1})", f"(a >> {shift})")
    )
    if mods.get("relu"):
        low, high = f"half_relu({low})", f"half_relu({high})"
    return f"d = (uint32_t){high} << 16 | {low};"


ENTRIES = (
    Entry("cvt rnd=rn satfinite relu? dtype=e4m3x2|e5m2x2 atype=f32", "d=dtype a:f32 b:f32", _two, arch=89),
    Entry("cvt rnd=rn satfinite relu? dtype=e4m3x2|e5m2x2 atype=f16x2", "d=dtype a:f16x2", _packed, arch=89),
    Entry("cvt rnd=rn satfinite relu? dtype=e4m3x2|e5m2x2 atype=bf16x2", "d=dtype a:bf16x2", _packed, arch=100),
    Entry("cvt rnd=rn satfinite relu? dtype=e2m3x2|e3m2x2 atype=f32", "d=dtype a:f32 b:f32", _two, arch=100),
    Entry("cvt rnd=rn satfinite relu? dtype=e2m3x2|e3m2x2 atype=f16x2|bf16x2", "d=dtype a:atype", _packed, arch=100),
    Entry("cvt rnd=rn satfinite relu? dtype=e2m1x2 atype=f32", "d=e2m1x2~ a:f32 b:f32", _two, arch=100),
    Entry("cvt rnd=rn satfinite relu? dtype=e2m1x2 atype=f16x2|bf16x2", "d=e2m1x2~ a:atype", _packed, arch=100),
    Entry("cvt rnd=rn relu? dtype=f16x2 atype=e4m3x2|e5m2x2", "d=b32 a:atype", _widen, arch=89),
    Entry("cvt rnd=rn relu? dtype=bf16x2 atype=e4m3x2|e5m2x2", "d=b32 a:atype", _widen, arch=100),
    Entry("cvt rnd=rn relu? dtype=f16x2|bf16x2 atype=e2m3x2|e3m2x2", "d=b32 a:atype", _widen, arch=100),
    Entry("cvt rnd=rn relu? dtype=f16x2|bf16x2 atype=e2m1x2", "d=b32 a:e2m1x2~", _widen, arch=100),
    Entry("cvt rnd=rz|rp satfinite? dtype=ue8m0x2 atype=f32", "d=ue8m0x2 a:f32 b:f32", _two, arch=100),
    Entry("cvt rnd=rz|rp satfinite? dtype=ue8m0x2 atype=bf16x2", "d=ue8m0x2 a:bf16x2", _packed, arch=100),
    Entry(
        "cvt rnd=rn dtype=bf16x2 atype=ue8m0x2",
        "d=b32 a:ue8m0x2",
        "d = eq_ue8m0_to_bf16(a >> 8) << 16 | eq_ue8m0_to_bf16(a);",
        arch=100,
    ),
)
